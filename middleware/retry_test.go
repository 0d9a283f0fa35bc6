package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/middleware"
	"github.com/stretchr/testify/require"
)

// delays is a slog handler that keeps the attribute "delay" of what it is given.
type delays struct {
	mu  sync.Mutex
	got []time.Duration
}

func (d *delays) Enabled(context.Context, slog.Level) bool { return true }
func (d *delays) WithAttrs([]slog.Attr) slog.Handler       { return d }
func (d *delays) WithGroup(string) slog.Handler            { return d }
func (d *delays) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "delay" {
			d.mu.Lock()
			d.got = append(d.got, a.Value.Duration())
			d.mu.Unlock()
		}
		return true
	})
	return nil
}

func retry(t testing.TB, cfg middleware.RetryConfig) message.HandlerMiddleware {
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	return must(t)(middleware.Retry(cfg))
}

func TestRetryRunsUntilSuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &failing{n: 2, err: errBoom}
		var seen []int
		mw := retry(t, middleware.RetryConfig{})
		_, err := mw(func(msg *message.Message) ([]*message.Message, error) {
			seen = append(seen, middleware.AttemptFrom(msg.Context()))
			return h.handle(msg)
		})(newMessage("1"))
		require.NoError(t, err)
		require.Equal(t, []int{1, 2, 3}, seen)
	})
}

// A context that an attempt left on the message is not the next one's.
func TestRetryStartsEachAttemptAfresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		msg, attempts := newMessage("1"), 0
		before := msg.Context()
		_, err := retry(t, middleware.RetryConfig{})(func(msg *message.Message) ([]*message.Message, error) {
			require.NoError(t, msg.Context().Err())
			ctx, cancel := context.WithCancel(msg.Context())
			cancel()
			msg.SetContext(ctx)
			if attempts++; attempts < 3 {
				return nil, errBoom
			}
			return nil, nil
		})(msg)
		require.NoError(t, err)
		require.Equal(t, 3, attempts)
		require.Equal(t, before, msg.Context())
	})
}

func TestRetryGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &failing{n: -1, err: errBoom}
		_, err := retry(t, middleware.RetryConfig{})(h.handle)(newMessage("1"))
		var gaveUp *middleware.ExhaustedError
		require.ErrorAs(t, err, &gaveUp)
		require.ErrorIs(t, err, errBoom)
		require.Equal(t, middleware.DefaultMaxAttempts, gaveUp.Attempts)
		require.Equal(t, middleware.DefaultMaxAttempts, h.count())
	})
}

// Watermill fault 8: the backoff advances once an attempt, and jitter is on by
// default and full.
func TestFault8BackoffAdvancesOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log delays
		mw := retry(t, middleware.RetryConfig{
			MaxAttempts: 4, Backoff: middleware.Backoff{Base: 20 * time.Millisecond}, Logger: slog.New(&log),
			Transient: func(error) bool { return false },
		})
		longest := make([]time.Duration, 3)
		shortest := []time.Duration{time.Hour, time.Hour, time.Hour}
		for range 300 {
			log.got = nil
			start := time.Now()
			_, err := mw((&failing{n: -1, err: errBoom}).handle)(newMessage("1"))
			require.Error(t, err)
			require.Len(t, log.got, 3)
			var sum time.Duration
			for i, d := range log.got {
				longest[i], shortest[i] = max(longest[i], d), min(shortest[i], d)
				sum += d
			}
			require.Equal(t, sum, time.Since(start), "it sleeps what it says")
		}
		for i, ceiling := range []time.Duration{20, 40, 80} {
			ceiling *= time.Millisecond
			require.LessOrEqual(t, longest[i], ceiling)
			require.Greater(t, longest[i], ceiling*3/4)
			require.Less(t, shortest[i], ceiling/4)
		}
	})
}

// B17: attempt 80 neither overflows nor leaves [0, cap].
func TestB17BackoffStaysInBounds(t *testing.T) {
	t.Parallel()
	for _, b := range []middleware.Backoff{
		{Base: 100 * time.Millisecond, Cap: 30 * time.Second},
		{Base: 1, Cap: 1<<63 - 1},
		{Base: 1<<62 + 1, Cap: 1<<63 - 1},
		{Base: time.Second, Cap: time.Second},
	} {
		previous := time.Duration(0)
		for n := 1; n <= 200; n++ {
			ceiling := b.Ceiling(n)
			require.GreaterOrEqual(t, ceiling, previous)
			require.LessOrEqual(t, ceiling, b.Cap)
			d := b.Delay(n)
			require.GreaterOrEqual(t, d, time.Duration(0))
			require.LessOrEqual(t, d, ceiling)
			previous = ceiling
		}
		require.Equal(t, b.Cap, b.Ceiling(80))
	}
	b := middleware.Backoff{Base: 100 * time.Millisecond, Cap: 30 * time.Second}
	require.Equal(t, 800*time.Millisecond, b.Ceiling(4))
}

// B17: what MaxElapsed means.
func TestB17MaxElapsed(t *testing.T) {
	t.Parallel()
	slow := func(h *failing, d time.Duration) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			time.Sleep(d)
			return h.handle(msg)
		}
	}
	for name, c := range map[string]struct {
		cfg   middleware.RetryConfig
		takes time.Duration
		calls int
	}{
		"no retries":                       {middleware.RetryConfig{MaxAttempts: 1, MaxElapsed: time.Second}, 0, 1},
		"first attempt longer than it all": {middleware.RetryConfig{MaxElapsed: time.Second}, 2 * time.Second, 1},
		"no attempt begins later": {middleware.RetryConfig{
			MaxAttempts: 100, MaxElapsed: 10 * time.Second, Backoff: middleware.Backoff{Base: 1, Cap: 1},
		}, 3 * time.Second, 4}, // at 0, 3, 6 and 9 s
		"no bound": {middleware.RetryConfig{MaxAttempts: 7}, time.Hour, 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := &failing{n: -1, err: errBoom}
				_, err := retry(t, c.cfg)(slow(h, c.takes))(newMessage("1"))
				var gaveUp *middleware.ExhaustedError
				require.ErrorAs(t, err, &gaveUp)
				require.Equal(t, c.calls, h.count())
				require.GreaterOrEqual(t, gaveUp.Elapsed, c.takes*time.Duration(c.calls))
			})
		})
	}
}

// B17: permanent, skip and defer are returned at once, however wrapped.
func TestB17DispositionsAreNotRetried(t *testing.T) {
	t.Parallel()
	wrap := func(err error) error { return fmt.Errorf("outer: %w", fmt.Errorf("inner: %w", err)) }
	for want, err := range map[middleware.Disposition]error{
		middleware.DispositionPermanent: wrap(middleware.Permanent(errBoom)),
		middleware.DispositionSkip:      wrap(middleware.Skip(errBoom)),
		middleware.DispositionDefer:     wrap(middleware.Defer(errBoom, time.Second)),
	} {
		t.Run(want.String(), func(t *testing.T) {
			t.Parallel()
			h := &failing{n: -1, err: err}
			msg, _ := delivered(newMessage("1"), 1, nil)
			_, got := retry(t, middleware.RetryConfig{})(h.handle)(msg)
			require.Equal(t, 1, h.count())
			require.ErrorIs(t, got, errBoom)
			d, _ := middleware.DispositionOf(got)
			require.Equal(t, want, d)
		})
	}
}

func TestRetryAfterIsObeyed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		h := &failing{n: 1, err: middleware.RetryAfter(errBoom, 90*time.Second)}
		_, err := retry(t, middleware.RetryConfig{})(h.handle)(newMessage("1"))
		require.NoError(t, err)
		require.Equal(t, 90*time.Second, time.Since(start))
		h = &failing{n: -1, err: middleware.RetryAfter(errBoom, time.Second)}
		_, err = retry(t, middleware.RetryConfig{})(h.handle)(newMessage("1"))
		require.Error(t, err)
		require.Equal(t, middleware.DefaultMaxAttempts, h.count(), "the attempt counts")
	})
}

// A transient error consumes no attempt; an outage that lasts gives the message
// back instead of dead-lettering it.
func TestRetryTransient(t *testing.T) {
	t.Parallel()
	errDeadlock := errors.New("deadlock")
	transient := func(err error) bool { return errors.Is(err, errDeadlock) }
	synctest.Test(t, func(t *testing.T) {
		h := &failing{n: 8, err: errDeadlock}
		var last int
		_, err := retry(t, middleware.RetryConfig{MaxAttempts: 1, Transient: transient, TransientBudget: time.Hour})(
			func(msg *message.Message) ([]*message.Message, error) {
				last = middleware.AttemptFrom(msg.Context())
				return h.handle(msg)
			})(newMessage("1"))
		require.NoError(t, err)
		require.Equal(t, 9, h.count())
		require.Equal(t, 1, last)
	})
	synctest.Test(t, func(t *testing.T) {
		h := &failing{n: -1, err: errDeadlock}
		msg, d := delivered(newMessage("1"), 1, nil)
		start := time.Now()
		_, err := retry(t, middleware.RetryConfig{Transient: transient})(h.handle)(msg)
		disposition, after := middleware.DispositionOf(err)
		require.Equal(t, middleware.DispositionDefer, disposition)
		require.ErrorIs(t, err, errDeadlock)
		require.Equal(t, middleware.DefaultBackoffCap, after)
		require.LessOrEqual(t, time.Since(start), middleware.DefaultTransientBudget)
		require.True(t, d.Released())
	})
}

// B17 and B14: the sleep ends with the message's context and with the drain, at
// once, and as a deferral: a shutdown is no failure.
func TestB17SleepEnds(t *testing.T) {
	t.Parallel()
	long := middleware.RetryConfig{MaxAttempts: 100}
	late := middleware.RetryAfter(errBoom, time.Hour)
	check := func(t *testing.T, start time.Time, err error) {
		t.Helper()
		require.Equal(t, time.Second, time.Since(start))
		d, after := middleware.DispositionOf(err)
		require.Equal(t, middleware.DispositionDefer, d)
		require.Zero(t, after)
		require.ErrorIs(t, err, errBoom, "the last error is kept")
	}
	t.Run("cancel", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			msg := newMessage("1")
			msg.SetContext(ctx)
			start := time.Now()
			_, err := retry(t, long)((&failing{n: -1, err: late}).handle)(msg)
			check(t, start, err)
			require.ErrorIs(t, err, middleware.ErrShuttingDown)
		})
	})
	t.Run("lease lost", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			errLease := errors.New("lease lost")
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(errLease) })
			msg := newMessage("1")
			msg.SetContext(ctx)
			start := time.Now()
			_, err := retry(t, long)((&failing{n: -1, err: late}).handle)(msg)
			check(t, start, err)
			require.ErrorIs(t, err, errLease)
			require.NotErrorIs(t, err, middleware.ErrShuttingDown)
		})
	})
	t.Run("drain", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			draining := make(chan struct{})
			time.AfterFunc(time.Second, func() { close(draining) })
			msg, d := delivered(newMessage("1"), 1, draining)
			start := time.Now()
			_, err := retry(t, long)((&failing{n: -1, err: late}).handle)(msg)
			check(t, start, err)
			require.ErrorIs(t, err, middleware.ErrShuttingDown)
			require.True(t, d.Released())
			delay, set := d.NackDelay()
			require.True(t, set)
			require.Zero(t, delay, "another replica may take it at once")
		})
	})
}

func TestRetryValidates(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]middleware.RetryConfig{
		"MaxAttempts is -1":     {MaxAttempts: -1},
		"Cap is 1ms, below":     {Backoff: middleware.Backoff{Base: time.Second, Cap: time.Millisecond}},
		"Base is -1s":           {Backoff: middleware.Backoff{Base: -time.Second, Cap: time.Second}},
		"MaxElapsed is -1s":     {MaxElapsed: -time.Second},
		"TransientBudget is -1": {TransientBudget: -1},
	} {
		_, err := middleware.Retry(cfg)
		require.ErrorContains(t, err, want)
	}
}

func ExampleRetry() {
	retry, err := middleware.Retry(middleware.RetryConfig{
		MaxAttempts: 3,
		Backoff:     middleware.Backoff{Base: time.Millisecond, Cap: 10 * time.Millisecond},
		Logger:      quiet,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	h := retry(func(msg *message.Message) ([]*message.Message, error) {
		if n := middleware.AttemptFrom(msg.Context()); n < 3 {
			fmt.Println("attempt", n, "fails")
			return nil, errors.New("gateway is busy")
		}
		fmt.Println("attempt 3 succeeds")
		return nil, nil
	})
	_, err = h(message.NewMessage("1", nil))
	fmt.Println(err)
	// Output:
	// attempt 1 fails
	// attempt 2 fails
	// attempt 3 succeeds
	// <nil>
}
