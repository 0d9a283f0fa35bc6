package brokertest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
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

var quiet = slog.New(slog.DiscardHandler)

// env is what one test works with.
type env struct {
	*Storage
	h Harness
	b broker.Broker
}

func unique(prefix string) string { return prefix + "." + uuid.NewString() }

// msgs makes n messages; key may be nil.
func msgs(n int, key func(i int) string) []*message.Message {
	out := make([]*message.Message, n)
	for i := range out {
		out[i] = message.NewMessage(fmt.Sprintf("m%05d", i), []byte(fmt.Sprintf(`{"n":%d}`, i)))
		if key != nil {
			out[i].Metadata.Set(events.KeyOrdering, key(i))
		}
	}
	return out
}

func (e env) publish(t testing.TB, topic string, batch []*message.Message) {
	t.Helper()
	// An emulator on a busy machine takes a while for a large backlog.
	for part := range slices.Chunk(batch, 100) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		err := e.b.Publisher().PublishBatch(ctx, topic, part)
		cancel()
		require.NoError(t, err)
	}
}

// prepare makes the group where it gets only what is published from then on.
func (e env) prepare(t testing.TB, topic, group string) {
	t.Helper()
	if !e.b.Features().ReplayForNewGroup {
		require.NoError(t, e.b.EnsureTopology(context.Background(), broker.Subscription{Topic: topic, Group: group}))
	}
}

// counted checks a delivery count that some brokers raise by what no handler saw:
// messages that were given back, and what a receive took whose consumer is gone.
func (e env) counted(t testing.TB, want, got int, why string) {
	t.Helper()
	if e.b.Features().CountsReleases {
		require.GreaterOrEqual(t, got, want, why)
		require.LessOrEqual(t, got, want+4, why)
		return
	}
	require.Equal(t, want, got, why)
}

// subscriber makes one that t.Cleanup closes.
func (e env) subscriber(t testing.TB, b broker.Broker, cfg broker.SubscriberConfig) message.Subscriber {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	if cfg.DrainTimeout == 0 {
		cfg.DrainTimeout = 5 * time.Second
	}
	sub, err := b.Subscriber(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	return sub
}

func (e env) subscribe(t testing.TB, topic string, cfg broker.SubscriberConfig) (<-chan *message.Message, message.Subscriber) {
	t.Helper()
	sub := e.subscriber(t, e.b, cfg)
	ch, err := sub.Subscribe(context.Background(), topic)
	require.NoError(t, err)
	return ch, sub
}

// receive waits for the next message.
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

// receiveNone checks that nothing comes for a while.
func receiveNone(t testing.TB, ch <-chan *message.Message, within time.Duration) {
	t.Helper()
	select {
	case m, ok := <-ch:
		if ok {
			require.FailNow(t, "an unexpected message", "%s, delivery %d", m.UUID, count(m))
		}
	case <-time.After(within):
	}
}

// ackAll receives and acks n messages and returns their UUIDs.
func ackAll(t testing.TB, ch <-chan *message.Message, n int) []string {
	t.Helper()
	out := make([]string, 0, n)
	for range n {
		m := receive(t, ch)
		out = append(out, m.UUID)
		require.True(t, m.Ack())
	}
	return out
}

func uuids(batch []*message.Message) []string {
	out := make([]string, len(batch))
	for i, m := range batch {
		out[i] = m.UUID
	}
	return out
}

func delivery(m *message.Message) *middleware.Delivery { return middleware.DeliveryFrom(m.Context()) }

// count is the delivery count of m; -1 without a Delivery.
func count(m *message.Message) int {
	if d := delivery(m); d != nil {
		return d.Count()
	}
	return -1
}

// settles waits until the group has nothing left.
func (e env) settles(t testing.TB, topic, group string) {
	t.Helper()
	what := ""
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		stats, err := e.b.Admin().Stats(t.Context(), broker.Subscription{Topic: topic, Group: group})
		if err == nil && stats == (broker.Stats{}) {
			return
		}
		what = fmt.Sprintf("%+v %v", stats, err)
	}
	require.FailNow(t, "the group never settles", "stats of %s: %s", group, what)
}

// closed waits until the channel is closed and fails when a message comes.
func closed(t testing.TB, ch <-chan *message.Message) {
	t.Helper()
	select {
	case m, open := <-ch:
		require.False(t, open, "a message after the drain began: %v", m)
	case <-time.After(patience):
		require.FailNow(t, "the channel is not closed")
	}
}
