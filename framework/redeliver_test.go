package framework_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// B30, B06: one message of many fails for ever. Its attempts in process are
// followed by redeliveries that the broker holds, in which the one worker that
// there is handles the others; in the end it is dead-lettered with its whole
// story and nothing else is.
func TestRedeliveriesBlockNobody_B30(t *testing.T) {
	t.Parallel()
	onStages(t, nil, func(t *testing.T, f *fixture) {
		var mu sync.Mutex
		var fails []time.Time
		others := make(chan struct{}, 100)
		framework.HandleTx(f.app, made, "count", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
			if e.Data.Name == "bad" {
				mu.Lock()
				defer mu.Unlock()
				fails = append(fails, time.Now())
				return errBroken
			}
			others <- struct{}{}
			return write(ctx, tx, e)
		}, framework.Concurrency(1), framework.MaxAttempts(2), framework.Redeliver(300*time.Millisecond, 600*time.Millisecond))
		f.start()
		f.Publish(made.New("bad", thing{Name: "bad"}))
		for i := range 99 {
			f.Publish(made.New(fmt.Sprint(i), thing{Name: "good"}))
		}
		for range 99 {
			await(t, others, "the others")
		}
		dead := f.AwaitDeadLetter("things.count", nil)
		f.Idle()
		require.Equal(t, 99, f.effects())
		require.Len(t, f.DeadLetters("things.count"), 1)
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, fails, 6, "2 attempts in each of 3 deliveries")
		require.GreaterOrEqual(t, fails[2].Sub(fails[1]), 300*time.Millisecond)
		require.GreaterOrEqual(t, fails[4].Sub(fails[3]), 600*time.Millisecond)
		for key, want := range map[string]string{
			middleware.DeadLetterReason: middleware.ReasonExhausted, middleware.DeadLetterAttempts: "6", middleware.DeadLetterDeliveries: "3",
		} {
			require.Equal(t, want, dead.Message.Metadata.Get(key), key)
		}
		first, err := time.Parse(time.RFC3339Nano, dead.Message.Metadata.Get(middleware.DeadLetterFirstFailedAt))
		require.NoError(t, err)
		require.WithinDuration(t, fails[0], first, 200*time.Millisecond)
		require.InDelta(t, 2, f.metric("headrace_redeliveries_total", map[string]string{"handler": "count"}), 0)
	})
}

// With order, the later events of the failing one's key wait for it; other keys
// do not.
func TestRedeliveriesKeepTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	onStages(t, nil, func(t *testing.T, f *fixture) {
		if !f.Broker().Features().OrderPerKey {
			return // the App refuses it: TestUnsafeSetUpsAreRefused
		}
		var mu sync.Mutex
		var order []string
		failed := false
		framework.Handle(f.app, made, "one", func(_ context.Context, e events.Event[thing]) error {
			mu.Lock()
			defer mu.Unlock()
			if e.Data.Name == "a1" && !failed {
				failed = true
				return errBroken
			}
			order = append(order, e.Data.Name)
			return nil
		}, framework.MaxAttempts(1), framework.Redeliver(500*time.Millisecond), framework.OrderByKey(), framework.Concurrency(2))
		f.start()
		f.Publish(made.New("a", thing{Name: "a1"}), made.New("a", thing{Name: "a2"}), made.New("b", thing{Name: "b1"}), made.New("a", thing{Name: "a3"}))
		f.Idle()
		require.Equal(t, []string{"b1", "a1", "a2", "a3"}, order)
	})
}
