package middleware_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func breaker(t testing.TB, cfg middleware.BreakerConfig) message.HandlerMiddleware {
	cfg.Logger = quiet
	return must(t)(middleware.Breaker(cfg))
}

// Watermill fault 10: an open breaker defers by the time that it stays open; the
// messages never come back in a hot loop and consume no attempt.
func TestFault10OpenBreakerDefers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		var changes []bool
		h := &failing{n: 3, err: errBoom}
		run := breaker(t, middleware.BreakerConfig{
			Name: "gateway", Failures: 3, OpenFor: 20 * time.Second, Metrics: newMetrics(t, reg), Handler: "charge-order",
			OnChange: func(name string, open bool) {
				require.Equal(t, "gateway", name)
				changes = append(changes, open)
			},
		})(h.handle)
		for range 3 {
			_, err := run(newMessage("1"))
			require.Equal(t, errBoom, err)
		}
		require.Equal(t, []bool{true}, changes)
		time.Sleep(5 * time.Second)
		msg, d := delivered(newMessage("2"), 1, nil)
		_, err := run(msg)
		require.ErrorIs(t, err, middleware.ErrBreakerOpen)
		disposition, after := middleware.DispositionOf(err)
		require.Equal(t, middleware.DispositionDefer, disposition)
		require.GreaterOrEqual(t, after, 15*time.Second, "the time that is left")
		require.LessOrEqual(t, after, 17*time.Second)
		require.True(t, d.Released())
		require.Equal(t, 3, h.count(), "the handler is left alone")
		require.Equal(t, 1.0, value(t, reg, "headrace_deferred_total", "reason", "breaker"))

		time.Sleep(after)
		_, err = run(msg)
		require.NoError(t, err)
		require.Equal(t, []bool{true, false}, changes)
	})
}

// On a stock subscriber, where a nack comes back at once, the wait is in process.
func TestFault10OpenBreakerOnStockSubscriber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &failing{n: 1, err: errBoom}
		run := middleware.Chain(retry(t, middleware.RetryConfig{MaxAttempts: 1}),
			breaker(t, middleware.BreakerConfig{Failures: 1, OpenFor: 10 * time.Second}))(h.handle)
		start := time.Now()
		redeliveries := 0
		for {
			if _, err := run(newMessage("1")); err == nil {
				break
			}
			redeliveries++
		}
		require.LessOrEqual(t, redeliveries, 2)
		require.GreaterOrEqual(t, time.Since(start), 10*time.Second)
	})
}

// What says nothing about the dependency neither opens nor closes the breaker.
func TestBreakerNeutralErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		run := func(mw message.HandlerMiddleware, err error) error {
			_, got := mw(fail(err))(newMessage("1"))
			return got
		}
		mw := breaker(t, middleware.BreakerConfig{Failures: 1, OpenFor: time.Second})
		for range 5 {
			for _, err := range []error{middleware.Permanent(errBoom), middleware.Skip(errBoom), middleware.Defer(errBoom, 1)} {
				require.Equal(t, err, run(mw, err))
			}
		}
		require.Equal(t, errBoom, run(mw, errBoom))
		time.Sleep(2 * time.Second)
		require.Equal(t, middleware.DispositionPermanent, disposition(run(mw, middleware.Permanent(errBoom))), "a probe that proves nothing")
		require.Equal(t, errBoom, run(mw, errBoom), "the next probe runs, fails and opens it again")
		msg, _ := delivered(newMessage("1"), 1, nil)
		_, err := mw(succeed)(msg)
		require.ErrorIs(t, err, middleware.ErrBreakerOpen)
	})
}

func disposition(err error) middleware.Disposition {
	d, _ := middleware.DispositionOf(err)
	return d
}

// A panic and a Goexit are failures, and leave no probe open for ever.
func TestBreakerCountsCrashes(t *testing.T) {
	t.Parallel()
	for _, crash := range []func(){func() { panic("x") }, runtime.Goexit} {
		synctest.Test(t, func(t *testing.T) {
			bad := true
			run := middleware.Chain(middleware.Recover(middleware.RecoverConfig{}),
				breaker(t, middleware.BreakerConfig{Failures: 1, OpenFor: time.Second}))(
				func(*message.Message) ([]*message.Message, error) {
					if bad {
						crash()
					}
					return nil, nil
				})
			for range 2 { // closed, then as a probe
				_, err := run(newMessage("1"))
				var p *middleware.PanicError
				require.ErrorAs(t, err, &p)
				msg, _ := delivered(newMessage("1"), 1, nil)
				_, err = run(msg)
				require.ErrorIs(t, err, middleware.ErrBreakerOpen)
				time.Sleep(2 * time.Second)
			}
			bad = false
			_, err := run(newMessage("1"))
			require.NoError(t, err)
		})
	}
}

func TestBreakerValidates(t *testing.T) {
	t.Parallel()
	_, err := middleware.Breaker(middleware.BreakerConfig{Failures: -1, OpenFor: -1, Probes: -1})
	for _, want := range []string{"Failures is -1", "OpenFor is -1", "Probes is -1"} {
		require.ErrorContains(t, err, want)
	}
}

func ExampleBreaker() {
	breaker, err := middleware.Breaker(middleware.BreakerConfig{Name: "gateway", Failures: 1, OpenFor: 10 * time.Millisecond, Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	h := breaker(func(*message.Message) ([]*message.Message, error) { return nil, errors.New("gateway is down") })
	_, err = h(message.NewMessage("1", nil))
	fmt.Println(err)
	_, err = h(message.NewMessage("2", nil))
	fmt.Println(err, "-", errors.Is(err, middleware.ErrBreakerOpen))
	// Output:
	// gateway is down
	// circuit breaker is open: gateway - true
}

// A message that fails whenever the dependency works for others is given back as
// a failed delivery from the second time on; in an outage none is.
func TestBreakerCountsAMessageThatFailsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var states []middleware.BreakerState
		reg := prometheus.NewRegistry()
		bad := map[string]bool{"bad": true, "other": true}
		run := middleware.Chain(
			retry(t, middleware.RetryConfig{MaxAttempts: 5, Backoff: middleware.Backoff{Base: time.Millisecond, Cap: time.Millisecond}}),
			breaker(t, middleware.BreakerConfig{
				Failures: 2, OpenFor: time.Minute, Metrics: newMetrics(t, reg), Handler: "h",
				OnState: func(s middleware.BreakerState) { states = append(states, s) },
			}),
		)(func(msg *message.Message) ([]*message.Message, error) {
			if bad[msg.Metadata["event_id"]] {
				return nil, errBoom
			}
			return nil, nil
		})
		send := func(id string) (middleware.Disposition, bool) {
			msg, d := delivered(newMessage(id), 1, nil)
			_, err := run(msg)
			disposition, _ := middleware.DispositionOf(err)
			return disposition, d.Released()
		}
		for range 4 { // an outage: nobody is served
			disposition, released := send("bad")
			require.Equal(t, middleware.DispositionDefer, disposition)
			require.True(t, released)
			require.InDelta(t, 2, value(t, reg, "headrace_breaker_state", "handler", "h"), 0)
			time.Sleep(time.Minute + time.Second)
		}
		_, _ = send("good")
		require.InDelta(t, 0, value(t, reg, "headrace_breaker_state", "handler", "h"), 0)
		disposition, released := send("other")
		require.Equal(t, middleware.DispositionDefer, disposition, "its first time")
		require.True(t, released)
		time.Sleep(time.Minute + time.Second)
		_, _ = send("good")
		for _, id := range []string{"bad", "other"} {
			disposition, released = send(id)
			require.Equal(t, middleware.DispositionRedeliver, disposition, "the dependency worked for another in between")
			require.False(t, released, "it counts")
			time.Sleep(time.Minute + time.Second)
			_, _ = send("good")
		}
		bad["bad"] = false
		_, _ = send("bad")
		bad["bad"] = true
		disposition, _ = send("bad")
		require.Equal(t, middleware.DispositionDefer, disposition, "a success wipes it out")
		require.Equal(t, []middleware.BreakerState{middleware.BreakerOpen, middleware.BreakerHalfOpen, middleware.BreakerOpen}, states[:3])
	})
}
