package kafka_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

const patience = 30 * time.Second

func publish(t testing.TB, b *kafka.Broker, topic string, n int, key func(i int) string) {
	t.Helper()
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = message.NewMessage(fmt.Sprintf("m%04d", i), []byte("x"))
		if key != nil {
			msgs[i].Metadata.Set(events.KeyOrdering, key(i))
		}
	}
	require.NoError(t, b.Publisher().PublishBatch(context.Background(), topic, msgs))
}

func subscribe(t testing.TB, b *kafka.Broker, topic string, cfg broker.SubscriberConfig) (<-chan *message.Message, message.Subscriber) {
	t.Helper()
	cfg.Logger = quiet
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

func settles(t testing.TB, b *kafka.Broker, topic, group string) {
	t.Helper()
	require.Eventually(t, func() bool {
		stats, err := b.Admin().Stats(context.Background(), broker.Subscription{Topic: topic, Group: group})
		return err == nil && stats == broker.Stats{}
	}, patience, 20*time.Millisecond)
}

// Acks above a message that is not settled survive the consumer: with plain offsets
// they would all come again.
func TestAcksOutOfOrderSurvive(t *testing.T) {
	t.Parallel()
	cfg := config(cluster(t))
	cfg.Partitions = 1
	b := open(t, cfg)
	topic, group := uuid.NewString(), uuid.NewString()
	publish(t, b, topic, 200, nil)
	ch, sub := subscribe(t, b, topic, broker.SubscriberConfig{Group: group, Concurrency: 4})
	for i := range 200 {
		m := receive(t, ch)
		if i == 3 {
			middleware.DeliveryFrom(m.Context()).RedeliverAfter(time.Hour)
			m.Nack()
			continue
		}
		m.Ack()
	}
	require.NoError(t, sub.Close())
	stats, err := b.Admin().Stats(context.Background(), broker.Subscription{Topic: topic, Group: group})
	require.NoError(t, err)
	require.Equal(t, int64(1), stats.Pending)
	require.Zero(t, stats.Lag)
	// The delay is kept for whoever comes next, and so is everything else.
	publish(t, b, topic, 1, nil)
	again, _ := subscribe(t, b, topic, broker.SubscriberConfig{Group: group})
	m := receive(t, again)
	require.Equal(t, "m0000", m.UUID)
	m.Ack()
	select {
	case m := <-again:
		require.FailNow(t, "what was settled or held back came again", m.UUID)
	case <-time.After(time.Second):
	}
}

// More than MaxUnsettled can't be unsettled in one partition; the rest waits at
// Kafka and nothing is lost.
func TestUnsettledIsBounded(t *testing.T) {
	t.Parallel()
	cfg := config(cluster(t))
	cfg.Partitions = 1
	b := open(t, cfg)
	topic, group := uuid.NewString(), uuid.NewString()
	const total = 2000
	publish(t, b, topic, total, nil)
	ch, _ := subscribe(t, b, topic, broker.SubscriberConfig{Group: group, Concurrency: 600, MaxInFlight: 1000})
	held := make([]*message.Message, 0, total)
	for range kafka.MaxUnsettled {
		held = append(held, receive(t, ch))
	}
	select {
	case <-ch:
		require.FailNow(t, "more than MaxUnsettled were handed out")
	case <-time.After(time.Second):
	}
	seen := make(map[string]bool)
	for _, m := range held {
		seen[m.UUID] = true
		m.Ack()
	}
	for len(seen) < total {
		m := receive(t, ch)
		require.False(t, seen[m.UUID])
		seen[m.UUID] = true
		m.Ack()
	}
	settles(t, b, topic, group)
}

// Members come and go while messages of a few keys are handled: each key stays in
// order and one at a time, and nothing runs twice.
func TestOrderAcrossRebalances(t *testing.T) {
	t.Parallel()
	b := open(t, config(cluster(t)))
	topic, group := uuid.NewString(), uuid.NewString()
	const keys, each = 12, 40
	publish(t, b, topic, keys*each, func(i int) string { return fmt.Sprintf("key-%02d", i%keys) })

	var mu sync.Mutex
	got, busy := make(map[string][]string), make(map[string]bool)
	count := 0
	var faults []string
	done := make(chan struct{})
	consume := func(ch <-chan *message.Message) {
		for m := range ch {
			go func() {
				key := m.Metadata[events.KeyOrdering]
				mu.Lock()
				if busy[key] {
					faults = append(faults, "two of "+key+" at once")
				}
				busy[key] = true
				mu.Unlock()
				time.Sleep(15 * time.Millisecond) // the handler
				mu.Lock()
				defer mu.Unlock()
				busy[key] = false
				if m.Context().Err() != nil {
					faults = append(faults, "the lease of "+m.UUID+" was lost")
				}
				got[key] = append(got[key], m.UUID)
				if count++; count == keys*each {
					close(done)
				}
				m.Ack()
			}()
		}
	}
	join := func() message.Subscriber {
		ch, sub := subscribe(t, b, topic, broker.SubscriberConfig{Group: group, Concurrency: 4, Order: true})
		go consume(ch)
		return sub
	}
	first := join()
	second := join()
	join()
	require.NoError(t, first.Close())
	join()
	require.NoError(t, second.Close())
	select {
	case <-done:
	case <-time.After(patience):
		require.FailNow(t, "not everything arrived")
	}
	settles(t, b, topic, group)
	mu.Lock()
	defer mu.Unlock()
	require.Empty(t, faults)
	for key, ids := range got {
		require.IsIncreasing(t, ids, key)
		require.Len(t, ids, each, key)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	a := kafka.Adapter()
	require.Equal(t, "kafka", a.Kind)
	for url, want := range map[string]string{
		"amqp://x":                           "scheme",
		"kafka://u:se%zz@h:1":                "escaped",
		"kafka://h:1?partitions=many":        "partitions",
		"kafka://h:1?sasl=plain":             "user",
		"kafka://u:secret@h:1?sasl=kerberos": "kerberos",
		"kafka://h:1?ca=/none":               "ca",
		"kafka://h:1?acks=0":                 "no such setting",
		"kafka://":                           "Brokers",
	} {
		_, err := a.Features(broker.AdapterSettings{URL: url, Logger: quiet})
		require.ErrorContains(t, err, want, url)
		require.NotContains(t, err.Error(), "secret")
	}
	f, err := a.Features(broker.AdapterSettings{URL: "kafka://u:p@h:1,h:2?partitions=3&replication=3", Logger: quiet})
	require.NoError(t, err)
	require.True(t, f.OrderAcrossReplicas)

	b, err := a.Open(context.Background(), broker.AdapterSettings{URL: "kafka://" + cluster(t), Logger: quiet})
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Ping(context.Background()), broker.ErrClosed)

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err = kafka.Open(ctx, config("127.0.0.1:1"))
	require.ErrorContains(t, err, "127.0.0.1:1")
}
