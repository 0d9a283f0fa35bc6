package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/time/rate"
)

// RateLimitConfig configures RateLimit.
type RateLimitConfig struct {
	// Limiter gives the pace; one shared by several handlers limits their sum.
	// Required, with a burst of 1 or more.
	Limiter *rate.Limiter
	// MaxWait is how long a message waits in process for its turn; one whose
	// turn comes later is given back to the broker until then. It never waits
	// longer than half of the time that the message's context has left. Default
	// 1 s.
	MaxWait time.Duration
	// Handler is the name in metrics. Default: the router's handler name.
	Handler string
	// Metrics may be nil.
	Metrics *Metrics
}

// WithDefaults returns c with its defaults filled in.
func (c RateLimitConfig) WithDefaults() RateLimitConfig {
	if c.MaxWait == 0 {
		c.MaxWait = time.Second
	}
	return c
}

// Validate reports every field that can't work.
func (c RateLimitConfig) Validate() error {
	var errs []error
	switch {
	case c.Limiter == nil:
		errs = append(errs, errors.New("middleware: RateLimit.Limiter is nil: give it rate.NewLimiter(perSecond, burst)"))
	case c.Limiter.Burst() < 1 && c.Limiter.Limit() != rate.Inf:
		errs = append(errs, fmt.Errorf("middleware: RateLimit.Limiter has burst %d: it must be 1 or more", c.Limiter.Burst()))
	case c.Limiter.Limit() <= 0:
		errs = append(errs, fmt.Errorf("middleware: RateLimit.Limiter has limit %v: it must be above 0", c.Limiter.Limit()))
	}
	if c.MaxWait < 0 {
		errs = append(errs, fmt.Errorf("middleware: RateLimit.MaxWait is %s: it must not be negative", c.MaxWait))
	}
	return errors.Join(errs...)
}

// ErrRateLimited is in the chain of the deferral of a message whose turn comes
// too late to wait for in process.
var ErrRateLimited = errors.New("rate limit reached")

// RateLimit bounds how many attempts begin in a second. A deferral consumes no
// attempt.
func RateLimit(cfg RateLimitConfig) (message.HandlerMiddleware, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			turn := cfg.Limiter.Reserve()
			delay := turn.Delay()
			if !turn.OK() {
				// The limiter was changed to a burst of 0.
				delay = maxHold
			}
			if delay == 0 {
				return next(msg)
			}
			ctx := msg.Context()
			if delay > patience(ctx, cfg.MaxWait) {
				turn.Cancel()
				return nil, deferred(msg, Defer(ErrRateLimited, delay), handlerName(cfg.Handler, ctx), cfg.Metrics)
			}
			if stop := wait(ctx, drainingOf(DeliveryFrom(ctx)), delay); stop != nil {
				turn.Cancel()
				if errors.Is(stop, errDraining) || stopped(ctx) {
					stop = ErrShuttingDown
				}
				return nil, deferred(msg, Defer(fmt.Errorf("%w while waiting for the rate limit", stop), 0),
					handlerName(cfg.Handler, ctx), cfg.Metrics)
			}
			return next(msg)
		}
	}, nil
}

// patience is the longest wait that leaves a handler time to work.
func patience(ctx context.Context, limit time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(limit, time.Until(deadline)/2)
	}
	return limit
}
