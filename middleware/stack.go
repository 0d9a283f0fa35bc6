package middleware

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// StackConfig configures a Stack. Handler, Group, Service, Metrics and Logger
// are handed to every layer that names none of its own.
type StackConfig struct {
	// Handler is the handler's name. Required.
	Handler string
	// Group is the consumer group.
	Group string
	// Service is the service's name.
	Service string
	// Metrics may be nil.
	Metrics *Metrics
	// Logger defaults to slog.Default().
	Logger *slog.Logger

	// Recover configures both of the stack's Recover layers; SameGoroutine is
	// set by the stack.
	Recover RecoverConfig
	// Correlation configures Correlate.
	Correlation CorrelationConfig
	// Poison needs Publisher and Topic.
	Poison PoisonConfig
	// Park keeps the order of a key over a failure; left out when nil.
	Park *ParkConfig
	// Retry configures Retry.
	Retry RetryConfig
	// Timeout bounds one attempt; 0 leaves the layer out.
	Timeout time.Duration
	// Breaker is left out when nil.
	Breaker *BreakerConfig
	// RateLimit is left out when nil.
	RateLimit *RateLimitConfig
	// User is the team's own middleware, outermost first. It runs in each
	// attempt.
	User []message.HandlerMiddleware
	// Dedup is left out when nil.
	Dedup *DedupConfig
}

// Stack is the whole order of middleware around one handler: recover,
// correlation, metrics, poison, park, retry, recover for each attempt, rate
// limit, timeout, breaker, the team's own, dedup. A wait for the rate limit is no part of
// the attempt's time.
type Stack struct {
	chain  message.HandlerMiddleware
	layers []Layer
}

// NewStack builds the layers in their order and reports every setting that
// can't work.
func NewStack(cfg StackConfig) (*Stack, error) {
	b := stackBuilder{}
	if strings.TrimSpace(cfg.Handler) == "" {
		b.errs = append(b.errs, errors.New("middleware: Stack.Handler is empty: name the handler, such as \"charge-order\""))
	}
	if cfg.Timeout < 0 {
		b.errs = append(b.errs, fmt.Errorf("middleware: Stack.Timeout is %s: it must not be negative, 0 meaning none", cfg.Timeout))
	}

	outer, inner := cfg.Recover, cfg.Recover
	outer.SameGoroutine, inner.SameGoroutine = true, false
	outer.Logger, inner.Logger = loggerOr(outer.Logger, cfg.Logger), loggerOr(inner.Logger, cfg.Logger)
	cfg.Correlation.Group = nameOr(cfg.Correlation.Group, cfg.Group)

	p := cfg.Poison
	p.Handler, p.Group, p.Service = nameOr(p.Handler, cfg.Handler), nameOr(p.Group, cfg.Group), nameOr(p.Service, cfg.Service)
	p.Metrics, p.Logger = metricsOr(p.Metrics, cfg.Metrics), loggerOr(p.Logger, cfg.Logger)
	if p.MaxStackBytes == 0 {
		p.MaxStackBytes = cfg.Recover.MaxStackBytes
	}
	p = p.WithDefaults()

	r := cfg.Retry
	r.Handler, r.Metrics, r.Logger = nameOr(r.Handler, cfg.Handler), metricsOr(r.Metrics, cfg.Metrics), loggerOr(r.Logger, cfg.Logger)
	r = r.WithDefaults()

	b.add(Layer{Kind: KindRecover}, Recover(outer), nil)
	b.add(Layer{Kind: KindCorrelation}, Correlate(cfg.Correlation), nil)
	if cfg.Metrics != nil {
		b.add(Layer{Kind: KindMetrics}, cfg.Metrics.Middleware(cfg.Handler, cfg.Group), nil)
	}
	var parking *Parking
	var parkErr error
	if cfg.Park != nil {
		c := *cfg.Park
		c.Handler, c.Logger = nameOr(c.Handler, cfg.Handler), loggerOr(c.Logger, cfg.Logger)
		if parking, parkErr = Park(c); parkErr == nil {
			p.Parking = parking
		}
	}
	mw, err := Poison(p)
	b.add(Layer{Kind: KindPoison, Detail: poisonDetail(p), Deliveries: max(p.MaxDeliveries, 0)}, mw, err)
	if cfg.Park != nil {
		b.add(Layer{Kind: KindPark, Detail: "the later messages of a failed key go to the dead letters unrun"}, parking.Middleware, parkErr)
	}
	mw, err = Retry(r)
	b.add(Layer{
		Kind: KindRetry, Detail: retryDetail(r), Attempts: r.MaxAttempts, Takes: r.waits(), Elapsed: r.MaxElapsed,
		Redeliveries: len(r.Redeliver),
	}, mw, err)
	b.add(Layer{Kind: KindRecover, Detail: "each attempt"}, Recover(inner), nil)
	if cfg.RateLimit != nil {
		c := *cfg.RateLimit
		c.Handler, c.Metrics = nameOr(c.Handler, cfg.Handler), metricsOr(c.Metrics, cfg.Metrics)
		c = c.WithDefaults()
		mw, err = RateLimit(c)
		detail := ""
		if c.Limiter != nil {
			detail = fmt.Sprintf("%v a second, burst %d", c.Limiter.Limit(), c.Limiter.Burst())
		}
		b.add(Layer{Kind: KindRateLimit, Detail: detail, Takes: c.MaxWait}, mw, err)
	}
	if cfg.Timeout > 0 {
		mw, err = Timeout(TimeoutConfig{Timeout: cfg.Timeout, Handler: cfg.Handler, Metrics: cfg.Metrics, Logger: cfg.Logger})
		b.add(Layer{Kind: KindTimeout, Detail: cfg.Timeout.String(), Takes: cfg.Timeout}, mw, err)
	}
	if cfg.Breaker != nil {
		c := *cfg.Breaker
		c.Handler, c.Metrics, c.Logger = nameOr(c.Handler, cfg.Handler), metricsOr(c.Metrics, cfg.Metrics), loggerOr(c.Logger, cfg.Logger)
		c = c.WithDefaults()
		mw, err = Breaker(c)
		b.add(Layer{Kind: KindBreaker, Detail: fmt.Sprintf("%s: opens for %s after %d failures in a row", c.Name, c.OpenFor, c.Failures)}, mw, err)
	}
	for _, user := range cfg.User {
		if user != nil {
			l := LayerOf(user)
			l.Name, l.Detail = "user", l.Name
			b.add(l, user, nil)
		}
	}
	if cfg.Dedup != nil {
		c := *cfg.Dedup
		c.Handler, c.Metrics, c.Logger = nameOr(c.Handler, cfg.Handler), metricsOr(c.Metrics, cfg.Metrics), loggerOr(c.Logger, cfg.Logger)
		c = c.WithDefaults()
		mw, err = Dedup(c)
		l := Layer{Kind: KindDedup, Detail: fmt.Sprintf("lease %s, keys kept %s", c.Lease, c.Retention), Keeps: c.Retention}
		if s, ok := c.Store.(interface{ MarksBeforeWork() bool }); ok {
			l.MarksBeforeWork = s.MarksBeforeWork()
		}
		b.add(l, mw, err)
	}
	if err := errors.Join(b.errs...); err != nil {
		return nil, err
	}
	return &Stack{chain: Chain(b.chain...), layers: b.layers}, nil
}

// Middleware wraps h in the stack.
func (s *Stack) Middleware(h message.HandlerFunc) message.HandlerFunc { return s.chain(h) }

// Layers returns the layers, outermost first.
func (s *Stack) Layers() []Layer { return append([]Layer(nil), s.layers...) }

type stackBuilder struct {
	chain  []message.HandlerMiddleware
	layers []Layer
	errs   []error
}

func (b *stackBuilder) add(l Layer, mw message.HandlerMiddleware, err error) {
	if err != nil {
		b.errs = append(b.errs, err)
		return
	}
	if l.Name == "" {
		l.Name = string(l.Kind)
	}
	b.chain = append(b.chain, mw)
	b.layers = append(b.layers, l)
}

func poisonDetail(p PoisonConfig) string {
	if p.MaxDeliveries < 0 {
		return "to " + p.Topic
	}
	return fmt.Sprintf("to %s, at most %d deliveries", p.Topic, p.MaxDeliveries)
}

func retryDetail(r RetryConfig) string {
	detail := fmt.Sprintf("%d attempts, backoff %s to %s", r.MaxAttempts, r.Backoff.Base, r.Backoff.Cap)
	if len(r.Redeliver) > 0 {
		detail += fmt.Sprintf(", then again by the broker after %v", r.Redeliver)
	}
	if r.MaxElapsed > 0 {
		detail += fmt.Sprintf(", none begins after %s", r.MaxElapsed)
	}
	return detail
}

func nameOr(own, shared string) string {
	if own != "" {
		return own
	}
	return shared
}

func loggerOr(own, shared *slog.Logger) *slog.Logger {
	if own != nil {
		return own
	}
	return shared
}

func metricsOr(own, shared *Metrics) *Metrics {
	if own != nil {
		return own
	}
	return shared
}
