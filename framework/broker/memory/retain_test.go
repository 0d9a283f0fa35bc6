package memory_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/memory"
)

func publish(t *testing.T, b *memory.Broker, topic string, n int) {
	t.Helper()
	for i := range n {
		require.NoError(t, b.Publisher().Publish(topic, message.NewMessage(fmt.Sprint(i), nil)))
	}
}

// TestRetainBoundsWhatIsSettled_B46: what no group needs goes, the oldest first, and
// what a group has not acked stays however much it is.
func TestRetainBoundsWhatIsSettled_B46(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := memory.New(memory.Config{Retain: 80})
	t.Cleanup(func() { _ = b.Close() })
	depth := func(topic string) int64 {
		n, err := b.Admin().Depth(ctx, topic)
		require.NoError(t, err)
		return n
	}

	publish(t, b, "nogroup", 1000)
	require.LessOrEqual(t, depth("nogroup"), int64(90))
	require.GreaterOrEqual(t, depth("nogroup"), int64(80))

	require.NoError(t, b.EnsureTopology(ctx, broker.Subscription{Topic: "t", Group: "g"}))
	publish(t, b, "t", 1000)
	require.EqualValues(t, 1000, depth("t"))
	sub, err := b.Subscriber(broker.SubscriberConfig{Group: "g", Concurrency: 1, MaxInFlight: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	ch, err := sub.Subscribe(ctx, "t")
	require.NoError(t, err)
	for range 500 {
		(<-ch).Ack()
	}
	held := <-ch
	require.Equal(t, "500", held.UUID)
	require.Eventually(t, func() bool { return depth("t") == 500 }, 5*time.Second, time.Millisecond, "all but what is unsettled")
	held.Ack()
	for range 499 {
		(<-ch).Ack()
	}
	require.Eventually(t, func() bool { return depth("t") <= 90 }, 5*time.Second, time.Millisecond)
}

func TestClosed(t *testing.T) {
	t.Parallel()
	b := memory.New(memory.Config{})
	publish(t, b, "t", 1)
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Ping(context.Background()), broker.ErrClosed)
	require.ErrorIs(t, b.Publisher().Publish("t", message.NewMessage("a", nil)), broker.ErrClosed)
	sub, err := b.Subscriber(broker.SubscriberConfig{Group: "g"})
	require.NoError(t, err)
	_, err = sub.Subscribe(context.Background(), "t")
	require.ErrorIs(t, err, broker.ErrClosed)
}
