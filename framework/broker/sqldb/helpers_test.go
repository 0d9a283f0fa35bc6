package sqldb_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// patience bounds every wait for something that must happen.
const patience = time.Minute

func unique(prefix string) string { return prefix + "." + uuid.NewString()[:13] }

func msgs(from, to int, key func(i int) string) []*message.Message {
	var out []*message.Message
	for i := from; i < to; i++ {
		m := message.NewMessage(fmt.Sprintf("m%05d", i), fmt.Appendf(nil, `{"n":%d}`, i))
		if key != nil {
			m.Metadata.Set(events.KeyOrdering, key(i))
		}
		out = append(out, m)
	}
	return out
}

func publish(t testing.TB, b broker.Broker, topic string, batch ...*message.Message) {
	t.Helper()
	require.NoError(t, b.Publisher().PublishBatch(context.Background(), topic, batch))
}

func subscribe(t testing.TB, b broker.Broker, topic string, cfg broker.SubscriberConfig) (<-chan *message.Message, message.Subscriber) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	sub, err := b.Subscriber(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	ch, err := sub.Subscribe(context.Background(), topic)
	require.NoError(t, err)
	return ch, sub
}

func receive(t testing.TB, ch <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m, ok := <-ch:
		require.True(t, ok, "the channel is closed")
		return m
	case <-time.After(patience):
		require.FailNow(t, "no message")
		return nil
	}
}

func receiveNone(t testing.TB, ch <-chan *message.Message, within time.Duration) {
	t.Helper()
	select {
	case m := <-ch:
		require.FailNow(t, "an unexpected message", "%v", m)
	case <-time.After(within):
	}
}

func ackAll(t testing.TB, ch <-chan *message.Message, n int) []string {
	t.Helper()
	var out []string
	for range n {
		m := receive(t, ch)
		out = append(out, m.UUID)
		m.Ack()
	}
	return out
}

func uuids(batch []*message.Message) []string {
	var out []string
	for _, m := range batch {
		out = append(out, m.UUID)
	}
	return out
}

func delivery(m *message.Message) *middleware.Delivery { return middleware.DeliveryFrom(m.Context()) }

func stats(t testing.TB, b broker.Broker, topic, group string) broker.Stats {
	t.Helper()
	s, err := b.Admin().Stats(context.Background(), broker.Subscription{Topic: topic, Group: group})
	require.NoError(t, err)
	return s
}

func depth(t testing.TB, b broker.Broker, topic string) int64 {
	t.Helper()
	n, err := b.Admin().Depth(context.Background(), topic)
	require.NoError(t, err)
	return n
}

func settles(t testing.TB, b broker.Broker, topic, group string) {
	t.Helper()
	require.Eventually(t, func() bool { return stats(t, b, topic, group) == broker.Stats{} }, patience, 10*time.Millisecond)
}

func ensure(t testing.TB, b broker.Broker, topic string, groups ...string) {
	t.Helper()
	for _, g := range groups {
		require.NoError(t, b.EnsureTopology(context.Background(), broker.Subscription{Topic: topic, Group: g}))
	}
}

func count(t testing.TB, db *sql.DB, q string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRow(q, args...).Scan(&n))
	return n
}
