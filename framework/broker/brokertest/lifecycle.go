package brokertest

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
)

// testDrain: handlers that finish a second after Close began keep their context
// and their ack lands; what no handler had begun goes to another member at once
// and uncounted.
func testDrain(t *testing.T, e env) {
	topic, group := unique("drain"), unique("g")
	const running, total = 2, 12
	sent := msgs(total, nil)
	e.prepare(t, topic, group)
	e.publish(t, topic, sent)
	ch, sub := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Concurrency: running, MaxInFlight: total})
	var held []*message.Message
	for range running {
		held = append(held, receive(t, ch))
	}
	other, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Concurrency: total})
	receiveNone(t, other, 50*time.Millisecond)

	begun := time.Now()
	closedAt := make(chan time.Time, 1)
	go func() {
		_ = sub.Close()
		closedAt <- time.Now()
	}()
	<-delivery(held[0]).Draining()
	seen := uuids(held)
	for range total - running {
		m := receive(t, other)
		e.counted(t, 1, count(m), "released before it was begun")
		seen = append(seen, m.UUID)
		m.Ack()
	}
	require.Less(t, time.Since(begun), e.h.Latency, "released at once")
	require.ElementsMatch(t, uuids(sent), seen)

	// The handlers take a second to finish.
	<-time.After(time.Second - time.Since(begun))
	for _, m := range held {
		require.NoError(t, m.Context().Err(), "the context outlives the begin of the drain")
		require.True(t, m.Ack())
	}
	closed(t, ch)
	require.GreaterOrEqual(t, (<-closedAt).Sub(begun), time.Second)
	e.settles(t, topic, group)
}

// testRouterDrain: a stock router is stopped while a handler runs for another
// second. The handler keeps its context, its message is acked, and nothing runs
// again after a restart.
func testRouterDrain(t *testing.T, e env) {
	topic, group := unique("router"), unique("g")
	e.prepare(t, topic, group)
	e.publish(t, topic, msgs(1, nil))
	type call struct {
		id  string
		err error // of the context, at the end
	}
	calls := make(chan call, 10)
	run := func(started chan<- struct{}, work time.Duration) (stop func()) {
		router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{})
		require.NoError(t, err)
		router.AddConsumerHandler("h", topic, e.subscriber(t, e.b, broker.SubscriberConfig{Group: group}),
			func(m *message.Message) error {
				started <- struct{}{}
				<-time.After(work)
				calls <- call{m.UUID, m.Context().Err()}
				return nil
			})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- router.Run(ctx) }()
		<-router.Running()
		return func() {
			cancel()
			require.NoError(t, <-ended)
		}
	}
	started := make(chan struct{}, 10)
	stop := run(started, time.Second)
	<-started
	stop()
	require.Equal(t, call{"m00000", nil}, <-calls)
	e.settles(t, topic, group)

	stop = run(started, 0)
	e.publish(t, topic, []*message.Message{message.NewMessage("later", nil)})
	require.Equal(t, call{"later", nil}, <-calls, "what was handled before the restart does not run again")
	stop()
	require.Empty(t, calls)
}

// testDrainDeadline: a handler that ends at the deadline's cancellation gives its
// message back, and one that ignores it does not stop Close.
func testDrainDeadline(t *testing.T, e env) {
	topic, group := unique("deadline"), unique("g")
	e.prepare(t, topic, group)
	e.publish(t, topic, msgs(2, nil))
	ch, sub := e.subscribe(t, topic, broker.SubscriberConfig{
		Group: group, Concurrency: 2, Lease: broker.MinLease, DrainTimeout: 200 * time.Millisecond,
	})
	polite, stubborn := receive(t, ch), receive(t, ch)
	done := make(chan struct{})
	start := time.Now()
	go func() {
		_ = sub.Close()
		close(done)
	}()
	<-polite.Context().Done()
	require.GreaterOrEqual(t, time.Since(start), 200*time.Millisecond)
	delivery(polite).Release()
	polite.Nack()
	<-done
	closed(t, ch)
	require.Error(t, stubborn.Context().Err())
	if !e.b.Features().Durable {
		return // in memory nobody can take over what a live handler keeps
	}
	next, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Lease: broker.MinLease})
	counts := map[string]int{}
	for range 2 {
		m := receive(t, next)
		counts[m.UUID] = count(m)
		m.Ack()
	}
	require.Len(t, counts, 2)
	e.counted(t, 1, counts[polite.UUID], "released")
	e.counted(t, 2, counts[stubborn.UUID], "abandoned")
	e.settles(t, topic, group)
}

func testCancel(t *testing.T, e env) {
	topic, group := unique("cancel"), unique("g")
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "kept"))
	sub := e.subscriber(t, e.b, broker.SubscriberConfig{Group: group, Concurrency: 1})
	ch, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	e.publish(t, topic, msgs(2, nil))
	m := receive(t, ch)
	require.Equal(t, "kept", m.Context().Value(key{}))
	cancel()
	<-delivery(m).Draining()
	require.NoError(t, m.Context().Err(), "a message's context outlives the Subscribe context")
	m.Ack()
	closed(t, ch)

	// The subscriber itself is still open.
	again, err := sub.Subscribe(context.Background(), topic)
	require.NoError(t, err)
	rest := receive(t, again)
	require.NotEqual(t, m.UUID, rest.UUID)
	e.counted(t, 1, count(rest), "released before it was begun")
	rest.Ack()
	e.settles(t, topic, group)
}

func testClose(t *testing.T, e env) {
	start := time.Now()
	never := e.subscriber(t, e.b, broker.SubscriberConfig{Group: unique("g")})
	require.NoError(t, never.Close())
	require.NoError(t, never.Close())
	require.Less(t, time.Since(start), 200*time.Millisecond, "nothing ran")
	_, err := never.Subscribe(context.Background(), unique("t"))
	require.ErrorIs(t, err, broker.ErrClosed)

	topic, group := unique("close"), unique("g")
	ch, sub := e.subscribe(t, topic, broker.SubscriberConfig{Group: group})
	start = time.Now()
	require.NoError(t, sub.Close())
	closed(t, ch)
	require.NoError(t, sub.Close())
	require.Less(t, time.Since(start), 3*time.Second, "a long poll does not hold Close up")
}

// testLongHandler: a handler that takes two and a half leases, beside an idle
// member that would claim the message.
func testLongHandler(t *testing.T, e env) {
	topic, group := unique("long"), unique("g")
	cfg := broker.SubscriberConfig{Group: group, Concurrency: 2, Lease: broker.MinLease}
	ch, _ := e.subscribe(t, topic, cfg)
	e.publish(t, topic, msgs(1, nil))
	m := receive(t, ch)
	other, _ := e.subscribe(t, topic, cfg)
	long := time.After(2500 * time.Millisecond)
	select {
	case <-long:
	case <-m.Context().Done():
		require.FailNow(t, "the context ended", "%v", context.Cause(m.Context()))
	case twice := <-other:
		require.FailNow(t, "claimed while held", "delivery %d", count(twice))
	case twice := <-ch:
		require.FailNow(t, "claimed by its own consumer", "delivery %d", count(twice))
	}
	m.Ack()
	e.settles(t, topic, group)
	receiveNone(t, other, 50*time.Millisecond)
}

// testTwoReplicas: concurrency 1, two replicas, 20 messages that take longer than
// the lease together: each runs once.
func testTwoReplicas(t *testing.T, e env) {
	topic, group := unique("replicas"), unique("g")
	const total = 20
	sent := msgs(total, nil)
	e.prepare(t, topic, group)
	e.publish(t, topic, sent)
	cfg := broker.SubscriberConfig{Group: group, Concurrency: 1, Lease: broker.MinLease}
	got := make(chan string, 2*total)
	for range 2 {
		ch, _ := e.subscribe(t, topic, cfg)
		go func() {
			for m := range ch {
				time.Sleep(150 * time.Millisecond) // the handler; 10 of them take longer than the lease
				got <- m.UUID
				m.Ack()
			}
		}()
	}
	var seen []string
	for range total {
		select {
		case id := <-got:
			seen = append(seen, id)
		case <-time.After(patience):
			require.FailNow(t, "not everything arrived")
		}
	}
	e.settles(t, topic, group)
	require.ElementsMatch(t, uuids(sent), seen)
	require.Empty(t, got)
}
