package framework_test

import (
	"context"
	"database/sql"
	"sync"
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

// A dead letter that is sent to the group's redrive topic reaches the group that
// failed and no other, with attempts from the start; when it fails again its
// count of redrives stays, and once it is handled a copy of it is a duplicate.
func TestARedriveReachesTheGroupThatFailed_B23(t *testing.T) {
	t.Parallel()
	onStages(t, nil, func(t *testing.T, f *fixture) {
		var fails, bystander atomic.Int32
		var broken atomic.Bool
		broken.Store(true)
		framework.HandleTx(f.app, made, "count", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
			if broken.Load() {
				fails.Add(1)
				return errBroken
			}
			return write(ctx, tx, e)
		}, framework.MaxAttempts(2))
		framework.Handle(f.app, made, "watch", func(context.Context, events.Event[thing]) error {
			bystander.Add(1)
			return nil
		})
		f.start()
		f.Publish(made.New("k", thing{Name: "a"}))
		dead := f.AwaitDeadLetter("things.count", nil)
		require.Equal(t, "2", dead.Message.Metadata.Get(middleware.DeadLetterAttempts))

		again := dead.Message.Copy()
		again.Metadata.Set(middleware.DeadLetterRedriveCount, "1")
		f.SendRaw(broker.RedriveTopic("things.count"), again)
		second := f.AwaitDeadLetter("things.count", func(d frameworktest.DeadLetter) bool {
			return d.Message.Metadata.Get(middleware.DeadLetterRedriveCount) == "1"
		})
		require.EqualValues(t, 4, fails.Load(), "the attempts began anew")
		for key, want := range map[string]string{
			middleware.DeadLetterAttempts: "2", middleware.DeadLetterDeliveries: "1", middleware.DeadLetterTopic: made.Topic(),
		} {
			require.Equal(t, want, second.Message.Metadata.Get(key), key)
		}
		require.Equal(t, dead.Message.Payload, second.Message.Payload)

		broken.Store(false)
		f.SendRaw(broker.RedriveTopic("things.count"), second.Message.Copy())
		f.SendRaw(broker.RedriveTopic("things.count"), second.Message.Copy())
		f.Idle()
		require.Equal(t, 1, f.effects(), "the second copy was a duplicate")
		require.EqualValues(t, 1, bystander.Load(), "the other group saw the event once")
		require.Len(t, f.DeadLetters("things.count"), 2)
	})
}

// A handler's concurrency, and one at a time within a key, hold over both of its
// subscriptions.
func TestRedrivesShareTheHandlersBounds(t *testing.T) {
	t.Parallel()
	onStages(t, nil, func(t *testing.T, f *fixture) {
		if !f.Broker().Features().OrderPerKey {
			return
		}
		var mu sync.Mutex
		running, most, keys := 0, 0, map[string]int{}
		both := make(chan struct{})
		framework.Handle(f.app, made, "count", func(_ context.Context, e events.Event[thing]) error {
			key := e.Metadata.OrderingKey
			mu.Lock()
			running++
			keys[key]++
			most = max(most, running)
			overlap := keys[key] > 1
			if running == 2 {
				select {
				case <-both:
				default:
					close(both)
				}
			}
			mu.Unlock()
			<-both
			mu.Lock()
			running--
			keys[key]--
			mu.Unlock()
			if overlap {
				t.Errorf("two events of key %q ran at once", key)
			}
			return nil
		}, framework.Concurrency(2), framework.OrderByKey())
		f.start()
		for i := range 20 {
			for _, key := range []string{"a", "b", "c"} {
				env, err := made.New(key, thing{Name: "x", N: i}).Seal(events.Stamp{ID: events.NewID(), Source: "test", Now: time.Now()})
				require.NoError(t, err)
				f.Send(made.Topic(), env)
				env.ID = events.NewID()
				f.Send(broker.RedriveTopic("things.count"), env)
			}
		}
		f.Idle()
		require.Equal(t, 2, most)
	})
}
