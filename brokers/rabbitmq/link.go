package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/framework/broker"
)

// errBlocked is in the chain of an error of a publish that RabbitMQ holds up.
var errBlocked = errors.New("RabbitMQ takes no messages for now, by an alarm of its memory or disk")

// link is one connection, made when it is needed and again when it is gone. Safe
// for concurrent use.
type link struct {
	cfg     Config
	name    string
	turn    chan struct{} // holds one token: who has it may dial
	conn    atomic.Pointer[amqp.Connection]
	blocked atomic.Bool
	closed  atomic.Bool
}

func newLink(cfg Config, name string) *link {
	l := &link{cfg: cfg, name: name, turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	return l
}

// get returns the open connection, and dials where there is none.
func (l *link) get(ctx context.Context) (*amqp.Connection, error) {
	if c := l.conn.Load(); c != nil && !c.IsClosed() {
		return c, nil
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.turn:
	}
	defer func() { l.turn <- struct{}{} }()
	if l.closed.Load() {
		return nil, broker.ErrClosed
	}
	if c := l.conn.Load(); c != nil && !c.IsClosed() {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	c, err := l.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	l.watch(c)
	l.conn.Store(c)
	return c, nil
}

func (l *link) dial(ctx context.Context) (*amqp.Connection, error) {
	props := amqp.NewConnectionProperties()
	props.SetClientConnectionName(l.name)
	var c *amqp.Connection
	err := do(ctx, func() (err error) {
		c, err = amqp.DialConfig(l.cfg.URL, amqp.Config{
			Heartbeat: l.cfg.Heartbeat, TLSClientConfig: l.cfg.TLS.Clone(), Properties: props,
			Dial: func(network, addr string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				// The handshake must not stall either; the client lifts it later.
				if until, ok := ctx.Deadline(); ok {
					if err := conn.SetDeadline(until); err != nil {
						conn.Close()
						return nil, err
					}
				}
				return conn, nil
			},
		})
		if err == nil && ctx.Err() != nil { // nobody waits for it any more
			_ = c.CloseDeadline(time.Now().Add(time.Second))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// watch notes when the server blocks publishers.
func (l *link) watch(c *amqp.Connection) {
	l.blocked.Store(false)
	notes := c.NotifyBlocked(make(chan amqp.Blocking, 4))
	go func() {
		for n := range notes {
			l.blocked.Store(n.Active)
			if n.Active {
				l.cfg.Logger.Warn("RabbitMQ blocks publishers: free its memory or disk", "reason", n.Reason)
			} else {
				l.cfg.Logger.Info("RabbitMQ takes messages again")
			}
		}
	}()
}

// channel opens a channel of the caller's own.
func (l *link) channel(ctx context.Context) (*amqp.Channel, error) {
	c, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	var ch *amqp.Channel
	err = do(ctx, func() error {
		opened, err := c.Channel()
		if err == nil && ctx.Err() != nil { // nobody waits for it any more
			return opened.Close()
		}
		ch = opened
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	return ch, nil
}

// with runs requests on a channel of their own and closes it.
func (l *link) with(ctx context.Context, fn func(*amqp.Channel) error) error {
	ch, err := l.channel(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	return do(ctx, func() error {
		defer func() { _ = ch.Close() }()
		return fn(ch)
	})
}

// close ends the connection, and with it all its channels.
func (l *link) close() {
	l.closed.Store(true)
	<-l.turn
	defer func() { l.turn <- struct{}{} }()
	if c := l.conn.Load(); c != nil && !c.IsClosed() {
		_ = c.CloseDeadline(time.Now().Add(2 * time.Second))
	}
}

// do runs fn, which knows no context, and returns when it does or when ctx ends.
// Then fn goes on until the connection's heartbeat gives it up.
func do(ctx context.Context, fn func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// rpcs are the requests on one channel, one at a time: the client would mix up
// their answers. Its zero value is ready to use.
type rpcs struct{ mu sync.Mutex }

func (r *rpcs) do(ctx context.Context, fn func() error) error {
	return do(ctx, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		return fn()
	})
}

// code is the AMQP reply code in err's chain; 0 without one.
func code(err error) int {
	var e *amqp.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}
