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

// Layer is one layer of a Stack, for showing.
type Layer struct {
	// Name is the middleware's name, such as "retry".
	Name string
	// Detail is its effective settings in words; empty when there is none.
	Detail string
}

// Stack is the whole order of middleware around one handler: recover,
// correlation, metrics, poison, retry, recover for each attempt, timeout,
// breaker, rate limit, the team's own, dedup.
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

	b.add("recover", "", Recover(outer), nil)
	b.add("correlation", "", Correlate(cfg.Correlation), nil)
	if cfg.Metrics != nil {
		b.add("metrics", "", cfg.Metrics.Middleware(cfg.Handler, cfg.Group), nil)
	}
	mw, err := Poison(p)
	b.add("poison", poisonDetail(p), mw, err)
	mw, err = Retry(r)
	b.add("retry", retryDetail(r), mw, err)
	b.add("recover", "each attempt", Recover(inner), nil)
	if cfg.Timeout > 0 {
		mw, err = Timeout(TimeoutConfig{Timeout: cfg.Timeout, Handler: cfg.Handler, Metrics: cfg.Metrics, Logger: cfg.Logger})
		b.add("timeout", cfg.Timeout.String(), mw, err)
	}
	if cfg.Breaker != nil {
		c := *cfg.Breaker
		c.Handler, c.Metrics, c.Logger = nameOr(c.Handler, cfg.Handler), metricsOr(c.Metrics, cfg.Metrics), loggerOr(c.Logger, cfg.Logger)
		c = c.WithDefaults()
		mw, err = Breaker(c)
		b.add("breaker", fmt.Sprintf("%s: opens for %s after %d failures in a row", c.Name, c.OpenFor, c.Failures), mw, err)
	}
	if cfg.RateLimit != nil {
		c := *cfg.RateLimit
		c.Handler, c.Metrics = nameOr(c.Handler, cfg.Handler), metricsOr(c.Metrics, cfg.Metrics)
		mw, err = RateLimit(c)
		detail := ""
		if c.Limiter != nil {
			detail = fmt.Sprintf("%v a second, burst %d", c.Limiter.Limit(), c.Limiter.Burst())
		}
		b.add("rate limit", detail, mw, err)
	}
	for _, user := range cfg.User {
		if user != nil {
			b.add("user", "", user, nil)
		}
	}
	if cfg.Dedup != nil {
		c := *cfg.Dedup
		c.Handler, c.Metrics, c.Logger = nameOr(c.Handler, cfg.Handler), metricsOr(c.Metrics, cfg.Metrics), loggerOr(c.Logger, cfg.Logger)
		c = c.WithDefaults()
		mw, err = Dedup(c)
		b.add("dedup", fmt.Sprintf("lease %s, keys kept %s", c.Lease, c.Retention), mw, err)
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

func (b *stackBuilder) add(name, detail string, mw message.HandlerMiddleware, err error) {
	if err != nil {
		b.errs = append(b.errs, err)
		return
	}
	b.chain = append(b.chain, mw)
	b.layers = append(b.layers, Layer{Name: name, Detail: detail})
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
