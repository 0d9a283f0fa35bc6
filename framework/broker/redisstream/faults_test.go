package redisstream_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/middleware"
)

const patience = time.Minute

var ctx = context.Background()

func subscribe(t testing.TB, b broker.Broker, topic string, cfg broker.SubscriberConfig) (<-chan *message.Message, message.Subscriber) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	if cfg.Group == "" {
		cfg.Group = "g"
	}
	if cfg.DrainTimeout == 0 {
		cfg.DrainTimeout = time.Second
	}
	sub, err := b.Subscriber(cfg)
	require.NoError(t, err)
	ch, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	return ch, sub
}

func publish(t testing.TB, b broker.Broker, topic string, ids ...string) {
	t.Helper()
	var batch []*message.Message
	for _, id := range ids {
		batch = append(batch, message.NewMessage(id, []byte("x")))
	}
	require.NoError(t, b.Publisher().PublishBatch(ctx, topic, batch))
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

func eventually(t testing.TB, cond func() bool, what string, args ...any) {
	t.Helper()
	require.Eventually(t, cond, patience, 10*time.Millisecond, append([]any{what}, args...)...)
}

// logs collects what is logged.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logs) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.buf.String(), s)
}

func TestLostLeaseCancelsTheHandler_B16(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	b, c := open(t, redisstream.Config{URL: server.URL()}), server.Client()
	ch, _ := subscribe(t, b, "topic", broker.SubscriberConfig{Lease: time.Second})
	publish(t, b, "topic", "a", "b")
	first, second := receive(t, ch), receive(t, ch)
	pending := c.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: "topic", Group: "g", Start: "-", End: "+", Count: 10}).Val()
	require.Len(t, pending, 2)
	stolen := first
	if second.UUID == "a" {
		stolen = second
	}
	require.NoError(t, c.XClaim(ctx, &redis.XClaimArgs{Stream: "topic", Group: "g", Consumer: "thief", Messages: []string{pending[0].ID}}).Err())
	select {
	case <-stolen.Context().Done():
	case <-time.After(patience):
		require.FailNow(t, "the handler was not told")
	}
	require.ErrorIs(t, context.Cause(stolen.Context()), broker.ErrLeaseLost)
	stolen.Ack()
	other := first
	if stolen == first {
		other = second
	}
	require.NoError(t, other.Context().Err())
	other.Ack()
	eventually(t, func() bool {
		left := c.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: "topic", Group: "g", Start: "-", End: "+", Count: 10}).Val()
		return len(left) == 1 && left[0].Consumer == "thief"
	}, "the thief's entry is the thief's to settle")
}

func TestFlushedServer(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	b, c := open(t, redisstream.Config{URL: server.URL()}), server.Client()
	ch, _ := subscribe(t, b, "topic", broker.SubscriberConfig{Lease: time.Second})
	publish(t, b, "topic", "before")
	held := receive(t, ch)
	require.NoError(t, c.FlushAll(ctx).Err())
	publish(t, b, "topic", "after")
	m := receive(t, ch)
	require.Equal(t, "after", m.UUID, "the group starts again from the oldest entry")
	m.Ack()
	select {
	case <-held.Context().Done():
	case <-time.After(patience):
		require.FailNow(t, "nobody knows of this message any more")
	}
	require.ErrorIs(t, context.Cause(held.Context()), broker.ErrLeaseLost)
	held.Nack()
	publish(t, b, "topic", "again")
	m = receive(t, ch)
	require.Equal(t, "again", m.UUID)
	m.Ack()
}

// TestTrimmedByOthers_B34: entries that someone trimmed while they were pending
// are reported and cleared, those of a live consumer and those of a dead one.
func TestTrimmedByOthers_B34(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	var out logs
	b, c := open(t, redisstream.Config{URL: server.URL()}), server.Client()

	publish(t, b, "topic", "dead-1", "dead-2")
	require.NoError(t, b.EnsureTopology(ctx, broker.Subscription{Topic: "topic", Group: "g"}))
	require.NoError(t, c.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "g", Consumer: "dead", Streams: []string{"topic", ">"}}).Err())
	require.NoError(t, c.XTrimMaxLen(ctx, "topic", 0).Err())
	ch, _ := subscribe(t, b, "topic", broker.SubscriberConfig{Lease: time.Second, NackDelay: -1, Logger: out.logger()})
	eventually(t, func() bool { return c.XPending(ctx, "topic", "g").Val().Count == 0 }, "a dead consumer's trimmed entries are cleared")
	eventually(t, func() bool { return out.has("messages lost") && out.has("messages=2") }, "and reported")

	publish(t, b, "topic", "nacked", "acked")
	byID := map[string]*message.Message{}
	for range 2 {
		m := receive(t, ch)
		byID[m.UUID] = m
	}
	require.NoError(t, c.XTrimMaxLen(ctx, "topic", 0).Err())
	eventually(t, func() bool { return out.has("while they are held") }, "the heartbeat notices")
	<-time.After(700 * time.Millisecond) // two more heartbeats
	require.NoError(t, byID["acked"].Context().Err(), "nobody else can have it: the handler goes on")
	byID["acked"].Ack()
	byID["nacked"].Nack()
	publish(t, b, "topic", "next")
	m := receive(t, ch)
	require.Equal(t, "next", m.UUID)
	m.Ack()
	eventually(t, func() bool { return c.XPending(ctx, "topic", "g").Val().Count == 0 }, "nothing stays pending")
}

// B46: a stream keeps what a group has not acked, however old, and loses the rest
// after the retention.
func TestTrimsOnlyWhatEveryGroupHasAcked_B46(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	c := server.Client()
	b := open(t, redisstream.Config{URL: server.URL(), Retention: time.Millisecond, MaintainEvery: 20 * time.Millisecond})
	length := func() int64 { return c.XLen(ctx, "topic").Val() }
	var ids []string
	for i := range 450 {
		ids = append(ids, fmt.Sprint(i))
	}
	publish(t, b, "topic", ids...)
	publish(t, b, "nogroup", ids...)
	require.NoError(t, b.EnsureTopology(ctx, broker.Subscription{Topic: "topic", Group: "slow"}))
	fast, _ := subscribe(t, b, "topic", broker.SubscriberConfig{Group: "fast"})
	for range ids {
		receive(t, fast).Ack()
	}
	eventually(t, func() bool { return c.XPending(ctx, "topic", "fast").Val().Count == 0 }, "fast is done")
	<-time.After(100 * time.Millisecond) // a few rounds of maintenance
	require.EqualValues(t, 450, length(), "slow has read nothing")

	slow, _ := subscribe(t, b, "topic", broker.SubscriberConfig{Group: "slow", Concurrency: 1, MaxInFlight: 1})
	for range 300 {
		receive(t, slow).Ack()
	}
	held := receive(t, slow) // message 300 is pending
	eventually(t, func() bool { return length() == 150 }, "trimmed below the pending entry, %d left", length())
	held.Ack()
	for range 149 {
		receive(t, slow).Ack()
	}
	eventually(t, func() bool { return length() == 0 }, "everything is acked and old")
	require.EqualValues(t, 450, c.XLen(ctx, "nogroup").Val(), "a stream without groups is left alone")

	// Within Retention nothing goes.
	keep := open(t, redisstream.Config{URL: server.URL(), Retention: time.Hour, MaintainEvery: 20 * time.Millisecond})
	publish(t, keep, "kept", ids...)
	ch, _ := subscribe(t, keep, "kept", broker.SubscriberConfig{})
	for range ids {
		receive(t, ch).Ack()
	}
	<-time.After(100 * time.Millisecond)
	require.EqualValues(t, 450, c.XLen(ctx, "kept").Val())
}

func TestConsumerListStaysBounded_B34(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	c := server.Client()
	b := open(t, redisstream.Config{URL: server.URL(), MaintainEvery: 20 * time.Millisecond, ConsumerTimeout: 200 * time.Millisecond})
	for i := range 50 {
		publish(t, b, "topic", fmt.Sprint(i))
		ch, sub := subscribe(t, b, "topic", broker.SubscriberConfig{})
		receive(t, ch).Ack()
		require.NoError(t, sub.Close())
		require.LessOrEqual(t, len(c.XInfoConsumers(ctx, "topic", "g").Val()), 1)
	}
	// Consumers that were killed: one left nothing, one left an entry.
	require.NoError(t, c.XGroupCreateConsumer(ctx, "topic", "g", "empty").Err())
	publish(t, b, "topic", "left")
	require.NoError(t, c.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "g", Consumer: "full", Streams: []string{"topic", ">"}}).Err())
	ch, _ := subscribe(t, b, "topic", broker.SubscriberConfig{Consumer: "alive", Lease: time.Hour})
	publish(t, b, "topic", "last")
	receive(t, ch).Ack()
	names := func() (out []string) {
		for _, x := range c.XInfoConsumers(ctx, "topic", "g").Val() {
			out = append(out, x.Name)
		}
		return out
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.ElementsMatch(c, []string{"alive", "full"}, names())
	}, patience, 20*time.Millisecond)
	require.EqualValues(t, 1, c.XPending(ctx, "topic", "g").Val().Count, "a pending entry is never removed with its consumer")
}

// TestAnswerThatNeverArrived: Redis gave entries to this consumer, the answer
// was lost on the way.
func TestAnswerThatNeverArrived(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	c := server.Client()
	b := open(t, redisstream.Config{URL: server.URL(), ClaimInterval: 50 * time.Millisecond})
	ch, _ := subscribe(t, b, "topic", broker.SubscriberConfig{Consumer: "me", Lease: time.Second, MaxInFlight: 10})
	publish(t, b, "other", "x")
	require.NoError(t, b.EnsureTopology(ctx, broker.Subscription{Topic: "topic", Group: "g"}))
	// A connection that nobody reads takes the entry in the consumer's name.
	require.NoError(t, c.XAdd(ctx, &redis.XAddArgs{Stream: "lost", Values: []any{stock.UUIDHeaderKey, "lost", "payload", "x"}}).Err())
	require.NoError(t, b.EnsureTopology(ctx, broker.Subscription{Topic: "lost", Group: "g"}))
	require.NoError(t, c.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "g", Consumer: "me", Streams: []string{"lost", ">"}}).Err())
	lost, _ := subscribe(t, b, "lost", broker.SubscriberConfig{Consumer: "me", Lease: time.Second})
	m := receive(t, lost)
	require.Equal(t, "lost", m.UUID)
	require.Equal(t, 2, middleware.DeliveryFrom(m.Context()).Count())
	m.Ack()
	eventually(t, func() bool { return c.XPending(ctx, "lost", "g").Val().Count == 0 }, "settled")
	select {
	case m := <-ch:
		require.FailNow(t, "another topic's message", m.UUID)
	default:
	}
}

// TestStockTakesOverWhatWasReleased: a stock process in the group gets it too.
func TestStockTakesOverWhatWasReleased(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	b := open(t, redisstream.Config{URL: server.URL()})
	publish(t, b, "topic", "a", "b", "c")
	ch, sub := subscribe(t, b, "topic", broker.SubscriberConfig{Concurrency: 1})
	receive(t, ch).Ack()
	require.NoError(t, sub.Close())
	other, err := stock.NewSubscriber(stock.SubscriberConfig{
		Client: client(t, server.URL()), ConsumerGroup: "g", DisableIndefiniteInitialBlock: true,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = other.Close() })
	taken, err := other.Subscribe(ctx, "topic")
	require.NoError(t, err)
	for _, want := range []string{"b", "c"} {
		m := receive(t, taken)
		require.Equal(t, want, m.UUID)
		m.Ack()
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	_, err := redisstream.Open(ctx, redisstream.Config{})
	require.ErrorContains(t, err, "URL and Client are empty")
	_, err = redisstream.Open(ctx, redisstream.Config{URL: "http://user:s3cret@h/0"})
	require.ErrorContains(t, err, "URL")
	require.NotContains(t, err.Error(), "s3cret")
	_, err = redisstream.Open(ctx, redisstream.Config{URL: "redis://:s3cret@%zz/0"})
	require.Error(t, err)
	require.NotContains(t, err.Error(), "s3cret")
	_, err = redisstream.Open(ctx, redisstream.Config{URL: "redis://127.0.0.1:1/0", BlockTime: time.Hour})
	require.ErrorContains(t, err, "BlockTime")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = redisstream.Open(short, redisstream.Config{URL: "redis://:s3cret@" + l.Addr().String() + "/0"})
	require.ErrorContains(t, err, "no Redis answers at "+l.Addr().String())
	require.NotContains(t, err.Error(), "s3cret")
}

func TestClientThatWasHandedInStaysOpen(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	c := server.Client()
	b := open(t, redisstream.Config{Client: c, Prefix: "app:"})
	ch, sub := subscribe(t, b, "topic", broker.SubscriberConfig{})
	publish(t, b, "topic", "a")
	receive(t, ch).Ack()
	require.EqualValues(t, 1, c.XLen(ctx, "app:topic").Val())
	require.NoError(t, sub.Close())
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	require.NoError(t, c.Ping(ctx).Err())
	require.ErrorIs(t, b.Ping(ctx), broker.ErrClosed)
	require.ErrorIs(t, b.Publisher().PublishBatch(ctx, "topic", []*message.Message{message.NewMessage("a", nil)}), broker.ErrClosed)
}

// TestRejected: what Redis never takes is marked so, and the rest of the batch is
// confirmed (B24).
func TestRejected_B24(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	b, c := open(t, redisstream.Config{URL: server.URL()}), server.Client()
	batch := []*message.Message{message.NewMessage("a", nil), message.NewMessage("b", nil), message.NewMessage("c", nil)}
	batch[1].Metadata.Set(stock.UUIDHeaderKey, "reserved")
	var failed *broker.PublishError
	require.ErrorAs(t, b.Publisher().PublishBatch(ctx, "topic", batch), &failed)
	require.Len(t, failed.Failed, 1)
	require.ErrorIs(t, failed.Failed[1], broker.ErrRejected)
	require.EqualValues(t, 2, c.XLen(ctx, "topic").Val())

	require.NoError(t, c.Set(ctx, "string", "x", 0).Err())
	err := b.Publisher().PublishBatch(ctx, "string", batch[:1])
	require.ErrorIs(t, err, broker.ErrRejected)
	// Out of memory passes by: not rejected for good.
	require.NoError(t, c.ConfigSet(ctx, "maxmemory", "1").Err())
	err = b.Publisher().PublishBatch(ctx, "topic", batch[:1])
	require.ErrorContains(t, err, "OOM")
	require.NotErrorIs(t, err, broker.ErrRejected)
	require.NoError(t, c.ConfigSet(ctx, "maxmemory", "0").Err())

	large := make([]*message.Message, 2500)
	for i := range large {
		large[i] = message.NewMessage(uuid.NewString(), bytes.Repeat([]byte("x"), 4096))
	}
	require.NoError(t, b.Publisher().PublishBatch(ctx, "large", large), "several pipelines")
	require.EqualValues(t, 2500, c.XLen(ctx, "large").Val())
}

// wire is a TCP proxy that can swallow everything in silence.
type wire struct {
	l      net.Listener
	to     string
	silent atomic.Bool
	wg     sync.WaitGroup
	mu     sync.Mutex
	conns  []net.Conn
}

func newWire(t *testing.T, to string) *wire {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{l: l, to: to}
	w.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, in, out)
			w.mu.Unlock()
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				w.wg.Go(func() { w.copy(pair[0], pair[1]) })
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.mu.Lock()
		for _, c := range w.conns {
			c.Close()
		}
		w.mu.Unlock()
		w.wg.Wait()
	})
	return w
}

func (w *wire) copy(from, to net.Conn) {
	buf := make([]byte, 64<<10)
	dead := false
	for {
		n, err := from.Read(buf)
		if err != nil {
			to.Close()
			return
		}
		// What was swallowed once spoils the stream: the connection is dead.
		if dead = dead || w.silent.Load(); dead {
			continue
		}
		if _, err := io.Copy(to, bytes.NewReader(buf[:n])); err != nil {
			return
		}
	}
}

// TestSilence_B27_B34: a broker that accepts and never answers holds a publish
// only to its context, and packets that vanish hold consumption up for less than
// a minute.
func TestSilence_B27_B34(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	w := newWire(t, strings.TrimSuffix(strings.TrimPrefix(server.URL(), "redis://"), "/0"))
	direct := open(t, redisstream.Config{URL: server.URL()})
	b := open(t, redisstream.Config{URL: "redis://" + w.l.Addr().String() + "/0"})
	ch, _ := subscribe(t, b, "topic", broker.SubscriberConfig{Lease: time.Second})
	publish(t, direct, "topic", "first")
	receive(t, ch).Ack()

	w.silent.Store(true)
	start := time.Now()
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	err := b.Publisher().PublishBatch(short, "topic", []*message.Message{message.NewMessage("x", nil)})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	cancelled, stop := context.WithCancel(ctx)
	time.AfterFunc(100*time.Millisecond, stop)
	err = b.Publisher().PublishBatch(cancelled, "topic", []*message.Message{message.NewMessage("x", nil)})
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, time.Since(start), 2*time.Second)
	if testing.Short() {
		w.silent.Store(false)
		return
	}
	publish(t, direct, "topic", "second")
	w.silent.Store(false)
	m := receive(t, ch)
	require.Equal(t, "second", m.UUID)
	require.Less(t, time.Since(start), time.Minute)
	m.Ack()
}
