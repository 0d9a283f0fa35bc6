package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Defaults of PoisonConfig.
const (
	DefaultMaxDeliveries       = 10
	DefaultDeadLetterTimeout   = 10 * time.Second
	DefaultDeadLetterNackBase  = time.Second
	DefaultDeadLetterNackLimit = 30 * time.Second
)

// PoisonConfig configures Poison.
type PoisonConfig struct {
	// Publisher takes the dead letters. Required. Its Publish must return nil
	// only when the broker has confirmed.
	Publisher message.Publisher
	// Topic is where they go. Required.
	Topic string
	// Handler is the name in metadata and metrics. Default: the router's handler
	// name.
	Handler string
	// Source is the topic that the dead letter names as its own. Default: the
	// topic that the router's handler subscribes to. Set it where the same handler
	// reads a second topic, of redrives say.
	Source string
	// Group is the consumer group. Default: the Delivery's.
	Group string
	// Service is the service's name. Default: none.
	Service string
	// MaxDeliveries is how often a message may be handed out; beyond it the
	// message is dead-lettered without running the handler, since one that kills
	// the process leaves no other trace. Default 10; negative means no limit.
	// Nothing is counted where the subscriber gives no Delivery.
	MaxDeliveries int
	// PublishTimeout bounds one publish of a dead letter. Default 10 s.
	PublishTimeout time.Duration
	// NackDelay spaces the redeliveries while dead letters can't be published;
	// it grows with the outage. Default base 1 s, cap 30 s.
	NackDelay Backoff
	// MaxStackBytes bounds the stack of a panic. Default 8 KiB; negative keeps
	// none.
	MaxStackBytes int
	// MaxBytes is the largest message, metadata included, that Publisher takes. A
	// dead letter above it leaves out the stack, the error chain, the story before
	// this one and the error's text, in this order, until it fits. Default 0: no
	// limit.
	MaxBytes int
	// Parking keeps the order of a key over a failure; its Middleware must stand
	// inside. Default: none.
	Parking *Parking
	// Metrics may be nil.
	Metrics *Metrics
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// Clock defaults to time.Now.
	Clock func() time.Time
}

// WithDefaults returns c with its defaults filled in.
func (c PoisonConfig) WithDefaults() PoisonConfig {
	if c.MaxDeliveries == 0 {
		c.MaxDeliveries = DefaultMaxDeliveries
	}
	if c.PublishTimeout == 0 {
		c.PublishTimeout = DefaultDeadLetterTimeout
	}
	c.NackDelay = c.NackDelay.orElse(Backoff{Base: DefaultDeadLetterNackBase, Cap: DefaultDeadLetterNackLimit})
	if c.MaxStackBytes == 0 {
		c.MaxStackBytes = DefaultMaxStackBytes
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return c
}

// Validate reports every field that can't work.
func (c PoisonConfig) Validate() error {
	var errs []error
	if c.Publisher == nil {
		errs = append(errs, errors.New("middleware: Poison.Publisher is nil: give it the publisher that takes the dead letters"))
	}
	if strings.TrimSpace(c.Topic) == "" {
		errs = append(errs, errors.New("middleware: Poison.Topic is empty: name the dead letters' topic, such as \"payments.charge-order.dlq\""))
	}
	if c.PublishTimeout < 0 {
		errs = append(errs, fmt.Errorf("middleware: Poison.PublishTimeout is %s: it must not be negative", c.PublishTimeout))
	}
	errs = append(errs, c.NackDelay.validate("Poison.NackDelay"))
	return errors.Join(errs...)
}

// ErrDeadLetterUnpublished is in the chain of the deferral of a message whose
// dead letter the broker did not confirm.
var ErrDeadLetterUnpublished = errors.New("dead letter not published")

// Poison settles what its handler could not. By the error's disposition:
//
//   - A permanent error, and a plain one once the Retry inside gave up: a copy
//     goes to Topic, with the same id, bytes and metadata and the DeadLetter
//     keys, on a context that outlives a shutdown. Only when the publisher has
//     confirmed it is nil returned, so that the router acks. Else the message is
//     nacked with a growing delay.
//   - A skip: nil is returned; it is counted and logged.
//   - A redelivery: the error is returned, so that the router nacks; the delivery
//     counts, and the message comes again after the delay.
//   - A deferral, a shutdown, a cancelled message context: the error is
//     returned, so that the router nacks; uncounted and after the deferral's
//     delay where the subscriber gives a Delivery, else after waiting here.
//
// With Parking, the message stands in its key's line before its dead letter is
// published; while that can't be written the message is nacked as above.
//
// A panic that reaches it is dead-lettered; so is a runtime.Goexit, and since
// that takes the router's ack with it Poison then acks by itself.
func Poison(cfg PoisonConfig) (message.HandlerMiddleware, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		p := &poison{PoisonConfig: cfg, next: next}
		return p.handle
	}, nil
}

type poison struct {
	PoisonConfig
	next   message.HandlerFunc
	outage outage
}

func (p *poison) handle(msg *message.Message) ([]*message.Message, error) {
	rec, old := enter(msg)
	ctx := msg.Context()
	defer msg.SetContext(old)
	rec.settled = true
	d := DeliveryFrom(ctx)
	o := original{uuid: msg.UUID, payload: msg.Payload}

	discarded := p.Parking != nil && p.Parking.discards(msg) // nothing that could fail for its own sake
	if d != nil && p.MaxDeliveries > 0 && d.Count() > p.MaxDeliveries && !discarded {
		err := fmt.Errorf("delivery %d, at most %d: %w", d.Count(), p.MaxDeliveries, ErrDeliveriesExhausted)
		return nil, p.settle(msg, o, rec, d, Permanent(err))
	}

	returned := false
	defer func() {
		if returned {
			return
		}
		msg.SetContext(ctx)
		if p.settle(msg, o, rec, d, newPanicError(nil, p.MaxStackBytes)) == nil {
			msg.Ack()
		} else {
			msg.Nack()
		}
	}()
	produced, err := protect(p.next, msg, p.MaxStackBytes)
	returned = true
	if err == nil {
		return produced, nil
	}
	msg.SetContext(ctx)
	return nil, p.settle(msg, o, rec, d, err)
}

// settle turns a failure into what the router must do: nil to ack, an error to
// nack.
func (p *poison) settle(msg *message.Message, o original, rec *record, d *Delivery, err error) error {
	ctx := msg.Context()
	handler := handlerName(p.Handler, ctx)
	disposition, after := DispositionOf(err)
	switch {
	case disposition == DispositionSkip:
		rec.outcome = outcomeSkipped
		p.Metrics.skipped(handler, err)
		level := slog.LevelInfo
		if isFiltered(err) {
			level = slog.LevelDebug // the everyday of a topic with several types
		}
		p.Logger.Log(ctx, level, "message skipped", withIDs(o.uuid, msg, "handler", handler, "reason", err)...)
		return nil
	case disposition == DispositionDefer, disposition == DispositionRedeliver:
		return p.giveBack(msg, rec, handler, err, after)
	case errors.Is(err, ErrShuttingDown), p.interrupted(ctx, d, disposition, err):
		return p.giveBack(msg, rec, handler, Defer(fmt.Errorf("%w: %w", ErrShuttingDown, err), 0), 0)
	}
	return p.bury(msg, o, rec, d, handler, err)
}

// interrupted tells whether err comes from the end of the message's context or
// of the subscriber rather than from the handler. A permanent error found on the
// way into a shutdown stays one; after a lost lease another consumer finds it.
func (p *poison) interrupted(ctx context.Context, d *Delivery, disposition Disposition, err error) bool {
	cancelled := errors.Is(err, context.Canceled)
	if ctx.Err() != nil {
		return disposition != DispositionPermanent || cancelled || !stopped(ctx)
	}
	return cancelled && isDraining(d)
}

func (p *poison) giveBack(msg *message.Message, rec *record, handler string, err error, after time.Duration) error {
	rec.outcome = outcomeOfGiveBack(err)
	p.Metrics.gaveBack(handler, err)
	p.Logger.InfoContext(msg.Context(), "message given back", withIDs(msg.UUID, msg, "handler", handler,
		"delay", after, "reason", err)...)
	giveBack(msg, err, after)
	return err
}

// firstFailure is when the message failed first: before its replay, where it has
// one behind it.
func firstFailure(msg *message.Message, here time.Time) time.Time {
	if msg.Metadata[DeadLetterRedriveCount] == "" {
		return here
	}
	before, err := time.Parse(time.RFC3339Nano, msg.Metadata[DeadLetterFirstFailedAt])
	if err != nil || before.After(here) {
		return here
	}
	return before
}

// bury publishes the dead letter. It returns nil only once that is confirmed.
func (p *poison) bury(msg *message.Message, o original, rec *record, d *Delivery, handler string, err error) error {
	ctx := msg.Context()
	now := p.Clock()
	s := story{
		reason: reasonOf(err), err: err, handler: handler,
		topic: nameOr(p.Source, message.SubscribeTopicFromCtx(ctx)), group: groupName(p.Group, d), service: p.Service,
		attempts: int(rec.attempt.Load()), first: rec.firstFailed, last: rec.lastFailed,
		stackLimit: p.MaxStackBytes,
	}
	if d != nil {
		s.deliveries = d.Count()
	}
	if s.attempts == 0 && s.reason != ReasonDeliveriesExhausted && s.reason != ReasonParked {
		s.attempts = 1 // no Retry inside
	}
	s.attempts += rec.earlier
	if s.first.IsZero() {
		s.first, s.last = now, now
	}
	s.first = firstFailure(msg, s.first)
	var pubErr error
	if p.Parking != nil {
		s.parking, pubErr = p.Parking.bury(ctx, msg, err) // before the dead letter: a crash in between brings the message again
	}
	if pubErr == nil {
		pubErr = p.publish(ctx, fitted(deadLetter(msg, o, s), p.MaxBytes))
	}
	if pubErr != nil {
		delay := p.outage.failed(now, p.NackDelay)
		p.Metrics.deadLetterFailed(handler)
		p.Logger.ErrorContext(ctx, "dead letter not published, message stays in its queue", withIDs(o.uuid, msg, "handler", handler,
			"dead_letter_topic", p.Topic, "delay", delay, "error", pubErr, "cause", err)...)
		return p.giveBack(msg, rec, handler, Defer(fmt.Errorf("%w to %q: %w (it failed with: %w)",
			ErrDeadLetterUnpublished, p.Topic, pubErr, err), delay), delay)
	}
	p.outage.ended()
	rec.outcome = outcomeDeadLettered
	p.Metrics.deadLettered(handler, s.reason)
	level := slog.LevelWarn // one that is parked is no failure of its own
	if s.reason != ReasonParked {
		level = slog.LevelError
		span := trace.SpanFromContext(ctx)
		span.RecordError(err)
		span.SetStatus(codes.Error, "dead-lettered: "+s.reason)
	}
	p.Logger.Log(ctx, level, "message dead-lettered", withIDs(o.uuid, msg, "handler", handler,
		"dead_letter_topic", p.Topic, "reason", s.reason, "attempts", s.attempts, "deliveries", s.deliveries, "error", err)...)
	return nil
}

// publish bounds a publisher that may ignore its context. A publish that is
// given up may still arrive: a dead letter can then come twice, but not be lost.
func (p *poison) publish(ctx context.Context, dead *message.Message) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.PublishTimeout)
	defer cancel()
	dead.SetContext(ctx)
	done := make(chan error, 1)
	go func() {
		err := errors.New("publisher did not return")
		defer func() {
			if v := recover(); v != nil {
				err = newPanicError(v, p.MaxStackBytes)
			}
			done <- err
		}()
		err = p.Publisher.Publish(p.Topic, dead)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("no confirmation within %s: %w", p.PublishTimeout, ctx.Err())
	}
}

// outage grows the delay with the length of an outage, not with the number of
// messages that meet it.
type outage struct {
	mu    sync.Mutex
	level int
	until time.Time
}

// failed returns the delay for a publish that failed now: at least half of the
// backoff's ceiling, so that attempts are spaced.
func (o *outage) failed(now time.Time, b Backoff) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.level == 0 || !now.Before(o.until) {
		o.level++
		o.until = now.Add(b.Ceiling(o.level) / 2)
	}
	half := b.Ceiling(o.level) / 2
	return half + jitter(half)
}

func (o *outage) ended() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.level = 0
}
