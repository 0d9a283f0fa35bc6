package framework_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// A dependency that is down opens the breaker: the handler is not fed any more,
// the backlog stays where it is, one message at a time probes, and when the
// dependency is back all are handled. No message is dead-lettered, or given back
// over and over.
func TestABreakerPausesFetching(t *testing.T) {
	t.Parallel()
	onStages(t, func(c *framework.Config) { c.Profile.Delivery.MaxDeliveries = few(c.Broker, 3) }, func(t *testing.T, f *fixture) {
		const n, workers, openFor = 200, 4, 300 * time.Millisecond
		var down atomic.Bool
		var calls, running, most, probes atomic.Int32
		down.Store(true)
		type change struct {
			to middleware.BreakerState
			at time.Time
		}
		states := make(chan change, 1000)
		framework.Handle(f.app, made, "one", func(context.Context, events.Event[thing]) error {
			calls.Add(1)
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			if down.Load() {
				return errBroken
			}
			return nil
		}, framework.Concurrency(workers), framework.MaxAttempts(100), framework.Breaker(middleware.BreakerConfig{
			Failures: 3, OpenFor: openFor, OnState: func(s middleware.BreakerState) {
				if s == middleware.BreakerHalfOpen {
					probes.Add(1)
				}
				states <- change{s, time.Now()}
			},
		}))
		f.start()
		for i := range n {
			f.Publish(made.New(fmt.Sprint(i), thing{Name: "x"}))
		}
		opened := await(t, states, "the opening")
		require.Equal(t, middleware.BreakerOpen, opened.to)
		for range 3 { // three probes that fail
			probe := await(t, states, "a probe")
			require.Equal(t, middleware.BreakerHalfOpen, probe.to)
			require.GreaterOrEqual(t, probe.at.Sub(opened.at), openFor)
			opened = await(t, states, "its failure")
			require.Equal(t, middleware.BreakerOpen, opened.to)
		}
		require.Positive(t, f.metric("headrace_breaker_state", map[string]string{"handler": "one"}))
		// Read in this order: a probe may begin between the two.
		ran := calls.Load()
		require.LessOrEqual(t, ran, 2*workers+probes.Load(), "only probes run")
		deferred, _ := f.series("headrace_deferred_total", map[string]string{"reason": "breaker"})
		require.LessOrEqual(t, deferred, float64(2*workers+probes.Load()), "no churn: what had begun was given back, and each probe")
		lag, err := f.Broker().Admin().Stats(t.Context(), subscriptionOf("one"))
		require.NoError(t, err)
		require.EqualValues(t, n, lag.Lag+lag.Pending, "all of it is still there")

		down.Store(false)
		f.Idle()
		require.Zero(t, f.metric("headrace_breaker_state", map[string]string{"handler": "one"}))
		require.InDelta(t, n, f.metric("headrace_messages_total", map[string]string{"outcome": "handled"}), 0)
		require.Empty(t, f.DeadLetters("things.one"))
		require.LessOrEqual(t, most.Load(), int32(workers))
	})
}

// A message that fails while its dependency works for the others opens the
// breaker again and again; it is dead-lettered in the end, not for ever in the
// way.
func TestABreakerIsNotHeldOpenByOneMessage(t *testing.T) {
	t.Parallel()
	onStages(t, func(c *framework.Config) { c.Profile.Delivery.MaxDeliveries = few(c.Broker, 2) }, func(t *testing.T, f *fixture) {
		framework.Handle(f.app, made, "one", func(_ context.Context, e events.Event[thing]) error {
			if e.Data.Name == "bad" {
				return errBroken
			}
			return nil
		}, framework.Concurrency(1), framework.MaxAttempts(5), framework.Breaker(middleware.BreakerConfig{Failures: 2, OpenFor: 30 * time.Millisecond}))
		f.start()
		f.Publish(made.New("k", thing{Name: "bad"}))
		sent := 0
		for deadline := time.Now().Add(frameworktest.Timeout); len(f.DeadLetters("things.one")) == 0; sent++ {
			require.True(t, time.Now().Before(deadline), "it is never dead-lettered")
			f.Publish(made.New("k", thing{Name: "good"}))
			<-time.After(20 * time.Millisecond) // the others' pace
		}
		f.Idle()
		require.InDelta(t, sent, f.metric("headrace_messages_total", map[string]string{"outcome": "handled"}), 0)
		// Which budget ends first depends on how often a good message closes the
		// breaker between two of its attempts.
		require.Contains(t, []string{middleware.ReasonDeliveriesExhausted, middleware.ReasonExhausted}, f.DeadLetters("things.one")[0].Reason)
	})
}

// The rate limit and the bound on what runs hold under a backlog, and no message
// is given back for them.
func TestRateAndConcurrencyHoldUnderLoad(t *testing.T) {
	t.Parallel()
	onStages(t, nil, func(t *testing.T, f *fixture) {
		const perSecond, burst, workers = 50, 5, 7
		var running, most, calls atomic.Int32
		framework.Handle(f.app, made, "one", func(context.Context, events.Event[thing]) error {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			calls.Add(1)
			<-time.After(50 * time.Millisecond) // the work
			return nil
		}, framework.Concurrency(workers), framework.RateLimit(perSecond, burst))
		f.start()
		began := time.Now()
		for i := range 100 {
			f.Publish(made.New(fmt.Sprint(i), thing{Name: "x"}))
		}
		f.Idle()
		took := time.Since(began)
		require.EqualValues(t, 100, calls.Load())
		require.GreaterOrEqual(t, took, (100-burst)*time.Second/perSecond)
		require.LessOrEqual(t, most.Load(), int32(workers))
		_, deferred := f.series("headrace_deferred_total", map[string]string{"reason": "rate"})
		require.False(t, deferred)
	})
}

func subscriptionOf(handler string) broker.Subscription {
	return broker.Subscription{Topic: made.Topic(), Group: "things." + handler}
}
