package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/framework/broker"
)

const (
	// window is how many messages are on their way before their confirms are
	// waited for.
	window = 512
	// idleChannels is how many channels are kept open between publishes.
	idleChannels = 8
)

// errNoQueue is in the chain of the error of a message that no queue took.
var errNoQueue = errors.New("no queue takes it: the topic has no group yet")

// publisher publishes. Safe for concurrent use: each call has a channel of its own.
type publisher struct {
	b    *Broker
	mu   sync.Mutex
	idle []*lane
}

func newPublisher(b *Broker) *publisher { return &publisher{b: b} }

// lane is a channel in confirm mode. RabbitMQ hands a message that no queue took
// back before it confirms it, so what is in returns after the confirm is all.
type lane struct {
	ch      *amqp.Channel
	returns chan amqp.Return
	closed  chan *amqp.Error
	frame   int

	requests rpcs
}

// outgoing is one message on its way.
type outgoing struct {
	index int
	wire  amqp.Publishing
}

// Publish sends msgs in order, each under its own context.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	return broker.PublishEach(p, topic, msgs)
}

// PublishBatch sends msgs in order, without waiting for one before the next, and
// returns when RabbitMQ has confirmed them: a quorum queue does when a majority
// of its nodes has them on disk.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if err := broker.CheckPublish(ctx, p.b.closed.Load(), topic, len(msgs)); err != nil {
		return err
	}
	if p.b.main.blocked.Load() {
		return broker.AllFailed(topic, len(msgs), errBlocked, nil)
	}
	failed := make(map[int]error)
	ctx, cancel := context.WithTimeout(ctx, p.b.cfg.Timeout)
	defer cancel()
	p.publish(ctx, topic, msgs, failed)
	if len(failed) > 0 {
		return &broker.PublishError{Topic: topic, Failed: failed}
	}
	return nil
}

// Close does nothing: the Broker owns the publisher.
func (p *publisher) Close() error { return nil }

func (p *publisher) publish(ctx context.Context, topic string, msgs []*message.Message, failed map[int]error) {
	l, err := p.take(ctx)
	if err != nil {
		for i := range msgs {
			failed[i] = err
		}
		return
	}
	out := make([]outgoing, 0, len(msgs))
	for i, msg := range msgs {
		wire, err := p.b.cfg.encode(msg, l.frame)
		if err != nil {
			failed[i] = err
			continue
		}
		out = append(out, outgoing{i, wire})
	}
	p.give(l)
	exchange, key := p.b.names.exchange(topic), ""
	if ownOnly(topic) {
		exchange, key = "", p.b.names.own(topic)
	}
	ensure := func() error { return p.b.ensureTopic(ctx, topic) }
	stray := p.route(ctx, topic, ensure, exchange, key, p.b.cfg.Unrouted != UnroutedDrop || ownOnly(topic), out, failed)
	if len(stray) == 0 {
		return
	}
	if ownOnly(topic) || p.b.cfg.Unrouted == UnroutedKeep {
		// Its own queue was deleted, or it has no group: it waits there.
		if ownOnly(topic) {
			p.b.forgetTopic(topic)
		}
		ensureOwn := func() error {
			if p.b.topo.has(&p.b.topo.own, topic) {
				return nil
			}
			return p.b.ensureOwn(ctx, topic)
		}
		own := p.b.names.own(topic)
		stray = p.route(ctx, topic, ensureOwn, "", own, true, stray, failed)
		if len(stray) > 0 {
			p.b.forgetTopic(topic)
		}
	}
	for _, o := range stray {
		failed[o.index] = errNoQueue
	}
}

// route ensures the destination and sends to it. What the server says is not
// there is made and sent to once more. It returns what no queue took.
func (p *publisher) route(ctx context.Context, topic string, ensure func() error, exchange, key string, mandatory bool, out []outgoing, failed map[int]error) (stray []outgoing) {
	for try := 1; len(out) > 0; try++ {
		if err := ensure(); err != nil {
			for _, o := range out {
				failed[o.index] = err
			}
			return stray
		}
		part, rest, err := p.send(ctx, exchange, key, mandatory, out, failed)
		stray = append(stray, part...)
		if err == nil {
			return stray
		}
		if code(err) == amqp.NotFound && try == 1 {
			p.b.forgetTopic(topic)
			out = rest // all is sent again that was not confirmed
			continue
		}
		for _, o := range rest {
			failed[o.index] = err
		}
		return stray
	}
	return stray
}

// send publishes out window by window. It returns what no queue took, and what
// was not confirmed with the reason; what RabbitMQ will never take is in failed.
func (p *publisher) send(ctx context.Context, exchange, key string, mandatory bool, out []outgoing, failed map[int]error) (stray, rest []outgoing, err error) {
	size := window
	for len(out) > 0 {
		l, err := p.take(ctx)
		if err != nil {
			return stray, out, err
		}
		n := min(size, len(out))
		unrouted, unconfirmed, err := l.send(ctx, exchange, key, mandatory, out[:n])
		stray = append(stray, unrouted...)
		if err == nil {
			p.give(l)
			out = out[n:]
			continue
		}
		p.discard(l)
		out = append(unconfirmed, out[n:]...)
		switch {
		case code(err) != amqp.PreconditionFailed && code(err) != amqp.ContentTooLarge:
			// What comes later would arrive out of order.
			return stray, out, err
		case n > 1:
			size = 1 // which of them it is shows when they go one by one
		default:
			failed[out[0].index] = fmt.Errorf("%w: %w", broker.ErrRejected, err)
			out = out[1:]
		}
	}
	return stray, nil, nil
}

// send publishes one window and waits for its confirms. What it returns as not
// confirmed has an error with it, and may have arrived all the same.
func (l *lane) send(ctx context.Context, exchange, key string, mandatory bool, out []outgoing) (stray, rest []outgoing, err error) {
	confirms := make([]*amqp.DeferredConfirmation, len(out))
	err = do(ctx, func() error {
		for i := range out {
			c, err := l.ch.PublishWithDeferredConfirm(exchange, key, mandatory, false, out[i].wire)
			if err != nil {
				return err
			}
			confirms[i] = c
		}
		return nil
	})
	if err != nil && ctx.Err() != nil {
		return nil, slices.Clone(out), err // confirms may still be written
	}
	var confirmed []outgoing
	for i, c := range confirms {
		acked := false
		if c != nil {
			var werr error
			if acked, werr = c.WaitContext(ctx); werr != nil {
				err = werr
			}
		}
		if acked {
			confirmed = append(confirmed, out[i])
		} else {
			rest = append(rest, out[i])
		}
	}
	if returned := l.returned(); len(returned) > 0 {
		for _, o := range confirmed {
			if returned[o.wire.MessageId] {
				stray = append(stray, o)
			}
		}
	}
	if len(rest) == 0 {
		return stray, nil, nil
	}
	return stray, rest, l.reason(err)
}

// returned are the ids of what no queue took, as far as was confirmed.
func (l *lane) returned() map[string]bool {
	var ids map[string]bool
	for {
		select {
		case r, ok := <-l.returns:
			if !ok {
				return ids
			}
			if ids == nil {
				ids = make(map[string]bool)
			}
			ids[r.MessageId] = true
		default:
			return ids
		}
	}
}

// reason is why something was not confirmed.
func (l *lane) reason(err error) error {
	select {
	case e := <-l.closed:
		if e != nil {
			return e
		}
	default:
	}
	if err != nil {
		return err
	}
	if l.ch.IsClosed() {
		return amqp.ErrClosed
	}
	return errors.New("RabbitMQ did not take it: a queue refused it, or its leader was lost")
}

// take returns an open channel in confirm mode.
func (p *publisher) take(ctx context.Context) (*lane, error) {
	p.mu.Lock()
	for len(p.idle) > 0 {
		l := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if !l.ch.IsClosed() {
			p.mu.Unlock()
			return l, nil
		}
	}
	p.mu.Unlock()
	c, err := p.b.main.get(ctx)
	if err != nil {
		return nil, err
	}
	ch, err := p.b.main.channel(ctx)
	if err != nil {
		return nil, err
	}
	l := &lane{
		ch:      ch,
		returns: ch.NotifyReturn(make(chan amqp.Return, window)),
		closed:  ch.NotifyClose(make(chan *amqp.Error, 1)),
		frame:   c.Config.FrameSize,
	}
	if err := l.requests.do(ctx, func() error { return ch.Confirm(false) }); err != nil {
		p.discard(l)
		return nil, fmt.Errorf("ask for confirms: %w", err)
	}
	return l, nil
}

// give puts a channel back for the next.
func (p *publisher) give(l *lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) < idleChannels {
		p.idle = append(p.idle, l)
		return
	}
	p.discard(l)
}

// discard closes a channel whose confirms nobody waits for any more. Returns that
// still come must not hold the connection up.
func (p *publisher) discard(l *lane) {
	go func() {
		for range l.returns {
		}
	}()
	go func() { _ = l.requests.do(context.Background(), l.ch.Close) }()
}
