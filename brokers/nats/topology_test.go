package nats_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/brokers/nats"
	"github.com/headrace-go/headrace/framework/broker"
)

const patience = 20 * time.Second

func subscribe(t testing.TB, b *nats.Broker, topic string, cfg broker.SubscriberConfig) (<-chan *message.Message, message.Subscriber) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	cfg.DrainTimeout = 5 * time.Second
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

// TestSharedStream: a stream that others made for many subjects carries the
// topics that it takes, each seen by itself.
func TestSharedStream(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	_, js := s.client(t)
	ctx := context.Background()
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}, AllowDirect: true})
	require.NoError(t, err)
	b := open(t, nats.Config{URL: s.url()})
	publish(t, b, "shop.a", event("e-1", "x"), event("e-2", "x"))
	publish(t, b, "shop.b", event("e-3", "x"))
	_, err = js.Publish(ctx, "shop.a", []byte("foreign"))
	require.NoError(t, err)

	info, err := js.Stream(ctx, "SHOP")
	require.NoError(t, err)
	require.EqualValues(t, 4, info.CachedInfo().State.Msgs)
	require.EqualValues(t, 3, depth(t, b, "shop.a"))
	require.Len(t, browse(t, b, "shop.b"), 1)
	_, err = b.Admin().Delete(ctx, "shop.a", browse(t, b, "shop.b")[0].Position)
	require.ErrorContains(t, err, "shop.b", "another topic's message stays")

	ch, _ := subscribe(t, b, "shop.a", broker.SubscriberConfig{Group: "g", Concurrency: 1})
	m := receive(t, ch)
	require.Equal(t, "e-1", m.UUID)
	stats, err := b.Admin().Stats(ctx, broker.Subscription{Topic: "shop.a", Group: "g"})
	require.NoError(t, err)
	require.EqualValues(t, 3, stats.Lag+stats.Pending)
	require.Positive(t, stats.OldestAge)
	m.Ack()
	for range 2 {
		receive(t, ch).Ack()
	}
}

// TestStreamThatDropsMessages: one that would not keep what a group has not read
// is refused.
func TestStreamThatDropsMessages(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	_, js := s.client(t)
	_, err := js.CreateStream(context.Background(), jetstream.StreamConfig{Name: "W", Subjects: []string{"w"}, Retention: jetstream.WorkQueuePolicy})
	require.NoError(t, err)
	b := open(t, nats.Config{URL: s.url()})
	err = b.EnsureTopology(context.Background(), broker.Subscription{Topic: "w", Group: "g"})
	require.ErrorContains(t, err, "retention")
	require.Error(t, b.Publisher().Publish("w", event("e", "x")))
}

// TestRetentionIsRaised and never lowered: services differ, and none takes from
// another.
func TestRetentionIsRaised(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	_, js := s.client(t)
	for _, step := range []struct{ says, then time.Duration }{
		{2 * time.Hour, 2 * time.Hour}, {time.Hour, 2 * time.Hour}, {3 * time.Hour, 3 * time.Hour}, {-1, 0}, {time.Hour, 0},
	} {
		b := open(t, nats.Config{URL: s.url(), Retention: step.says})
		publish(t, b, "t", message.NewMessage("m", nil))
		stream, err := js.Stream(context.Background(), nats.Config{}.StreamName("t"))
		require.NoError(t, err)
		require.Equal(t, step.then, stream.CachedInfo().Config.MaxAge)
	}
}

// TestLeaseOfAGroup: the members share one AckWait, which no newcomer lowers under
// the others.
func TestLeaseOfAGroup(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	_, js := s.client(t)
	b := open(t, nats.Config{URL: s.url()})
	ackWait := func() time.Duration {
		c, err := js.Consumer(context.Background(), nats.Config{}.StreamName("t"), nats.Config{}.ConsumerName("g"))
		require.NoError(t, err)
		return c.CachedInfo().Config.AckWait
	}
	require.NoError(t, b.EnsureTopology(context.Background(), broker.Subscription{Topic: "t", Group: "g"}))
	require.Equal(t, broker.DefaultLease, ackWait())
	ch, first := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g", Lease: 10 * time.Second})
	require.Equal(t, 10*time.Second, ackWait(), "nobody else is there")
	publish(t, b, "t", event("e-1", "x"))
	held := receive(t, ch)
	_, second := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g", Lease: 2 * time.Second})
	require.Equal(t, 10*time.Second, ackWait(), "a member relies on it")
	_, third := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g", Lease: 20 * time.Second})
	require.Equal(t, 20*time.Second, ackWait())
	held.Ack()
	for _, sub := range []message.Subscriber{first, second, third} {
		require.NoError(t, sub.Close())
	}
	subscribe(t, b, "t", broker.SubscriberConfig{Group: "g", Lease: 2 * time.Second})
	require.Equal(t, 2*time.Second, ackWait())
}

// TestForeignConsumer: a consumer that is no group's is not used.
func TestForeignConsumer(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	_, js := s.client(t)
	ensureStream(t, js, "t")
	_, err := js.CreateConsumer(context.Background(), nats.Config{}.StreamName("t"), jetstream.ConsumerConfig{
		Durable: nats.Config{}.ConsumerName("g"), AckPolicy: jetstream.AckNonePolicy,
	})
	require.NoError(t, err)
	err = open(t, nats.Config{URL: s.url()}).EnsureTopology(context.Background(), broker.Subscription{Topic: "t", Group: "g"})
	require.ErrorContains(t, err, "explicit acks")
}

// TestOpenSaysWhatIsWrong and never a password.
func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	without := &testServer{t: t, opts: startServer(t).opts}
	without.opts.Port, without.opts.JetStream, without.opts.StoreDir = -1, false, ""
	without.start()
	t.Cleanup(without.stop)
	var logged bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&logged, nil))
	for name, url := range map[string]string{
		"JetStream does not answer": without.url(),
		"no NATS answers":           "nats://user:s3cret@127.0.0.1:1",
		"malformed":                 "nats://user:s3cret@127.0.0.1:port",
		"URL and Conn are empty":    "",
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err := nats.Open(ctx, nats.Config{URL: url, Logger: logger})
		cancel()
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), "s3cret")
		if name != "malformed" {
			require.ErrorContains(t, err, name)
		}
	}
	require.NotContains(t, logged.String(), "s3cret")
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := nats.Open(gone, nats.Config{URL: "nats://127.0.0.1:1", Logger: quiet})
	require.ErrorIs(t, err, context.Canceled)
}

// TestConnectionOfTheCaller stays open.
func TestConnectionOfTheCaller(t *testing.T) {
	t.Parallel()
	conn, _ := startServer(t).client(t)
	b, err := nats.Open(context.Background(), nats.Config{Conn: conn, Logger: quiet})
	require.NoError(t, err)
	publish(t, b, "t", event("e-1", "x"))
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	require.Equal(t, natsgo.CONNECTED, conn.Status())
	require.ErrorIs(t, b.Ping(context.Background()), broker.ErrClosed)
	require.ErrorIs(t, b.Publisher().Publish("t", event("e-2", "x")), broker.ErrClosed)
}

func TestAdapter(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	a := nats.Adapter()
	require.Equal(t, "nats", a.Kind)
	b, err := a.Open(context.Background(), broker.AdapterSettings{
		URL: s.url() + "?dedup_window=1m&max_bytes=1048576&replicas=1", Prefix: "x.", Retention: time.Hour, Logger: quiet,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	require.Equal(t, a.Kind, b.Name())
	require.NoError(t, b.Publisher().Publish("t", event("e", "x")))
	_, js := s.client(t)
	stream, err := js.Stream(context.Background(), nats.Config{Prefix: "x."}.StreamName("t"))
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	require.Equal(t, time.Minute, cfg.Duplicates)
	require.Equal(t, time.Hour, cfg.MaxAge)
	require.EqualValues(t, 1<<20, cfg.MaxBytes)
	require.Equal(t, []string{"x.t"}, cfg.Subjects)

	f, err := a.Features(broker.AdapterSettings{URL: "nats://nowhere:4222", Logger: quiet})
	require.NoError(t, err)
	require.Equal(t, b.Features(), f)
	for url, want := range map[string]string{
		"nats://u:s3cret@h?replica=3":     "replica",
		"nats://u:s3cret@h?replicas=many": "replicas",
		"nats://u:s3cret@h?replicas=9":    "Replicas",
		"nats://u:s3cret@h?creds=" + filepath.Join(os.TempDir(), "no-such-headrace-file.creds"): "creds",
		"": "URL",
	} {
		_, err := a.Features(broker.AdapterSettings{URL: url, Logger: quiet})
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "s3cret")
		_, err = a.Open(context.Background(), broker.AdapterSettings{URL: url, Logger: quiet})
		require.ErrorContains(t, err, want)
	}
}
