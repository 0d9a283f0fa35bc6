package middleware

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/sony/gobreaker/v2"
)

// BreakerConfig configures Breaker. The zero value of a field means its default.
type BreakerConfig struct {
	// Name names the dependency in logs and errors. Default "breaker".
	Name string
	// Failures in a row open the breaker. Default 5.
	Failures int
	// OpenFor is how long it stays open before it lets probes through. Default
	// 30 s.
	OpenFor time.Duration
	// Probes is how many messages may run at once while it tries again; as many
	// successes close it. Default 1.
	Probes int
	// IsFailure tells which errors speak of a broken dependency. Default: those
	// with DispositionRetry. Any other error counts for neither side.
	IsFailure func(error) bool
	// OnChange is called when it opens (true) or closes (false); it must not
	// block. May be nil.
	OnChange func(name string, open bool)
	// OnState is called at each change of its state, one call at a time; it must
	// not block. It turns half-open with the first message after OpenFor, and not
	// by itself. May be nil.
	OnState func(BreakerState)
	// Handler is the name in metrics. Default: the router's handler name.
	Handler string
	// Metrics may be nil.
	Metrics *Metrics
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns c with its defaults filled in.
func (c BreakerConfig) WithDefaults() BreakerConfig {
	if c.Name == "" {
		c.Name = "breaker"
	}
	if c.Failures == 0 {
		c.Failures = 5
	}
	if c.OpenFor == 0 {
		c.OpenFor = 30 * time.Second
	}
	if c.Probes == 0 {
		c.Probes = 1
	}
	if c.IsFailure == nil {
		c.IsFailure = func(err error) bool {
			d, _ := DispositionOf(err)
			return d == DispositionRetry && !errors.Is(err, ErrShuttingDown)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that can't work.
func (c BreakerConfig) Validate() error {
	var errs []error
	if c.Failures < 1 {
		errs = append(errs, fmt.Errorf("middleware: Breaker.Failures is %d: it must be 1 or more", c.Failures))
	}
	if c.OpenFor <= 0 {
		errs = append(errs, fmt.Errorf("middleware: Breaker.OpenFor is %s: it must be above 0", c.OpenFor))
	}
	if c.Probes < 1 {
		errs = append(errs, fmt.Errorf("middleware: Breaker.Probes is %d: it must be 1 or more", c.Probes))
	}
	return errors.Join(errs...)
}

// BreakerState is what headrace_breaker_state shows.
type BreakerState int

// The states of a breaker.
const (
	// BreakerClosed: messages go through.
	BreakerClosed BreakerState = iota
	// BreakerHalfOpen: probes go through.
	BreakerHalfOpen
	// BreakerOpen: none go through.
	BreakerOpen
)

// ErrBreakerOpen is in the chain of the deferral of a message that came while
// the breaker was open.
var ErrBreakerOpen = errors.New("circuit breaker is open")

// errNeutral stands for an outcome that says nothing about the dependency.
var errNeutral = errors.New("neutral")

// Breaker defers messages while their dependency is broken: each comes again
// when the breaker is due to try once more, and none consumes an attempt. All
// handlers that the one returned middleware wraps share the breaker.
//
// A message that fails whenever its dependency works for others would open the
// breaker for ever. So a message that failed, met the open breaker, and does so
// again after the breaker had closed in between, is given back as a failed
// delivery (Redeliver), which PoisonConfig.MaxDeliveries bounds. Failures while
// the dependency serves nobody are never held against a message.
func Breaker(cfg BreakerConfig) (message.HandlerMiddleware, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b := &breaker{cfg: cfg, failed: map[string]uint64{}}
	cfg.Metrics.breaker(b.label(), BreakerClosed)
	b.gate = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:          cfg.Name,
		MaxRequests:   uint32(cfg.Probes),
		Timeout:       cfg.OpenFor,
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= uint32(cfg.Failures) },
		OnStateChange: b.changed,
		IsExcluded:    func(err error) bool { return errors.Is(err, errNeutral) },
	})
	return b.middleware, nil
}

type breaker struct {
	cfg       BreakerConfig
	gate      *gobreaker.TwoStepCircuitBreaker[struct{}]
	openUntil atomic.Int64 // unix nanoseconds

	mu     sync.Mutex
	closed uint64            // how often it closed
	failed map[string]uint64 // messages that failed and met it open: closed at that time
}

// maxBlamed bounds how many messages a breaker remembers.
const maxBlamed = 1000

// label is its handler in metrics.
func (b *breaker) label() string { return nameOr(b.cfg.Handler, b.cfg.Name) }

// blamed notes that a message failed and then met the open breaker. It tells
// whether the dependency worked for another since the last time.
func (b *breaker) blamed(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, known := b.failed[id]
	for other := range b.failed {
		if known || len(b.failed) < maxBlamed {
			break
		}
		delete(b.failed, other)
	}
	b.failed[id] = b.closed
	return known && at != b.closed
}

func (b *breaker) succeeded(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failed, id)
}

func (b *breaker) changed(name string, from, to gobreaker.State) {
	if to == gobreaker.StateOpen {
		b.openUntil.Store(time.Now().Add(b.cfg.OpenFor).UnixNano())
	}
	state := map[gobreaker.State]BreakerState{
		gobreaker.StateClosed: BreakerClosed, gobreaker.StateHalfOpen: BreakerHalfOpen, gobreaker.StateOpen: BreakerOpen,
	}[to]
	if state == BreakerClosed {
		b.mu.Lock()
		b.closed++
		b.mu.Unlock()
	}
	b.cfg.Metrics.breaker(b.label(), state)
	if b.cfg.OnState != nil {
		b.cfg.OnState(state)
	}
	wasOpen, open := from != gobreaker.StateClosed, to != gobreaker.StateClosed
	if wasOpen == open {
		return
	}
	b.cfg.Logger.Warn("circuit breaker changed", "breaker", name, "open", open, "open_for", b.cfg.OpenFor)
	if b.cfg.OnChange != nil {
		b.cfg.OnChange(name, open)
	}
}

func (b *breaker) middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (produced []*message.Message, err error) {
		done, refused := b.gate.Allow()
		if refused != nil {
			err := fmt.Errorf("%w: %s", ErrBreakerOpen, b.cfg.Name)
			rec := recordFrom(msg.Context())
			if rec != nil && !rec.lastFailed.IsZero() && b.blamed(messageID(msg)) {
				err = Redeliver(err, b.delay())
			} else {
				err = Defer(err, b.delay())
			}
			return nil, deferred(msg, err, handlerName(b.cfg.Handler, msg.Context()), b.cfg.Metrics)
		}
		returned := false
		defer func() {
			switch {
			case !returned:
				done(errors.New("panic"))
			case err == nil:
				b.succeeded(messageID(msg))
				done(nil)
			case b.cfg.IsFailure(err):
				done(err)
			default:
				done(errNeutral)
			}
		}()
		produced, err = next(msg)
		returned = true
		return produced, err
	}
}

// delay is the time until the breaker tries again, spread a little so that the
// messages don't all come back at once. While probes run it is a short time.
func (b *breaker) delay() time.Duration {
	left := max(time.Until(time.Unix(0, b.openUntil.Load())), min(b.cfg.OpenFor/10, time.Second))
	return left + jitter(left/10)
}
