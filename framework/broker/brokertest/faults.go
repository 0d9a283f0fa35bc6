package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
)

// testCrash: SIGKILL a process that runs some messages and has fetched more.
func testCrash(t *testing.T, e env) {
	topic, group := unique("crash"), unique("g")
	const total = 20
	sent := msgs(total, nil)
	e.prepare(t, topic, group)
	e.publish(t, topic, sent)
	c := e.child(t, topic, group, 0, false)
	var begun []string
	for range childConcurrency {
		id, n := c.got()
		require.Equal(t, 1, n)
		begun = append(begun, id)
	}
	c.kill()
	ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Lease: broker.MinLease})
	counts := make(map[string]int)
	for range total {
		m := receive(t, ch)
		counts[m.UUID] = count(m)
		m.Ack()
	}
	require.Len(t, counts, total)
	for _, id := range begun {
		e.counted(t, 2, counts[id], "the count survives the crash")
	}
	e.settles(t, topic, group)
}

// testCountAcrossCrash: a nack and then SIGKILL during the second delivery.
func testCountAcrossCrash(t *testing.T, e env) {
	topic, group := unique("count"), unique("g")
	e.prepare(t, topic, group)
	e.publish(t, topic, msgs(1, nil))
	c := e.child(t, topic, group, 1, false)
	for want := 1; want <= 2; want++ {
		_, n := c.got()
		require.Equal(t, want, n)
	}
	c.kill()
	ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Lease: broker.MinLease})
	m := receive(t, ch)
	e.counted(t, 3, count(m), "the count survives the crash")
	m.Ack()
	e.settles(t, topic, group)
}

// testCrashOrder: what a dead member held of a key comes before what is newer.
func testCrashOrder(t *testing.T, e env) {
	topic, group := unique("crashorder"), unique("g")
	e.prepare(t, topic, group)
	sent := msgs(12, func(int) string { return "k" })
	e.publish(t, topic, sent[:6])
	c := e.child(t, topic, group, 0, true)
	c.got()
	c.kill()
	// The lease of the dead runs out before the next member starts.
	<-time.After(broker.MinLease + 200*time.Millisecond)
	e.publish(t, topic, sent[6:])
	ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Lease: broker.MinLease, Order: true})
	require.Equal(t, uuids(sent), ackAll(t, ch, len(sent)))
	e.settles(t, topic, group)
}

// testMalformed: bytes that are no entry, in front of good messages.
func testMalformed(t *testing.T, e env) {
	for _, order := range []bool{false, true} {
		if order && !e.b.Features().OrderPerKey {
			continue
		}
		topic, group := unique("malformed"), unique("g")
		e.prepare(t, topic, group)
		raws := []string{"", "null", "[]", `{"id":`, "\x00\xff\xfe"}
		for _, raw := range raws {
			e.PutMalformed(t, topic, []byte(raw))
		}
		e.publish(t, topic, msgs(3, nil))
		ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Concurrency: 2, Order: order})
		require.ElementsMatch(t, uuids(msgs(3, nil)), ackAll(t, ch, 3))
		e.settles(t, topic, group)
		var got []string
		for stored, err := range e.b.Admin().Browse(context.Background(), broker.DeadLetterTopic(group), time.Time{}) {
			require.NoError(t, err)
			require.NotEmpty(t, stored.Message.Metadata[broker.MalformedReasonKey])
			require.NotEmpty(t, stored.Message.UUID)
			got = append(got, string(stored.Message.Payload))
		}
		require.ElementsMatch(t, raws, got, "raw copies, each once")
	}
}

// testMalformedKept: OnMalformed fails at first; the entry comes again, never
// hot, and never ends the subscription.
func testMalformedKept(t *testing.T, e env) {
	topic, group := unique("kept"), unique("g")
	var calls atomic.Int64
	settled := make(chan string, 1)
	e.prepare(t, topic, group)
	e.PutMalformed(t, topic, []byte("raw"))
	e.publish(t, topic, msgs(1, nil))
	ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{
		Group: group, Concurrency: 1, NackDelay: -1,
		OnMalformed: func(ctx context.Context, raw *message.Message, reason error) error {
			switch calls.Add(1) {
			case 1:
				return errors.New("not now")
			case 2:
				panic("not now either")
			}
			if reason == nil {
				return errors.New("no reason")
			}
			settled <- string(raw.Payload)
			return nil
		},
	})
	start := time.Now()
	ackAll(t, ch, 1)
	select {
	case raw := <-settled:
		require.Equal(t, "raw", raw)
	case <-time.After(patience):
		require.FailNow(t, "the entry did not come again")
	}
	require.GreaterOrEqual(t, time.Since(start), 2*time.Second, "two failures, no hot loop")
	require.EqualValues(t, 3, calls.Load())
	e.settles(t, topic, group)
}

// testStock: a stock process at the other end, in both directions.
func testStock(t *testing.T, e env) {
	pub, sub := e.Stock(t, unique("stock"))
	replay := e.b.Features().ReplayForNewGroup
	sent := message.NewMessage("id", []byte(`{"x":1}`))
	sent.Metadata.Set("k", "v")
	sent.Metadata.Set("ordering_key", "o")
	bare := message.NewMessage("bare", []byte{})
	if e.StockNeedsPayload {
		bare.Payload = []byte("x")
	}

	ours := unique("ours")
	if init, ok := sub.(message.SubscribeInitializer); ok && !replay {
		require.NoError(t, init.SubscribeInitialize(ours))
	}
	e.publish(t, ours, []*message.Message{sent.Copy(), bare.Copy()})
	ch, err := sub.Subscribe(context.Background(), ours)
	require.NoError(t, err)
	for _, want := range []*message.Message{sent, bare} {
		got := receive(t, ch)
		require.True(t, want.Equals(got), "stock reads ours: %v", got)
		got.Ack()
	}

	theirs, group := unique("theirs"), unique("g")
	e.prepare(t, theirs, group)
	require.NoError(t, pub.Publish(theirs, sent.Copy(), bare.Copy()))
	ch, _ = e.subscribe(t, theirs, broker.SubscriberConfig{Group: group, Concurrency: 1})
	for _, want := range []*message.Message{sent, bare} {
		got := receive(t, ch)
		require.True(t, want.Equals(got), "ours reads stock: %v", got)
		got.Ack()
	}
}

// testRestart: the broker goes away and comes back. Publishing fails meanwhile
// and says what was not confirmed; a message that was handled meanwhile is not
// handled again; consumption resumes by itself.
func testRestart(t *testing.T, e env) {
	topic, group := unique("restart"), unique("g")
	ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group, Concurrency: 2})
	e.publish(t, topic, msgs(1, nil))
	held := receive(t, ch)
	// The broker syncs its file once a second; a crash in between loses more.
	<-time.After(1200 * time.Millisecond)

	e.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	err := e.b.Publisher().PublishBatch(ctx, topic, msgs(3, nil))
	var failed *broker.PublishError
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed.Failed, 3)
	require.False(t, errors.Is(err, broker.ErrRejected), "worth trying again")
	require.Error(t, e.b.Ping(ctx))
	held.Ack()

	e.Restart()
	start := time.Now()
	var sent []*message.Message
	for i := range 5 {
		sent = append(sent, message.NewMessage(fmt.Sprintf("after-%d", i), []byte("x")))
	}
	require.Eventually(t, func() bool {
		return e.b.Publisher().PublishBatch(context.Background(), topic, sent) == nil
	}, patience, 50*time.Millisecond)
	seen := make(map[string]bool)
	for len(seen) < len(sent) {
		m := receive(t, ch)
		require.NotEqual(t, held.UUID, m.UUID, "handled while the broker was away, handled again")
		seen[m.UUID] = true
		m.Ack()
	}
	require.Less(t, time.Since(start), 15*time.Second)
	e.settles(t, topic, group)
}

func testAdmin(t *testing.T, e env) {
	ctx := context.Background()
	admin := e.b.Admin()
	topic, group := unique("admin"), unique("g")
	sub := broker.Subscription{Topic: topic, Group: group}

	stats, err := admin.Stats(ctx, sub)
	require.NoError(t, err)
	require.Zero(t, stats, "what does not exist yet")
	depth, err := admin.Depth(ctx, topic)
	require.NoError(t, err)
	require.Zero(t, depth)
	for range admin.Browse(ctx, topic, time.Time{}) {
		require.FailNow(t, "nothing to browse")
	}

	sent := msgs(250, nil)
	e.prepare(t, topic, group)
	e.publish(t, topic, sent[:200])
	require.NoError(t, e.b.EnsureTopology(ctx, sub))
	between := time.Now()
	<-time.After(5 * time.Millisecond) // brokers keep times in milliseconds
	e.publish(t, topic, sent[200:])
	depth, err = admin.Depth(ctx, topic)
	require.NoError(t, err)
	require.EqualValues(t, 250, depth)
	stats, err = admin.Stats(ctx, sub)
	require.NoError(t, err)
	require.EqualValues(t, 250, stats.Lag)
	require.Zero(t, stats.Pending)
	if !e.h.NoAge {
		require.Positive(t, stats.OldestAge)
	}

	browse := func(since time.Time) (out []broker.Stored) {
		for stored, err := range admin.Browse(ctx, topic, since) {
			require.NoError(t, err)
			out = append(out, stored)
		}
		return out
	}
	all := browse(time.Time{})
	require.Len(t, all, 250)
	positions := make(map[string]bool)
	for i, s := range all {
		if e.h.Unordered {
			i = slices.IndexFunc(sent, func(m *message.Message) bool { return m.UUID == s.Message.UUID })
			require.GreaterOrEqual(t, i, 0)
		}
		require.Equal(t, sent[i].UUID, s.Message.UUID)
		require.Equal(t, sent[i].Payload, s.Message.Payload)
		require.WithinDuration(t, time.Now(), s.PublishedAt, time.Minute)
		positions[s.Position] = true
	}
	require.Len(t, positions, 250)
	require.Len(t, browse(between), 50)
	for range admin.Browse(ctx, topic, time.Time{}) {
		break // a consumer may stop early
	}

	n, err := admin.Delete(ctx, topic, all[0].Position, all[249].Position)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	n, err = admin.Delete(ctx, topic, all[0].Position)
	require.NoError(t, err)
	require.Zero(t, n, "gone already")
	require.Len(t, browse(time.Time{}), 248)
	stats, err = admin.Stats(ctx, sub)
	require.NoError(t, err)
	require.EqualValues(t, 248, stats.Lag)

	ch, _ := e.subscribe(t, topic, broker.SubscriberConfig{Group: group})
	require.Equal(t, 248, len(ackAll(t, ch, 248)))
	e.settles(t, topic, group)

	gone, cancel := context.WithCancel(ctx)
	cancel()
	for _, err := range admin.Browse(gone, topic, time.Time{}) {
		require.ErrorIs(t, err, context.Canceled)
	}
}
