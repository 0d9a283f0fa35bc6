package httpgateway

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/sony/gobreaker/v2"
)

// ErrOpen is in the chain of a call that was not made because the provider has
// failed too often of late.
var ErrOpen = errors.New("payment provider is unavailable: circuit breaker open")

// breaker keeps requests from a provider that can't serve them.
type breaker struct {
	inner *gobreaker.CircuitBreaker[answer]
	open  time.Duration
	// until is when the open state ends, in Unix nanoseconds.
	until atomic.Int64
}

// errCancelled marks a failure that is our caller's giving up, which says
// nothing about the provider.
type errCancelled struct{ error }

func (e errCancelled) Unwrap() error { return e.error }

func newBreaker(cfg Config) *breaker {
	b := &breaker{open: cfg.BreakerOpen}
	b.inner = gobreaker.NewCircuitBreaker[answer](gobreaker.Settings{
		Name:        "payment-provider",
		MaxRequests: 1,
		Timeout:     cfg.BreakerOpen,
		ReadyToTrip: func(c gobreaker.Counts) bool { return int64(c.ConsecutiveFailures) >= int64(cfg.BreakerFailures) },
		IsSuccessful: func(err error) bool {
			return !unhealthy(err)
		},
		IsExcluded: func(err error) bool {
			var cancelled errCancelled
			return errors.As(err, &cancelled)
		},
		OnStateChange: func(name string, from, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				b.until.Store(time.Now().Add(cfg.BreakerOpen).UnixNano())
			}
			cfg.Logger.Warn("circuit breaker changed", "breaker", name, "from", from.String(), "to", to.String())
		},
	})
	return b
}

// run calls fn unless the breaker is open; then the event is deferred for the
// rest of the open time, which is no failed attempt.
func (b *breaker) run(ctx context.Context, fn func() (answer, error)) (answer, error) {
	a, err := b.inner.Execute(func() (answer, error) {
		a, err := fn()
		// The parent context: the request's own timeout is the provider's fault.
		if err != nil && errors.Is(ctx.Err(), context.Canceled) {
			return a, errCancelled{err}
		}
		return a, err
	})
	switch {
	case errors.Is(err, gobreaker.ErrOpenState):
		return a, framework.Defer(ErrOpen, max(time.Until(time.Unix(0, b.until.Load())), time.Millisecond))
	case errors.Is(err, gobreaker.ErrTooManyRequests):
		// One request is trying just now: its answer is due within its timeout.
		return a, framework.Defer(fmt.Errorf("%w (half-open)", ErrOpen), min(b.open, time.Second))
	}
	return a, err
}
