package nats_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/brokers/nats"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/brokertest"
)

var quiet = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) {
	brokertest.Main(m, func(ctx context.Context, addr string) (broker.Broker, error) {
		return nats.Open(ctx, nats.Config{URL: addr, Logger: quiet})
	})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	// The race detector slows the server too, which is in this process: 100,000
	// take longer than half a minute with it, and 8 s without.
	brokertest.Run(t, brokertest.Harness{Start: startStorage, Backlog: 30_000, Latency: 4 * time.Second})
}

// testServer is a NATS server of the test's own, in this process.
type testServer struct {
	t    testing.TB
	opts server.Options
	s    *server.Server
}

func startServer(t testing.TB) *testServer {
	t.Helper()
	s := &testServer{t: t, opts: server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
	}}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *testServer) start() {
	opts := s.opts
	ns, err := server.NewServer(&opts)
	require.NoError(s.t, err)
	ns.Start()
	require.True(s.t, ns.ReadyForConnections(20*time.Second), "the server does not start")
	s.opts.Port = opts.Port // the same one after a restart
	s.s = ns
}

func (s *testServer) stop() {
	s.s.Shutdown()
	s.s.WaitForShutdown()
}

func (s *testServer) url() string { return s.s.ClientURL() }

// client is a plain connection.
func (s *testServer) client(t testing.TB) (*natsgo.Conn, jetstream.JetStream) {
	t.Helper()
	conn, err := natsgo.Connect(s.url())
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	return conn, js
}

func open(t testing.TB, cfg nats.Config) *nats.Broker {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	b, err := nats.Open(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func startStorage(t *testing.T) *brokertest.Storage {
	s := startServer(t)
	return &brokertest.Storage{
		Addr: s.url(),
		Open: func(t testing.TB) broker.Broker { return open(t, nats.Config{URL: s.url()}) },
		Stop: s.stop, Restart: s.start,
		PutMalformed: func(t testing.TB, topic string, raw []byte) {
			_, js := s.client(t)
			ensureStream(t, js, topic)
			_, err := js.PublishMsg(context.Background(), &natsgo.Msg{
				Subject: nats.Config{}.Subject(topic), Data: raw,
				Header: natsgo.Header{nats.HeaderMetadata: {"%"}},
			})
			require.NoError(t, err)
		},
		Stock: func(t testing.TB, group string) (message.Publisher, message.Subscriber) {
			return stockPair(t, s, group)
		},
	}
}

// ensureStream does what infrastructure code does for programs that know no
// Headrace.
func ensureStream(t testing.TB, js jetstream.JetStream, topic string) {
	t.Helper()
	_, err := js.CreateStream(context.Background(), nats.Config{}.StreamConfig(topic))
	require.NoError(t, err)
}

// provisioned is a stock publisher or subscriber on streams that are there.
type provisioned struct {
	message.Publisher
	message.Subscriber
	t  testing.TB
	js jetstream.JetStream
}

func (p provisioned) Publish(topic string, msgs ...*message.Message) error {
	ensureStream(p.t, p.js, topic)
	return p.Publisher.Publish(topic, msgs...)
}

func (p provisioned) Close() error { return nil }

func stockPair(t testing.TB, s *testServer, group string) (message.Publisher, message.Subscriber) {
	t.Helper()
	_, js := s.client(t)
	pub, err := stock.NewPublisher(stock.PublisherConfig{URL: s.url()}, watermill.NopLogger{})
	require.NoError(t, err)
	sub, err := stock.NewSubscriber(stock.SubscriberConfig{
		URL: s.url(), Unmarshaler: &stock.NATSMarshaler{}, QueueGroupPrefix: group[len(group)-36:],
		JetStream: stock.JetStreamConfig{
			DurablePrefix:    "stock",
			SubscribeOptions: []natsgo.SubOpt{natsgo.DeliverAll(), natsgo.AckExplicit()},
		},
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, sub.Close())
		require.NoError(t, pub.Close())
	})
	return provisioned{Publisher: pub, t: t, js: js}, sub
}
