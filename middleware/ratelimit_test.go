package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/middleware"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

func rateLimit(t testing.TB, cfg middleware.RateLimitConfig) message.HandlerMiddleware {
	return must(t)(middleware.RateLimit(cfg))
}

func TestRateLimitPaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		run := rateLimit(t, middleware.RateLimitConfig{Limiter: rate.NewLimiter(10, 1)})(succeed)
		start := time.Now()
		for range 21 {
			_, err := run(newMessage("1"))
			require.NoError(t, err)
		}
		require.InDelta(t, 2.0, time.Since(start).Seconds(), 0.01)
	})
}

// A turn that comes too late is waited for at the broker, and costs no token.
func TestRateLimitDefers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := rate.NewLimiter(rate.Every(10*time.Second), 1)
		run := rateLimit(t, middleware.RateLimitConfig{Limiter: limiter})(succeed)
		_, err := run(newMessage("1"))
		require.NoError(t, err)
		for range 3 {
			msg, d := delivered(newMessage("2"), 1, nil)
			_, err = run(msg)
			require.ErrorIs(t, err, middleware.ErrRateLimited)
			disposition, after := middleware.DispositionOf(err)
			require.Equal(t, middleware.DispositionDefer, disposition)
			require.InDelta(t, 10, after.Seconds(), 0.01)
			require.True(t, d.Released())
		}
		time.Sleep(10 * time.Second)
		_, err = run(newMessage("2"))
		require.NoError(t, err)
	})
}

// The wait leaves the handler at least half of its time.
func TestRateLimitLeavesTimeToWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := rate.NewLimiter(rate.Every(800*time.Millisecond), 1)
		run := middleware.Chain(timeout(t, time.Second, nil), rateLimit(t, middleware.RateLimitConfig{Limiter: limiter}))(succeed)
		_, err := run(newMessage("1"))
		require.NoError(t, err)
		msg, _ := delivered(newMessage("2"), 1, nil)
		_, err = run(msg)
		require.ErrorIs(t, err, middleware.ErrRateLimited)
	})
}

// B14: the wait ends with a shutdown.
func TestB14RateLimitStopsWaiting(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"cancel", "drain"} {
		synctest.Test(t, func(t *testing.T) {
			limiter := rate.NewLimiter(rate.Every(time.Hour), 1)
			limiter.Allow()
			run := rateLimit(t, middleware.RateLimitConfig{Limiter: limiter, MaxWait: 2 * time.Hour})(succeed)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			draining := make(chan struct{})
			time.AfterFunc(time.Second, func() {
				if how == "cancel" {
					cancel()
				} else {
					close(draining)
				}
			})
			msg := newMessage("1")
			msg.SetContext(ctx)
			msg, _ = delivered(msg, 1, draining)
			start := time.Now()
			_, err := run(msg)
			require.ErrorIs(t, err, middleware.ErrShuttingDown)
			require.Equal(t, time.Second, time.Since(start))
		})
	}
}

func TestRateLimitValidates(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]middleware.RateLimitConfig{
		"Limiter is nil": {},
		"burst 0":        {Limiter: rate.NewLimiter(1, 0)},
		"limit 0":        {Limiter: rate.NewLimiter(0, 1)},
		"MaxWait is -1":  {Limiter: rate.NewLimiter(1, 1), MaxWait: -1},
	} {
		_, err := middleware.RateLimit(cfg)
		require.ErrorContains(t, err, want)
	}
}

func ExampleRateLimit() {
	limit, err := middleware.RateLimit(middleware.RateLimitConfig{
		Limiter: rate.NewLimiter(rate.Every(time.Minute), 2), // two at once, then one a minute
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	h := limit(func(msg *message.Message) ([]*message.Message, error) {
		fmt.Println("handled", msg.UUID)
		return nil, nil
	})
	for _, id := range []string{"1", "2", "3"} {
		msg := message.NewMessage(id, nil)
		msg.SetContext(middleware.WithDelivery(context.Background(), middleware.NewDelivery("mail", 1, nil)))
		if _, err := h(msg); errors.Is(err, middleware.ErrRateLimited) {
			fmt.Println("deferred", id)
		}
	}
	// Output:
	// handled 1
	// handled 2
	// deferred 3
}
