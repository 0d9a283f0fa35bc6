package rabbitmq_test

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/brokers/rabbitmq"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/deadletter"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

const patience = 20 * time.Second

func unique(name string) string { return name + "." + uuid.NewString() }

func batch(n int, key string) []*message.Message {
	out := make([]*message.Message, n)
	for i := range out {
		out[i] = message.NewMessage(fmt.Sprintf("m%03d", i), []byte("x"))
		if key != "" {
			out[i].Metadata.Set(events.KeyOrdering, key)
		}
	}
	return out
}

func publish(t testing.TB, b broker.Broker, topic string, msgs []*message.Message) {
	t.Helper()
	require.NoError(t, b.Publisher().PublishBatch(context.Background(), topic, msgs))
}

func subscribe(t testing.TB, b broker.Broker, topic string, cfg broker.SubscriberConfig) (<-chan *message.Message, message.Subscriber) {
	t.Helper()
	cfg.Logger, cfg.DrainTimeout = quiet, 3*time.Second
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

func none(t testing.TB, ch <-chan *message.Message, within time.Duration) {
	t.Helper()
	select {
	case m := <-ch:
		require.FailNow(t, "an unexpected message", "%s, delivery %d", m.UUID, middleware.DeliveryFrom(m.Context()).Count())
	case <-time.After(within):
	}
}

func stored(t testing.TB, b broker.Broker, topic string) (ids []string) {
	t.Helper()
	for s, err := range b.Admin().Browse(context.Background(), topic, time.Time{}) {
		require.NoError(t, err)
		ids = append(ids, s.Message.UUID)
	}
	return ids
}

// through is the server behind a proxy.
func through(t testing.TB, s *server) (rabbitmq.Config, *testenv.Proxy) {
	t.Helper()
	proxy := testenv.NewProxy(t, fmt.Sprintf("127.0.0.1:%d", s.port))
	u, err := url.Parse(s.url())
	require.NoError(t, err)
	u.Host = proxy.Addr()
	return rabbitmq.Config{URL: u.String()}, proxy
}

// What no queue takes is kept, refused or dropped, as it was asked for.
func TestWhatNoQueueTakes(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	for _, how := range []rabbitmq.Unrouted{rabbitmq.UnroutedKeep, rabbitmq.UnroutedRefuse, rabbitmq.UnroutedDrop} {
		b := open(t, rabbitmq.Config{URL: s.url(), Unrouted: how})
		topic := unique("nobody")
		err := b.Publisher().PublishBatch(context.Background(), topic, batch(3, ""))
		depth, derr := b.Admin().Depth(context.Background(), topic)
		require.NoError(t, derr)
		switch how {
		case rabbitmq.UnroutedKeep:
			require.NoError(t, err)
			require.EqualValues(t, 3, depth)
			require.Equal(t, []string{"m000", "m001", "m002"}, stored(t, b, topic))
		case rabbitmq.UnroutedRefuse:
			var failed *broker.PublishError
			require.ErrorAs(t, err, &failed)
			require.Len(t, failed.Failed, 3)
			require.NotErrorIs(t, err, broker.ErrRejected, "worth trying again")
			require.Zero(t, depth)
		case rabbitmq.UnroutedDrop:
			require.NoError(t, err)
			require.Zero(t, depth)
		}
	}
}

// Someone deletes exchange and queues under a publisher that knows them.
func TestDeletedTopologyComesBack(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	cfg := rabbitmq.Config{URL: s.url()}
	b := open(t, cfg)
	ch := s.dial(t)
	dead := broker.DeadLetterTopic(unique("g"))
	publish(t, b, dead, batch(1, ""))
	_, err := ch.QueueDelete(cfg.OwnQueueName(dead), false, false, false)
	require.NoError(t, err)
	publish(t, b, dead, batch(2, ""))
	require.Equal(t, []string{"m000", "m001"}, stored(t, b, dead))

	topic := unique("gone")
	publish(t, b, topic, batch(1, ""))
	require.NoError(t, ch.ExchangeDelete(cfg.ExchangeName(topic), false, false))
	publish(t, b, topic, batch(1, ""))
	require.Len(t, stored(t, b, topic), 2)
}

// Dead letters and replays wait for a reader that is not there yet.
func TestDeadLettersAndReplay_B23(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := open(t, rabbitmq.Config{URL: sharedServer(t).url()})
	group := unique("things.count")
	letters := batch(20, "")
	for _, l := range letters {
		l.Metadata.Set(middleware.DeadLetterReason, middleware.ReasonExhausted)
	}
	publish(t, b, broker.DeadLetterTopic(group), letters)
	q, err := deadletter.New(deadletter.Config{Broker: b, Group: group, Logger: quiet})
	require.NoError(t, err)
	n, err := q.Count(ctx, deadletter.Filter{})
	require.NoError(t, err)
	require.Equal(t, 20, n)
	report, err := q.Replay(ctx, deadletter.ReplayOptions{Filter: deadletter.Filter{IDs: []string{"m003", "m017"}}})
	require.NoError(t, err)
	require.Equal(t, 2, report.Replayed)
	require.Len(t, stored(t, b, broker.DeadLetterTopic(group)), 18)
	report, err = q.Replay(ctx, deadletter.ReplayOptions{})
	require.NoError(t, err)
	require.Equal(t, 18, report.Replayed)
	require.Empty(t, stored(t, b, broker.DeadLetterTopic(group)))

	redrive, _ := subscribe(t, b, broker.RedriveTopic(group), broker.SubscriberConfig{Group: group})
	seen := map[string]bool{}
	for range 20 {
		m := receive(t, redrive)
		seen[m.UUID] = true
		m.Ack()
	}
	require.Len(t, seen, 20)
}

// A message of a key is retried, then its consumer loses its connection: the next
// one gets the key in order, and the first is told.
func TestOrderHoldsWhenTheConnectionEndsAfterARetry(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	cfg, proxy := through(t, s)
	a, b := open(t, cfg), open(t, rabbitmq.Config{URL: s.url()})
	topic, group := unique("order"), unique("g")
	sub := broker.SubscriberConfig{Group: group, Order: true, Lease: broker.MinLease, NackDelay: -1}
	first, _ := subscribe(t, a, topic, sub)
	publish(t, b, topic, batch(8, "k"))
	receive(t, first).Nack()
	m := receive(t, first)
	require.Equal(t, "m000", m.UUID)
	require.Equal(t, 2, middleware.DeliveryFrom(m.Context()).Count())
	proxy.Cut()
	second, _ := subscribe(t, b, topic, sub)
	for i := range 8 {
		got := receive(t, second)
		require.Equal(t, fmt.Sprintf("m%03d", i), got.UUID)
		got.Ack()
	}
	select {
	case <-m.Context().Done():
		require.ErrorIs(t, context.Cause(m.Context()), broker.ErrLeaseLost)
	case <-time.After(patience):
		require.FailNow(t, "the handler was not told")
	}
	m.Ack()
}

// The connection ends and comes back while messages are held: nothing runs twice.
func TestConnectionComesBack(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	for _, order := range []bool{false, true} {
		cfg, proxy := through(t, s)
		a, b := open(t, cfg), open(t, rabbitmq.Config{URL: s.url()})
		topic, group := unique("back"), unique("g")
		ch, _ := subscribe(t, a, topic, broker.SubscriberConfig{Group: group, Concurrency: 3, Order: order})
		publish(t, b, topic, batch(3, ""))
		before, during, after := receive(t, ch), receive(t, ch), receive(t, ch)
		before.Ack() // it may be on its way when the connection ends
		proxy.Cut()
		during.Ack()
		proxy.Restore()
		publish(t, b, topic, []*message.Message{message.NewMessage("next", nil)})
		m := receive(t, ch)
		require.Equal(t, "next", m.UUID, "what was handled, or still is, does not run again")
		m.Ack()
		require.NoError(t, after.Context().Err(), "it was taken up again")
		after.Ack()
		none(t, ch, 300*time.Millisecond)
		require.Eventually(t, func() bool {
			stats, err := b.Admin().Stats(context.Background(), broker.Subscription{Topic: topic, Group: group})
			return err == nil && stats.Lag == 0
		}, patience, 10*time.Millisecond)
	}
}

// A message is held for longer than consumer_timeout: it is put back and taken up
// again in time, and the handler does not notice.
func TestHeldForLongerThanTheConsumerTimeout(t *testing.T) {
	t.Parallel()
	for _, order := range []bool{false, true} {
		b := open(t, rabbitmq.Config{URL: sharedServer(t).url(), ConsumerTimeout: time.Second})
		topic, group := unique("long"), unique("g")
		ch, _ := subscribe(t, b, topic, broker.SubscriberConfig{Group: group, Order: order, Concurrency: 2, Lease: broker.MinLease})
		publish(t, b, topic, batch(2, "k"))
		m := receive(t, ch)
		if !order {
			receive(t, ch).Ack()
		}
		select {
		case <-m.Context().Done():
			require.FailNow(t, "the context ended", "%v", context.Cause(m.Context()))
		case twice := <-ch:
			require.FailNow(t, "handed out again", twice.UUID)
		case <-time.After(3 * time.Second):
		}
		m.Ack()
		if order {
			receive(t, ch).Ack()
		}
		none(t, ch, 200*time.Millisecond)
	}
}

// One member consumes, the other stands by and goes on in order when it ends.
func TestSingleActive(t *testing.T) {
	t.Parallel()
	cfg := rabbitmq.Config{URL: sharedServer(t).url(), SingleActive: true}
	a, b := open(t, cfg), open(t, cfg)
	require.True(t, a.Features().OrderAcrossReplicas)
	require.False(t, a.Features().CompetingConsumers)
	topic, group := unique("single"), unique("g")
	sub := broker.SubscriberConfig{Group: group, Order: true, Concurrency: 2}
	first, closing := subscribe(t, a, topic, sub)
	second, _ := subscribe(t, b, topic, sub)
	publish(t, a, topic, batch(50, "k"))
	for i := range 10 {
		m := receive(t, first)
		require.Equal(t, fmt.Sprintf("m%03d", i), m.UUID)
		m.Ack()
	}
	running := receive(t, first)
	done := make(chan error, 1)
	go func() { done <- closing.Close() }()
	none(t, second, 200*time.Millisecond)
	running.Ack()
	require.NoError(t, <-done)
	for i := 11; i < 50; i++ {
		m := receive(t, second)
		require.Equal(t, fmt.Sprintf("m%03d", i), m.UUID)
		m.Ack()
	}
}

// A graceful end gives back what was not begun in the order of the queue.
func TestDrainKeepsTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	b := open(t, rabbitmq.Config{URL: sharedServer(t).url()})
	topic, group := unique("drain"), unique("g")
	cfg := broker.SubscriberConfig{Group: group, Order: true, Concurrency: 2, MaxInFlight: 6, NackDelay: 50 * time.Millisecond}
	ch, sub := subscribe(t, b, topic, cfg)
	publish(t, b, topic, batch(40, "k"))
	receive(t, ch).Nack()
	receive(t, ch).Ack()
	receive(t, ch).Nack()
	require.NoError(t, sub.Close())
	ch, _ = subscribe(t, b, topic, cfg)
	for i := 1; i < 40; i++ {
		m := receive(t, ch)
		require.Equal(t, fmt.Sprintf("m%03d", i), m.UUID)
		m.Ack()
	}
}
