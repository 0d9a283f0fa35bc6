package framework

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// intake joins the two subscriptions of a handler, to its topic and to its
// redrives: together they run no more messages than the handler's concurrency,
// and with order no two of one key at once.
type intake struct {
	slots chan struct{}
	keys  *keyLocks // nil without order
}

func newIntake(p policy) *intake {
	in := &intake{slots: make(chan struct{}, max(p.concurrency, 1))}
	if p.order {
		in.keys = &keyLocks{held: map[string]*keyLock{}}
	}
	return in
}

// middleware waits for a place. A wait that ends with the drain or with the
// lease gives the message back uncounted.
func (in *intake) middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		d := middleware.DeliveryFrom(ctx)
		var draining <-chan struct{}
		if d != nil {
			draining = d.Draining()
		}
		if key := msg.Metadata.Get(events.KeyOrdering); in.keys != nil && key != "" {
			unlock, ok := in.keys.lock(ctx, draining, key)
			if !ok {
				return nil, notBegun(ctx, d)
			}
			defer unlock()
		}
		select {
		case in.slots <- struct{}{}:
		default:
			select {
			case in.slots <- struct{}{}:
			case <-draining:
				return nil, notBegun(ctx, d)
			case <-ctx.Done():
				return nil, notBegun(ctx, d)
			}
		}
		defer func() { <-in.slots }()
		return next(msg)
	}
}

func notBegun(ctx context.Context, d *middleware.Delivery) error {
	if d != nil {
		d.Release()
		d.RedeliverAfter(0)
	}
	err := context.Cause(ctx)
	if err == nil {
		err = middleware.ErrShuttingDown
	}
	return Defer(fmt.Errorf("not begun: %w", err), 0)
}

// keyLocks are locks by key that exist while somebody wants them.
type keyLocks struct {
	mu   sync.Mutex
	held map[string]*keyLock
}

type keyLock struct {
	taken chan struct{}
	users int
}

func (l *keyLocks) lock(ctx context.Context, draining <-chan struct{}, key string) (unlock func(), ok bool) {
	l.mu.Lock()
	k := l.held[key]
	if k == nil {
		k = &keyLock{taken: make(chan struct{}, 1)}
		l.held[key] = k
	}
	k.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.held, key)
		}
	}
	select {
	case k.taken <- struct{}{}:
		return func() { <-k.taken; leave() }, true
	case <-draining:
	case <-ctx.Done():
	}
	leave()
	return nil, false
}
