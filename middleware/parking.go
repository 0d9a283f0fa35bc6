package middleware

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrParkStore is in the chain of the deferral of a message for which the store
// of parked keys did not answer.
var ErrParkStore = errors.New("parked keys unavailable")

// ParkedError is why a message was dead-lettered unrun: another of its key
// failed before it.
type ParkedError struct {
	// Behind is the id of the first message in the line.
	Behind string

	seq int64 // its own place
}

// Error names who is first.
func (e *ParkedError) Error() string {
	return fmt.Sprintf("parked behind %s, which failed and has the same key", e.Behind)
}

// Parking keeps the order of a key over a failure: see Park.
type Parking struct{ ParkConfig }

// Park makes a Parking. Its Middleware stands inside Poison and around Retry, and
// it is Poison's Parking too. Before Poison publishes the dead letter of a
// message with a key, the message is put into its key's line. While there is a
// line, only its first message runs, as a redrive or a redelivery; any other is
// dead-lettered unrun, with ReasonParked, and stands in the line behind it. A
// message that was handled, or skipped, leaves the line: with ParkPlaceFrom in
// the handler's own transaction, else right after.
//
// It keeps order only where the messages of a key come one at a time. The
// handler must return no messages to publish.
func Park(cfg ParkConfig) (*Parking, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Parking{cfg}, nil
}

// ParkPlace is the place of a message that runs although its key has a line:
// it is the first.
type ParkPlace struct {
	// Seq is its place in the store.
	Seq int64

	left atomic.Bool
}

// Left says that the message is out of the line already, by the handler's
// committed transaction.
func (p *ParkPlace) Left() { p.left.Store(true) }

type parkPlaceKey struct{}

// ParkPlaceFrom returns the place of the message that ctx belongs to; nil for
// one that stands in no line.
func ParkPlaceFrom(ctx context.Context) *ParkPlace {
	p, _ := ctx.Value(parkPlaceKey{}).(*ParkPlace)
	return p
}

// Middleware lets a message run only where nothing of its key stands before it.
func (p *Parking) Middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		key, id, seq := p.Key(msg), p.ID(msg), p.seqOf(msg)
		switch {
		case p.discards(msg):
			if err := p.remove(ctx, key, "", seq); err != nil {
				return nil, err
			}
			return nil, SkipBecause(SkipDiscarded, fmt.Errorf("its dead letter was discarded: %s waits for it no more", strconv.Quote(key)))
		case key == "":
			return next(msg)
		case p.Passes(msg):
			produced, err := next(msg)
			if d := DeliveryFrom(ctx); ended(err) && (seq > 0 || d == nil || d.Count() != 1) { // the first delivery can't be in a line
				if removeErr := p.remove(ctx, key, id, seq); removeErr != nil {
					return nil, removeErr
				}
			}
			return produced, err
		}
		var head ParkHead
		if err := p.patiently(ctx, func(ctx context.Context) (err error) {
			head, err = p.Store.Head(ctx, key, id, seq)
			return err
		}); err != nil {
			return nil, err
		}
		if !head.Parked {
			return next(msg)
		}
		if !head.Mine {
			var err error
			if head, err = p.queue(ctx, msg, key, id, seq); err != nil {
				return nil, err
			}
		}
		if !head.Mine { // handled before
			return next(msg)
		}
		return p.runHead(next, msg, key, head)
	}
}

// queue puts a message that is not the first into the line. It returns a
// ParkedError, unless the message is the first by now, or was handled before.
func (p *Parking) queue(ctx context.Context, msg *message.Message, key, id string, seq int64) (head ParkHead, err error) {
	err = p.patiently(ctx, func(ctx context.Context) error {
		handled, err := p.Handled(ctx, msg)
		if err != nil || handled {
			return err
		}
		own := int64(0)
		if own, head, err = p.Store.Add(ctx, key, id, seq); err == nil && !head.Mine {
			return Permanent(&ParkedError{Behind: head.ID, seq: own})
		}
		return err
	})
	return head, err
}

// runHead runs the first of a line and takes it out once it is through.
func (p *Parking) runHead(next message.HandlerFunc, msg *message.Message, key string, head ParkHead) ([]*message.Message, error) {
	ctx := msg.Context()
	place := &ParkPlace{Seq: head.Seq}
	msg.SetContext(context.WithValue(ctx, parkPlaceKey{}, place))
	defer msg.SetContext(ctx)
	produced, err := next(msg)
	if !ended(err) || place.left.Load() {
		return produced, err
	}
	if removeErr := p.remove(ctx, key, "", head.Seq); removeErr != nil {
		return nil, removeErr
	}
	return produced, err
}

// ended tells whether the handler is through with the message for good.
func ended(err error) bool {
	d, _ := DispositionOf(err)
	return err == nil || d == DispositionSkip
}

func (p *Parking) redriven(msg *message.Message) bool {
	return p.RedriveTopic != "" && message.SubscribeTopicFromCtx(msg.Context()) == p.RedriveTopic
}

// discards tells whether msg only says that a dead letter was discarded.
func (p *Parking) discards(msg *message.Message) bool {
	return msg.Metadata[DeadLetterDiscarded] != "" && p.redriven(msg)
}

// seqOf is the place in the line that a replayed dead letter names; else 0.
func (p *Parking) seqOf(msg *message.Message) int64 {
	if !p.redriven(msg) {
		return 0
	}
	seq, err := strconv.ParseInt(msg.Metadata[DeadLetterParkSeq], 10, 64)
	if err != nil || seq < 0 {
		return 0
	}
	return seq
}

// bury puts a message that is to be dead-lettered into its key's line and
// returns what its dead letter says about that.
func (p *Parking) bury(ctx context.Context, msg *message.Message, cause error) (map[string]string, error) {
	key := p.Key(msg)
	if key == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.StoreTimeout)
	defer cancel()
	story := map[string]string{}
	var own int64
	var parked *ParkedError
	if errors.As(cause, &parked) {
		own = parked.seq
		story[DeadLetterParkedBehind] = clean(parked.Behind, maxErrorBytes/8)
		if p.redriven(msg) {
			n, _ := strconv.Atoi(msg.Metadata[DeadLetterRedrivesParked])
			story[DeadLetterRedrivesParked] = strconv.Itoa(max(n, 0) + 1)
		}
	} else {
		// A copy that fails once another was handled holds nobody up.
		handled, err := p.Handled(ctx, msg)
		if err == nil && !handled {
			own, _, err = p.Store.Add(ctx, key, p.ID(msg), p.seqOf(msg))
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrParkStore, err)
		}
		if handled {
			return nil, nil
		}
	}
	story[DeadLetterParksKey] = "1"
	story[DeadLetterParkSeq] = strconv.FormatInt(own, 10)
	return story, nil
}

// remove takes a message that is through out of the line, also during a drain.
func (p *Parking) remove(ctx context.Context, key, id string, seq int64) error {
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.StoreTimeout)
	defer cancel()
	backoff := Backoff{Base: 20 * time.Millisecond, Cap: time.Second}
	for n := 1; ; n++ {
		err := p.Store.Remove(detached, key, id, seq)
		if err == nil {
			return nil
		}
		if wait(detached, nil, backoff.Delay(n)) != nil {
			return p.unavailable(ctx, err)
		}
	}
}

// patiently calls f until it succeeds, or the message has to be given back. A
// ParkedError is returned as it is.
func (p *Parking) patiently(ctx context.Context, f func(context.Context) error) error {
	backoff := Backoff{Base: 50 * time.Millisecond, Cap: 5 * time.Second}
	begun := time.Now()
	for n := 1; ; n++ {
		bounded, cancel := context.WithTimeout(ctx, p.StoreTimeout)
		err := f(bounded)
		cancel()
		var parked *ParkedError
		if err == nil || errors.As(err, &parked) {
			return err
		}
		if ctx.Err() != nil || time.Since(begun) > p.Budget || wait(ctx, drainingOf(DeliveryFrom(ctx)), backoff.Delay(n)) != nil {
			return p.unavailable(ctx, err)
		}
		p.Logger.WarnContext(ctx, "parked keys not read, will try again", "handler", handlerName(p.Handler, ctx), "error", err)
	}
}

// unavailable is the deferral of a message for which the store did not answer.
func (p *Parking) unavailable(ctx context.Context, err error) error {
	if d := DeliveryFrom(ctx); isDraining(d) || ctx.Err() != nil && stopped(ctx) {
		return Defer(fmt.Errorf("%w: %w: %w", ErrShuttingDown, ErrParkStore, err), 0)
	}
	return Defer(fmt.Errorf("%w: %w", ErrParkStore, err), storeDelay/2+jitter(storeDelay/2))
}
