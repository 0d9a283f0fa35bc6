package nats_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/brokers/nats"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
)

func delivery(m *message.Message) *middleware.Delivery { return middleware.DeliveryFrom(m.Context()) }

// countsLeft is how many messages' counts are on record.
func countsLeft(t testing.TB, js jetstream.JetStream) uint64 {
	t.Helper()
	var n uint64
	list := js.ListStreams(context.Background(), jetstream.WithStreamListSubject("%counts.>"))
	for info := range list.Info() {
		n += info.State.Msgs
	}
	require.NoError(t, list.Err())
	return n
}

// TestCountsGoWithTheAck: a message that is handled at once leaves no record, a
// nacked one has a single one until it is acked.
func TestCountsGoWithTheAck(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	_, js := s.client(t)
	b := open(t, nats.Config{URL: s.url()})
	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g", NackDelay: -1})
	publish(t, b, "t", event("smooth", "x"))
	receive(t, ch).Ack()
	publish(t, b, "t", event("rough", "x"))
	for want := 1; want <= 5; want++ {
		m := receive(t, ch)
		require.Equal(t, want, delivery(m).Count())
		require.LessOrEqual(t, countsLeft(t, js), uint64(1))
		if want < 5 {
			m.Nack()
			continue
		}
		require.EqualValues(t, 1, countsLeft(t, js))
		m.Ack()
	}
	require.Eventually(t, func() bool { return countsLeft(t, js) == 0 }, patience, 10*time.Millisecond)
}

// TestDelayedReleaseKeepsDelayAndCount: a member that drains while it holds a
// nacked message back hands on the delay that is left, and the count.
func TestDelayedReleaseKeepsDelayAndCount(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := open(t, nats.Config{URL: s.url()})
	ch, sub := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g"})
	publish(t, b, "t", event("e-1", "x"))
	m := receive(t, ch)
	delivery(m).RedeliverAfter(1500 * time.Millisecond)
	start := time.Now()
	m.Nack()
	// The next one shows that the nack was taken.
	publish(t, b, "t", event("e-2", "x"))
	receive(t, ch).Ack()
	require.NoError(t, sub.Close())
	next, _ := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g"})
	again := receive(t, next)
	require.Equal(t, "e-1", again.UUID)
	require.Equal(t, 2, delivery(again).Count())
	require.GreaterOrEqual(t, time.Since(start), 1500*time.Millisecond)
	again.Ack()
}

// TestLeaseLost: the server is away for longer than a lease. The handler's context
// ends, the message comes again, counted.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := open(t, nats.Config{URL: s.url()})
	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g", Lease: broker.MinLease, Concurrency: 2})
	publish(t, b, "t", event("e-1", "x"))
	m := receive(t, ch)
	s.stop()
	<-time.After(1500 * time.Millisecond) // longer than the lease
	s.start()
	lost(t, m)
	m.Nack()
	again := receive(t, ch)
	require.Equal(t, "e-1", again.UUID)
	require.Equal(t, 2, delivery(again).Count())
	again.Ack()
}

// TestConsumerIsDeleted, and the stream with it: the subscription makes them
// again and goes on.
func TestConsumerIsDeleted(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	_, js := s.client(t)
	b := open(t, nats.Config{URL: s.url()})
	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g", Lease: broker.MinLease})
	publish(t, b, "t", event("e-1", "x"))
	receive(t, ch).Ack()
	held := func(id string) *message.Message {
		publish(t, b, "t", event(id, "x"))
		for {
			if m := receive(t, ch); m.UUID == id {
				return m
			} else {
				m.Ack()
			}
		}
	}
	m := held("e-2")
	require.NoError(t, js.DeleteConsumer(context.Background(), nats.Config{}.StreamName("t"), nats.Config{}.ConsumerName("g")))
	lost(t, m)
	m.Ack()
	m = held("e-3")
	// Another message takes the place that this one had.
	require.NoError(t, js.DeleteStream(context.Background(), nats.Config{}.StreamName("t")))
	again := held("e-4")
	lost(t, m)
	m.Ack()
	require.NoError(t, again.Context().Err())
	again.Ack()
	require.Eventually(t, func() bool {
		stats, err := b.Admin().Stats(context.Background(), broker.Subscription{Topic: "t", Group: "g"})
		return err == nil && stats == broker.Stats{}
	}, patience, 10*time.Millisecond)
}

// lost waits until a handler is told that its lease is lost.
func lost(t testing.TB, m *message.Message) {
	t.Helper()
	select {
	case <-m.Context().Done():
		require.ErrorIs(t, context.Cause(m.Context()), broker.ErrLeaseLost)
	case <-time.After(patience):
		require.FailNow(t, "the handler goes on")
	}
}

// TestRemovedWhileHeld: somebody removes a message that is held back. It is gone,
// and what waits behind it goes on.
func TestRemovedWhileHeld(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := open(t, nats.Config{URL: s.url()})
	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g", Order: true})
	msgs := []*message.Message{event("e-1", "x"), event("e-2", "x")}
	for _, m := range msgs {
		m.Metadata.Set("ordering_key", "k")
	}
	publish(t, b, "t", msgs...)
	m := receive(t, ch)
	require.Equal(t, "e-1", m.UUID)
	delivery(m).RedeliverAfter(time.Second)
	m.Nack()
	n, err := b.Admin().Delete(context.Background(), "t", browse(t, b, "t")[0].Position)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	m = receive(t, ch)
	require.Equal(t, "e-2", m.UUID)
	require.Equal(t, 1, delivery(m).Count())
	m.Ack()
}

// TestPoisonAmongNinetyNine (B30): message 5 of 100 always fails; the rest is
// handled once, also across a restart in the middle.
func TestPoisonAmongNinetyNine(t *testing.T) {
	t.Parallel()
	b := open(t, nats.Config{URL: startServer(t).url()})
	all := make([]*message.Message, 100)
	for i := range all {
		all[i] = event(fmt.Sprintf("e-%02d", i), "x")
	}
	publish(t, b, "t", all...)
	handled := map[string]int{}
	highest := 0
	run := func(until func() bool) {
		ch, sub := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g", NackDelay: 20 * time.Millisecond})
		for !until() {
			m := receive(t, ch)
			if m.UUID == "e-05" {
				n := delivery(m).Count()
				require.Equal(t, highest+1, n, "each delivery counts, none twice")
				highest = n
				m.Nack()
				continue
			}
			handled[m.UUID]++
			m.Ack()
		}
		require.NoError(t, sub.Close())
	}
	run(func() bool { return len(handled) >= 40 && highest >= 3 })
	run(func() bool { return len(handled) == 99 && highest >= 8 })
	for id, n := range handled {
		require.Equal(t, 1, n, id)
	}
}

// TestPingTellsTheTruth while the server is away.
func TestPingTellsTheTruth(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := open(t, nats.Config{URL: s.url()})
	require.NoError(t, b.Ping(context.Background()))
	s.stop()
	require.Eventually(t, func() bool { return b.Ping(context.Background()) != nil }, patience, 10*time.Millisecond)
	start := time.Now()
	require.Error(t, b.Ping(context.Background()))
	require.Less(t, time.Since(start), time.Second, "at once")
	s.start()
	require.Eventually(t, func() bool { return b.Ping(context.Background()) == nil }, patience, 10*time.Millisecond)
	require.False(t, errors.Is(b.Ping(context.Background()), broker.ErrClosed))
}
