package framework

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/time/rate"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/inbox"
	"github.com/headrace-go/headrace/framework/internal/failpoint"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// stackOf builds the middleware around h.
func (a *App) stackOf(h *handler) (*middleware.Stack, error) {
	if h.stack != nil {
		return h.stack, nil
	}
	p := h.policy
	cfg := middleware.StackConfig{
		Handler:     h.name,
		Group:       h.group,
		Service:     a.cfg.Service,
		Metrics:     a.metrics,
		Logger:      a.logger,
		Recover:     middleware.RecoverConfig{Go: h.crew.do},
		Correlation: middleware.CorrelationConfig{TracerProvider: a.cfg.Tracer, Group: h.group},
		Poison:      a.poisonConfig(h),
		Retry: middleware.RetryConfig{
			MaxAttempts: p.maxAttempts,
			Backoff:     p.backoff,
			MaxElapsed:  p.maxElapsed,
			Redeliver:   p.redeliver,
			Transient:   isTransient,
			Clock:       a.cfg.Clock,

			TransientBudget: p.transient,
		},
		Timeout: p.timeout,
		Breaker: h.pausing(p.breaker),
		User:    append([]message.HandlerMiddleware{a.gate(h)}, a.cfg.Middleware...),
	}
	var err error
	if cfg.Park, err = a.parkConfig(h); err != nil {
		return nil, fmt.Errorf("framework: handler %q: %w", h.name, err)
	}
	if p.ratePerSecond > 0 {
		cfg.RateLimit = &middleware.RateLimitConfig{
			Limiter: rate.NewLimiter(rate.Limit(p.ratePerSecond), max(p.rateBurst, 1)),
			MaxWait: rateWait(p),
		}
	}
	if h.kind == kindPlain && !p.noDedup {
		lease := a.cfg.Profile.Dedup.Lease
		if lease == 0 {
			lease = p.timeout + time.Minute
		}
		cfg.Dedup = &middleware.DedupConfig{
			Store:     a.dedup,
			Handler:   h.group,
			Key:       eventID,
			Lease:     lease,
			Retention: a.cfg.Profile.Dedup.Retention,
		}
	}
	stack, err := middleware.NewStack(cfg)
	if err != nil {
		return nil, fmt.Errorf("framework: handler %q: %w", h.name, err)
	}
	h.stack = stack
	return stack, nil
}

// rateWait is longer than the wait of the last of all messages that can wait for
// their turn at once, so that none is given back for it: the lease is renewed
// meanwhile.
func rateWait(p policy) time.Duration {
	turns := 2 * float64(p.concurrency+1) / p.ratePerSecond
	return time.Second + time.Duration(min(turns, (24*time.Hour).Seconds())*float64(time.Second))
}

func (a *App) poisonConfig(h *handler) middleware.PoisonConfig {
	return middleware.PoisonConfig{
		Publisher:     a.cfg.Broker.Publisher(),
		Topic:         broker.DeadLetterTopic(h.group),
		Source:        h.event.Topic,
		Handler:       h.name,
		Group:         h.group,
		Service:       a.cfg.Service,
		MaxDeliveries: h.policy.maxDeliveries,
		MaxBytes:      a.cfg.Broker.Features().MaxMessageBytes,
		Metrics:       a.metrics,
		Logger:        a.logger,
		Clock:         a.cfg.Clock,
	}
}

// process is what the router runs for h: the stack around the handler, on a
// message whose envelope has been opened.
func (a *App) process(h *handler, stack *middleware.Stack) message.NoPublishHandlerFunc {
	guarded := middleware.Chain(
		middleware.Recover(middleware.RecoverConfig{SameGoroutine: true, Logger: a.logger}),
		a.openEnvelope,
		newIntake(h.policy).middleware,
		stack.Middleware,
	)(func(msg *message.Message) ([]*message.Message, error) {
		return nil, h.invoke(msg.Context(), openedFrom(msg.Context()).env)
	})
	handle := func(msg *message.Message) error {
		h.inFlight.Add(1)
		defer h.inFlight.Add(-1)
		_, err := guarded(msg)
		if err == nil && h.kind == kindPlain { // the others' point lies right after their commit
			failpoint.Hit("handler.committed")
			failpoint.Hit("handler.committed." + h.name)
		}
		return err
	}
	// The router has a goroutine for each message, whose stack would have to grow.
	return func(msg *message.Message) error { return h.crew.wait(func() error { return handle(msg) }) }
}

// opened is a message's envelope, or why it has none.
type opened struct {
	env events.Envelope
	err error
}

type openedKey struct{}

func openedFrom(ctx context.Context) *opened {
	o, _ := ctx.Value(openedKey{}).(*opened)
	if o == nil {
		return &opened{err: errors.New("framework: the message was not opened")}
	}
	return o
}

// openEnvelope decodes the message once, outermost, so that every layer finds
// the event's ids in the metadata also where the sender set none. What it finds
// there it leaves alone.
func (a *App) openEnvelope(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		o := &opened{}
		o.env, o.err = events.Decode(msg.Payload)
		if o.err == nil {
			for k, v := range o.env.Headers() {
				if msg.Metadata.Get(k) == "" {
					msg.Metadata.Set(k, v)
				}
			}
		}
		msg.SetContext(a.Context(context.WithValue(msg.Context(), openedKey{}, o)))
		return next(msg)
	}
}

// gate decides whether the message is the handler's at all.
func (a *App) gate(h *handler) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if err := a.withdrawn(h, msg); err != nil { // with ParkKey it ends further out
				return nil, err
			}
			if err := a.admit(h, openedFrom(msg.Context())); err != nil {
				return nil, err
			}
			return next(msg)
		}
	}
}

func (a *App) admit(h *handler, o *opened) error {
	if o.err != nil {
		return Permanent(fmt.Errorf("decode the envelope: %w", o.err))
	}
	env := o.env
	if env.Type != h.event.Name || !sameMajor(env.Version, h.event.Version) {
		if !a.othersOn(h, env) {
			return Permanent(fmt.Errorf("handler %q of topic %q takes %s %s: %w", h.name, h.event.Topic, h.event.Name, h.event.Version, a.misplaced(h, env)))
		}
		return middleware.SkipBecause(middleware.SkipFiltered, fmt.Errorf("%w: %q takes %s %s, not %s %s", ErrFiltered, h.name, h.event.Name, h.event.Version, env.Type, env.Version))
	}
	if limit := h.policy.maxAge; limit > 0 {
		if age := a.now().Sub(env.Timestamp); age > limit {
			return middleware.SkipBecause(middleware.SkipStale, fmt.Errorf("%w: %s %s is %s old, handler %q takes %s", ErrStale, env.Type, env.ID, age.Round(time.Second), h.name, limit))
		}
	}
	return nil
}

// othersOn tells whether an event that is not of h's type has its place on h's
// topic all the same: its type was defined on that topic, which several share. A
// topic that is one type's own has room for another major version of it only
// where a handler of this service takes that, else nobody would miss it.
func (a *App) othersOn(h *handler, env events.Envelope) bool {
	d, known := a.registry.Lookup(env.Type, env.Version)
	if !known || d.Topic != h.event.Topic {
		return false
	}
	if d.Name != h.event.Name || d.Topic != d.Name {
		return true
	}
	return slices.ContainsFunc(a.handlers, func(o *handler) bool {
		return o.event.Topic == d.Topic && o.event.Name == d.Name && sameMajor(o.event.Version, env.Version)
	})
}

// misplaced says why an event does not belong on h's topic.
func (a *App) misplaced(h *handler, env events.Envelope) error {
	if env.Type == h.event.Name {
		return &events.DecodeError{Code: events.CodeUnknownVersion, Field: "version", Value: env.Version, Err: fmt.Errorf("%s %s on topic %q: no handler of this service takes that major version", env.Type, env.Version, h.event.Topic)}
	}
	fault := &events.DecodeError{Code: events.CodeUnknownType, Field: "type", Value: env.Type}
	if d, known := a.registry.Lookup(env.Type, env.Version); known {
		fault.Err = fmt.Errorf("%s %s belongs on topic %q, not on %q", env.Type, env.Version, d.Topic, h.event.Topic)
	} else {
		fault.Err = fmt.Errorf("this service has not registered %s %s for topic %q", env.Type, env.Version, h.event.Topic)
	}
	return fault
}

func sameMajor(a, b string) bool {
	ma, _, _ := strings.Cut(a, ".")
	mb, _, _ := strings.Cut(b, ".")
	return ma == mb
}

// eventID is the idempotency key: the envelope's id, which the sender's headers
// can't contradict.
func eventID(msg *message.Message) string {
	if o := openedFrom(msg.Context()); o.err == nil {
		return o.env.ID
	}
	return msg.UUID
}

func (a *App) takeInboxRow(ctx context.Context, tx *sql.Tx, h *handler, env events.Envelope) (fresh bool, err error) {
	fresh, err = inbox.Insert(ctx, tx, a.cfg.Dialect, h.group, env.ID, a.now())
	if err == nil {
		trialFrom(ctx).inbox(fresh, true)
		err = a.leaveLine(ctx, tx, h)
	}
	return fresh, err
}

func (a *App) seen(ctx context.Context, tx *sql.Tx, h *handler, env events.Envelope) (bool, error) {
	seen, err := inbox.Handled(ctx, tx, a.cfg.Dialect, h.group, env.ID)
	if err == nil {
		trialFrom(ctx).inbox(!seen, false)
	}
	if err == nil && seen {
		err = a.leaveLine(ctx, tx, h)
	}
	return seen, err
}
