package middleware_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/middleware"
	"github.com/stretchr/testify/require"
)

// twoLevels is a poison around a retry of 2 attempts and the given delays.
func twoLevels(t testing.TB, dlq *sink, cfg middleware.RetryConfig) message.HandlerMiddleware {
	cfg.MaxAttempts = 2
	return middleware.Chain(
		must(t)(middleware.Poison(middleware.PoisonConfig{Publisher: dlq, Topic: "dlq", Handler: "h", Logger: quiet})),
		retry(t, cfg),
	)
}

// The nth delivery is held for the nth delay and counted; after the last one the
// message is dead-lettered with all of its attempts.
func TestRedeliverIsTheSecondLevel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dlq, h := newSink(), &failing{n: -1, err: errBoom}
		delays := []time.Duration{time.Minute, time.Hour}
		handle := twoLevels(t, dlq, middleware.RetryConfig{Redeliver: delays})(h.handle)
		began := time.Now()
		for n := 1; n <= 2; n++ {
			msg, d := delivered(newMessage("1"), n, nil)
			_, err := handle(msg)
			disposition, _ := middleware.DispositionOf(err)
			require.Equal(t, middleware.DispositionRedeliver, disposition)
			require.ErrorIs(t, err, errBoom)
			require.False(t, d.Released(), "it counts")
			held, set := d.NackDelay()
			require.True(t, set)
			require.GreaterOrEqual(t, held, delays[n-1])
			require.LessOrEqual(t, held, delays[n-1]+delays[n-1]/10)
			require.Empty(t, dlq.messages())
			time.Sleep(held)
		}
		msg, _ := delivered(newMessage("1"), 3, nil)
		_, err := handle(msg)
		require.NoError(t, err)
		require.Equal(t, 6, h.count(), "2 attempts in each of 3 deliveries, no more")
		dead := dlq.only(t)
		require.Equal(t, middleware.ReasonExhausted, dead.Metadata[middleware.DeadLetterReason])
		require.Equal(t, "6", dead.Metadata[middleware.DeadLetterAttempts])
		require.Equal(t, "3", dead.Metadata[middleware.DeadLetterDeliveries])
		first, err := time.Parse(time.RFC3339Nano, dead.Metadata[middleware.DeadLetterFirstFailedAt])
		require.NoError(t, err)
		require.WithinDuration(t, began, first, time.Second, "the first failure of the first delivery")
	})
}

// A delivery that a crash ended is counted by the broker, so it takes the place
// of one of the redeliveries.
func TestRedeliverCountsCrashes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dlq, h := newSink(), &failing{n: -1, err: errBoom}
		handle := twoLevels(t, dlq, middleware.RetryConfig{Redeliver: []time.Duration{time.Second, time.Minute}})(h.handle)
		msg, d := delivered(newMessage("1"), 2, nil) // the first one killed the process
		_, err := handle(msg)
		require.Error(t, err)
		held, _ := d.NackDelay()
		require.GreaterOrEqual(t, held, time.Minute)
		msg, _ = delivered(newMessage("1"), 4, nil) // and the third
		_, err = handle(msg)
		require.NoError(t, err)
		require.Equal(t, "4", dlq.only(t).Metadata[middleware.DeadLetterAttempts])
	})
}

func TestRedeliverCases(t *testing.T) {
	t.Parallel()
	minute := middleware.RetryConfig{Redeliver: []time.Duration{time.Minute}}
	for name, c := range map[string]struct {
		cfg   middleware.RetryConfig
		err   error
		count int // 0: no delivery in the context; -1: one that can't count
		calls int
		dead  string        // the reason, or ""
		held  time.Duration // at least
	}{
		"permanent":             {cfg: minute, err: middleware.Permanent(errBoom), count: 1, calls: 1, dead: middleware.ReasonPermanent},
		"skip":                  {cfg: minute, err: middleware.Skip(errBoom), count: 1, calls: 1},
		"a stock subscriber":    {cfg: minute, err: errBoom, calls: 2, dead: middleware.ReasonExhausted},
		"no count":              {cfg: minute, err: errBoom, count: -1, calls: 2, dead: middleware.ReasonExhausted},
		"a longer retry-after":  {cfg: middleware.RetryConfig{Redeliver: []time.Duration{time.Minute}, MaxElapsed: time.Second}, err: middleware.RetryAfter(errBoom, time.Hour), count: 1, calls: 1, held: time.Hour},
		"the time is used up":   {cfg: middleware.RetryConfig{Redeliver: []time.Duration{time.Minute}, MaxElapsed: time.Nanosecond, Backoff: middleware.Backoff{Base: time.Hour, Cap: time.Hour}}, err: errBoom, count: 1, calls: 1, held: time.Minute},
		"asked for by handlers": {cfg: middleware.RetryConfig{}, err: middleware.Redeliver(errBoom, time.Hour), count: 1, calls: 1, held: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dlq, h := newSink(), &failing{n: -1, err: fmt.Errorf("wrapped: %w", c.err)}
				msg := newMessage("1")
				var d *middleware.Delivery
				if c.count != 0 {
					msg, d = delivered(msg, max(c.count, 0), nil)
				}
				_, err := twoLevels(t, dlq, c.cfg)(h.handle)(msg)
				require.Equal(t, c.calls, h.count())
				if c.held == 0 {
					require.NoError(t, err)
				} else {
					require.Error(t, err)
					held, _ := d.NackDelay()
					require.GreaterOrEqual(t, held, c.held)
					require.False(t, d.Released())
				}
				if c.dead == "" {
					require.Empty(t, dlq.messages())
				} else {
					require.Equal(t, c.dead, dlq.only(t).Metadata[middleware.DeadLetterReason])
				}
			})
		})
	}
	_, err := middleware.Retry(middleware.RetryConfig{Redeliver: []time.Duration{time.Second, 0}})
	require.ErrorContains(t, err, "Retry.Redeliver[1] is 0s")
	require.NoError(t, middleware.Redeliver(nil, time.Second))
}

// A panic whose value says redeliver is a failure like any other.
func TestPanicWithARedelivery(t *testing.T) {
	t.Parallel()
	var p error = &middleware.PanicError{Value: middleware.Redeliver(errors.New("x"), time.Hour)}
	disposition, _ := middleware.DispositionOf(p)
	require.Equal(t, middleware.DispositionRetry, disposition)
	require.Equal(t, "redeliver", middleware.DispositionRedeliver.String())
}
