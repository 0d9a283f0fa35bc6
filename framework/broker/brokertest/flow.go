package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
)

func testPublishAndReceive(t *testing.T, e env) {
	topic, group := unique("receive"), unique("g")
	ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Concurrency: 1})
	sent := message.NewMessage("id-1", []byte("{\"a\":1,\"b\":\"\x00\xff<&>\"}"))
	sent.Metadata.Set("plain", "x")
	sent.Metadata.Set("empty", "")
	sent.Metadata.Set("odd key: ä", "tab\tand\nnewline")
	for i := range 40 {
		sent.Metadata.Set(fmt.Sprintf("k%02d", i), strings.Repeat("v", i*20))
	}
	nothing := message.NewMessage("", nil)
	e.publish(t, topic, []*message.Message{sent})
	require.NoError(t, e.b.Publisher().Publish(topic, nothing))

	first := receive(t, ch)
	require.True(t, sent.Equals(first), "%v", first)
	require.Equal(t, 1, count(first))
	require.Equal(t, group, delivery(first).Group())
	require.NotNil(t, delivery(first).Draining())
	ctx := first.Context()
	require.NoError(t, ctx.Err())
	first.Ack()
	<-ctx.Done()

	second := receive(t, ch)
	require.Empty(t, second.UUID)
	require.Empty(t, second.Payload)
	require.Empty(t, second.Metadata)
	second.Ack()
	e.settles(t, topic, group)
}

func testPublishErrors(t *testing.T, e env) {
	pub := e.b.Publisher()
	topic := unique("errors")
	require.NoError(t, pub.PublishBatch(context.Background(), topic, nil))
	require.NoError(t, pub.Publish(topic))

	gone, cancel := context.WithCancel(context.Background())
	cancel()
	err := pub.PublishBatch(gone, topic, msgs(3, nil))
	var failed *broker.PublishError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, topic, failed.Topic)
	require.Len(t, failed.Failed, 3)
	require.ErrorIs(t, err, context.Canceled)

	err = pub.PublishBatch(context.Background(), "", msgs(1, nil))
	require.ErrorIs(t, err, broker.ErrRejected)

	// Each message's own context counts.
	mixed := msgs(2, nil)
	mixed[1].SetContext(gone)
	require.ErrorIs(t, pub.Publish(topic, mixed...), context.Canceled)

	require.NoError(t, pub.Close(), "the Broker owns the publisher")
	require.NoError(t, pub.PublishBatch(context.Background(), topic, msgs(1, nil)))
}

func testGroups(t *testing.T, e env) {
	topic := unique("groups")
	a, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: "a." + topic})
	b, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: "b." + topic})
	sent := msgs(50, nil)
	e.publish(t, topic, sent)
	require.ElementsMatch(t, uuids(sent), ackAll(t, a, 50))
	require.ElementsMatch(t, uuids(sent), ackAll(t, b, 50))
	e.settles(t, topic, "a."+topic)
	e.settles(t, topic, "b."+topic)
}

func testNewGroup(t *testing.T, e env) {
	topic := unique("late")
	sent := msgs(20, nil)
	e.publish(t, topic, sent[:10])
	first, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: "first." + topic})
	e.publish(t, topic, sent[10:])
	require.ElementsMatch(t, uuids(sent), ackAll(t, first, 20))
	e.settles(t, topic, "first."+topic)
	late, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: "late." + topic})
	require.ElementsMatch(t, uuids(sent), ackAll(t, late, 20))
}

func testMembers(t *testing.T, e env) {
	topic, group := unique("members"), unique("g")
	const members, total = 3, 300
	var mu sync.Mutex
	var got []string
	perMember := make([]int, members)
	done := make(chan struct{})
	for i := range members {
		ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Concurrency: 2, MaxInFlight: 4})
		go func() {
			for m := range ch {
				mu.Lock()
				got = append(got, m.UUID)
				perMember[i]++
				if len(got) == total {
					close(done)
				}
				mu.Unlock()
				time.Sleep(time.Millisecond) // a handler that takes a while
				m.Ack()
			}
		}()
	}
	sent := msgs(total, nil)
	e.publish(t, topic, sent)
	select {
	case <-done:
	case <-time.After(patience):
		require.FailNow(t, "not everything arrived")
	}
	e.settles(t, topic, group)
	mu.Lock()
	defer mu.Unlock()
	require.ElementsMatch(t, uuids(sent), got, "each message once")
	for i, n := range perMember {
		require.NotZero(t, n, "member %d got nothing", i)
	}
}

// testNames: names that differ only in case, dots, dashes or beyond a length at
// which some brokers cut.
func testNames(t *testing.T, e env) {
	base := unique("names")
	long := base + strings.Repeat("x", 64)
	names := []string{
		base + ".order.placed", base + ".order-placed", base + ".order_placed", base + ".orderplaced",
		base + ".Order.Placed", base + ".ORDER.PLACED", base + ".order..placed",
		long + "a", long + "b", long,
	}
	replay := e.b.Features().ReplayForNewGroup
	for _, name := range names {
		for _, group := range []string{"g-" + name, "G-" + name, "g." + name} {
			e.prepare(t, name, group)
		}
		m := message.NewMessage(name, []byte("x"))
		e.publish(t, name, []*message.Message{m})
	}
	for _, name := range names {
		// Groups differ in the same ways: no group may take another's messages.
		for _, group := range []string{"g-" + name, "G-" + name, "g." + name} {
			ch, _ := e.subscribe(t, name, broker.SubscriberConfig{Group: group, Concurrency: 1})
			m := receive(t, ch)
			require.Equal(t, name, m.UUID)
			m.Ack()
			e.settles(t, name, group)
		}
		depth, err := e.b.Admin().Depth(context.Background(), name)
		require.NoError(t, err)
		if replay {
			require.EqualValues(t, 1, depth, name)
		} else {
			require.Zero(t, depth, "%s: every group has its copy and has settled it", name)
		}
	}
}

func testNackDelay(t *testing.T, e env) {
	topic, group := unique("delay"), unique("g")
	ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Concurrency: 2, NackDelay: 300 * time.Millisecond})
	e.publish(t, topic, msgs(1, nil))

	again := func(want int, nack func(*message.Message)) time.Duration {
		m := receive(t, ch)
		require.Equal(t, want, count(m))
		start := time.Now()
		nack(m)
		next := receive(t, ch)
		require.Equal(t, want+1, count(next))
		require.Equal(t, m.UUID, next.UUID)
		require.Equal(t, m.Payload, next.Payload)
		took := time.Since(start)
		delivery(next).RedeliverAfter(0)
		next.Nack()
		return took
	}
	took := again(1, func(m *message.Message) { m.Nack() })
	require.GreaterOrEqual(t, took, 300*time.Millisecond, "the subscriber's own delay")
	took = again(3, func(m *message.Message) {
		delivery(m).RedeliverAfter(700 * time.Millisecond)
		m.Metadata.Set("spoilt", "by the handler")
		m.Payload = append(m.Payload[:0], "spoilt"...)
		m.Payload = []byte(`{"n":0}`)
		m.Nack()
	})
	require.GreaterOrEqual(t, took, 700*time.Millisecond, "the delivery's delay")
	require.Less(t, took, 5*time.Second)

	// While one is held back, others flow and the slot is free.
	held := receive(t, ch)
	require.Empty(t, held.Metadata, "a redelivery is a fresh copy")
	delivery(held).RedeliverAfter(time.Second)
	held.Nack()
	others := msgs(20, nil)
	e.publish(t, topic, others)
	for range others {
		m := receive(t, ch)
		require.Equal(t, 1, count(m))
		m.Ack()
	}
	last := receive(t, ch)
	require.Equal(t, 6, count(last))
	last.Ack()
	e.settles(t, topic, group)
}

func testReleased(t *testing.T, e env) {
	topic, group := unique("released"), unique("g")
	ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Concurrency: 1})
	e.publish(t, topic, msgs(1, nil))
	for range 3 {
		m := receive(t, ch)
		require.Equal(t, 1, count(m))
		delivery(m).Release()
		delivery(m).RedeliverAfter(10 * time.Millisecond)
		m.Nack()
	}
	m := receive(t, ch)
	require.Equal(t, 1, count(m))
	delivery(m).RedeliverAfter(0)
	m.Nack()
	m = receive(t, ch)
	require.Equal(t, 2, count(m), "a nack that was not released counts")
	m.Ack()
	e.settles(t, topic, group)
}

// testOrder: 8 workers, nacks in between; each key strictly in order, one at a
// time, while keys run side by side.
func testOrder(t *testing.T, e env) {
	topic, group := unique("order"), unique("g")
	const keys, each = 12, 15
	sent := msgs(keys*each, func(i int) string { return fmt.Sprintf("key-%d", i%keys) })
	e.prepare(t, topic, group)
	e.publish(t, topic, sent)
	want := make(map[string][]string)
	for _, m := range sent {
		k := m.Metadata["ordering_key"]
		want[k] = append(want[k], m.UUID)
	}
	ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Concurrency: 8, MaxInFlight: 24, Order: true, NackDelay: 20 * time.Millisecond})
	var mu sync.Mutex
	got := make(map[string][]string)
	busy := make(map[string]bool)
	var together, most, left atomic.Int64
	left.Store(keys * each)
	done := make(chan struct{})
	fault := make(chan string, 1)
	go func() {
		for m := range ch {
			go func() {
				k := m.Metadata["ordering_key"]
				mu.Lock()
				if busy[k] {
					select {
					case fault <- "two of " + k + " at once":
					default:
					}
				}
				busy[k] = true
				mu.Unlock()
				if n := together.Add(1); n > most.Load() {
					most.Store(n)
				}
				time.Sleep(2 * time.Millisecond) // a handler that takes a while
				together.Add(-1)
				mu.Lock()
				busy[k] = false
				if nth := slices.Index(want[k], m.UUID); nth%4 == 1 && count(m) == 1 {
					mu.Unlock()
					m.Nack()
					return
				}
				got[k] = append(got[k], m.UUID)
				mu.Unlock()
				m.Ack()
				if left.Add(-1) == 0 {
					close(done)
				}
			}()
		}
	}()
	select {
	case <-done:
	case f := <-fault:
		require.FailNow(t, f)
	case <-time.After(patience):
		require.FailNow(t, "not everything arrived", "%d left", left.Load())
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, want, got)
	require.Greater(t, most.Load(), int64(1), "keys run side by side")
	require.LessOrEqual(t, most.Load(), int64(8))
	e.settles(t, topic, group)
}

// testDelayedKey: one key is held back with a long queue behind it.
func testDelayedKey(t *testing.T, e env) {
	topic, group := unique("delayed"), unique("g")
	slow := func(i int) string { return "slow" }
	fast := func(i int) string { return fmt.Sprintf("fast-%d", i) }
	e.prepare(t, topic, group)
	e.publish(t, topic, msgs(60, slow))
	ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Concurrency: 2, MaxInFlight: 8, Order: true})
	first := receive(t, ch)
	delivery(first).RedeliverAfter(5 * time.Second)
	start := time.Now()
	first.Nack()
	e.publish(t, topic, msgs(30, fast))
	for range 30 {
		m := receive(t, ch)
		require.NotEqual(t, "slow", m.Metadata["ordering_key"], "the key is held back")
		m.Ack()
	}
	var got []string
	for range 60 {
		m := receive(t, ch)
		got = append(got, m.UUID)
		m.Ack()
	}
	require.Equal(t, uuids(msgs(60, nil)), got)
	require.GreaterOrEqual(t, time.Since(start), 5*time.Second)
	e.settles(t, topic, group)
}

// testBusyKey: one key's handler is stuck with a long queue behind it.
func testBusyKey(t *testing.T, e env) {
	topic, group := unique("busy"), unique("g")
	e.prepare(t, topic, group)
	e.publish(t, topic, msgs(200, func(int) string { return "busy" }))
	ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Concurrency: 2, MaxInFlight: 8, Order: true})
	stuck := receive(t, ch)
	e.publish(t, topic, msgs(50, func(i int) string { return fmt.Sprintf("other-%d", i%5) }))
	for range 50 {
		m := receive(t, ch)
		require.NotEqual(t, "busy", m.Metadata["ordering_key"])
		m.Ack()
	}
	got := []string{stuck.UUID}
	stuck.Ack()
	got = append(got, ackAll(t, ch, 199)...)
	require.Equal(t, uuids(msgs(200, nil)), got)
	e.settles(t, topic, group)
}

// testBacklog: a backlog far above MaxInFlight stays at the broker (B09).
func testBacklog(t *testing.T, e env) {
	total := e.h.Backlog
	topic, group := unique("backlog"), unique("g")
	sent := msgs(total, nil)
	e.prepare(t, topic, group)
	e.publish(t, topic, sent)
	const concurrency, inFlight = 4, 40
	ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Concurrency: concurrency, MaxInFlight: inFlight})
	holding := make([]*message.Message, concurrency)
	for i := range holding {
		holding[i] = receive(t, ch)
	}
	receiveNone(t, ch, 50*time.Millisecond)
	stats, err := e.b.Admin().Stats(context.Background(), broker.Subscription{Topic: topic, Group: group})
	require.NoError(t, err)
	require.LessOrEqual(t, stats.Pending, int64(inFlight))
	require.EqualValues(t, total, stats.Pending+stats.Lag)
	require.Positive(t, stats.OldestAge)
	for _, m := range holding {
		m.Ack()
	}
	seen := make(map[string]bool, total)
	for _, m := range holding {
		seen[m.UUID] = true
	}
	for range total - concurrency {
		m := receive(t, ch)
		seen[m.UUID] = true
		m.Ack()
	}
	require.Len(t, seen, total)
	e.settles(t, topic, group)
}

func testConfig(t *testing.T, e env) {
	for field, cfg := range map[string]broker.SubscriberConfig{
		"Group":       {},
		"Concurrency": {Group: "g", Concurrency: -1},
		"MaxInFlight": {Group: "g", Concurrency: 4, MaxInFlight: 3},
		"Lease":       {Group: "g", Lease: time.Millisecond},
	} {
		_, err := e.b.Subscriber(cfg)
		require.ErrorContains(t, err, field)
	}
	require.NotEmpty(t, e.b.Name())
	require.NoError(t, e.b.Ping(context.Background()))
	sub := broker.Subscription{Topic: unique("topology"), Group: unique("g")}
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { errs[i] = e.b.EnsureTopology(context.Background(), sub, sub) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...), "idempotent from many replicas at once")
	require.Error(t, e.b.EnsureTopology(context.Background(), broker.Subscription{Topic: "t"}))
}
