package framework_test

import (
	"context"
	"errors"
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

// coded is an error of a cloud client.
type coded string

func (e coded) Error() string     { return "une erreur" }
func (e coded) ErrorCode() string { return string(e) }

// answered is an error that a Redis server sent.
type answered string

func (e answered) Error() string { return string(e) }
func (e answered) RedisError()   {}

// B40: what is no fault of the message is told by its code, in any language, and
// consumes no attempt; what only looks like it does.
func TestTransientErrorsConsumeNoAttempt_B40(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err       error
		transient bool
	}{
		"throttled":                {coded("ThrottlingException"), true},
		"refused by a cloud":       {coded("AccessDenied"), false},
		"a Redis that loads":       {answered("LOADING Redis is loading the dataset in memory"), true},
		"a Redis of another type":  {answered("WRONGTYPE not what you think"), false},
		"text that looks like one": {errors.New("LOADING ThrottlingException"), false},
		"marked":                   {framework.Transient(errBroken), true},
		"a broker that is down":    {&broker.PublishError{Topic: "x", Failed: map[int]error{0: errBroken}}, true},
		"a broker that refuses":    {&broker.PublishError{Topic: "x", Failed: map[int]error{0: fmt.Errorf("too large: %w", broker.ErrRejected)}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			var calls atomic.Int32
			framework.Handle(f.app, made, "one", func(context.Context, events.Event[thing]) error {
				if calls.Add(1) <= 5 {
					return fmt.Errorf("wrapped: %w", c.err)
				}
				return nil
			}, framework.MaxAttempts(2))
			f.start()
			f.Publish(made.New("k", thing{Name: "a"}))
			if !c.transient {
				f.AwaitDeadLetter("things.one", nil)
				require.EqualValues(t, 2, calls.Load())
				return
			}
			f.Idle()
			require.EqualValues(t, 6, calls.Load())
			require.Empty(t, f.DeadLetters("things.one"))
		})
	}
	require.NoError(t, framework.Transient(nil))
}

// A handler that publishes without a database survives an outage of the broker
// that is longer than its attempts.
func TestABrokerOutageConsumesNoAttempt_B40(t *testing.T) {
	t.Parallel()
	s := frameworktest.New(t)
	flaky := &flakyBroker{Broker: s.Broker(), topic: counted.Topic(), failures: 5}
	f := setupOn(t, s, withoutDB, func(c *framework.Config) { c.Broker = flaky })
	f.app.Emits(counted.Descriptor())
	framework.Handle(f.app, made, "one", func(ctx context.Context, e events.Event[thing]) error {
		return framework.Publish(ctx, counted.New("k", e.Data))
	}, framework.MaxAttempts(2))
	f.start()
	f.Publish(made.New("k", thing{Name: "a"}))
	frameworktest.Await(f.System, counted, nil)
	f.Idle()
	require.Empty(t, f.DeadLetters("things.one"))
}

// An outage that outlasts delivery.transient_budget gives the message back to
// the broker, uncounted, so it is there when the outage ends.
func TestALongOutageGivesTheMessageBack_B40(t *testing.T) {
	t.Parallel()
	onStages(t, func(c *framework.Config) {
		c.Profile.Delivery.TransientBudget = 50 * time.Millisecond
		c.Profile.Delivery.MaxDeliveries = few(c.Broker, 2)
	}, func(t *testing.T, f *fixture) {
		var down atomic.Bool
		down.Store(true)
		handled := make(chan struct{}, 1)
		framework.Handle(f.app, made, "one", func(context.Context, events.Event[thing]) error {
			if down.Load() {
				return framework.Transient(errBroken)
			}
			handled <- struct{}{}
			return nil
		})
		f.start()
		f.Publish(made.New("k", thing{Name: "a"}))
		require.Eventually(t, func() bool {
			n, _ := f.series("headrace_messages_total", map[string]string{"outcome": "deferred"})
			return n >= 8
		}, frameworktest.Timeout, 5*time.Millisecond, "given back more often than it may be delivered")
		down.Store(false)
		await(t, handled, "the end of the outage")
		f.Idle()
		require.Empty(t, f.DeadLetters("things.one"))
		require.Zero(t, f.metric("headrace_dead_letters_total", map[string]string{"handler": "one", "reason": middleware.ReasonDeliveriesExhausted}))
	})
}
