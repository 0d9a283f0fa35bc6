package rabbitmq_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/brokers/rabbitmq"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/brokertest"
)

var quiet = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) {
	brokertest.Main(m, func(ctx context.Context, addr string) (broker.Broker, error) {
		return rabbitmq.Open(ctx, rabbitmq.Config{URL: addr, Logger: quiet})
	})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	started := false
	brokertest.Run(t, brokertest.Harness{
		Start: func(t *testing.T) *brokertest.Storage {
			// The first is for everything, those that come later for what stops it.
			s := sharedServer
			if started {
				s = ownServer
			}
			started = true
			return storage(s(t))
		},
		NoAge: true,
		// 100,000 take 40 s and more on two cores, most of it the server's.
		Backlog: 20_000,
	})
}

func storage(s *server) *brokertest.Storage {
	cfg := rabbitmq.Config{URL: s.url(), Logger: quiet}
	return &brokertest.Storage{
		Addr:         s.url(),
		Open:         func(t testing.TB) broker.Broker { return open(t, cfg) },
		Stop:         s.kill,
		Restart:      func() { _ = s.start() },
		PutMalformed: func(t testing.TB, topic string, raw []byte) { putMalformed(t, s, cfg, topic, raw) },
		Stock: func(t testing.TB, group string) (message.Publisher, message.Subscriber) {
			return stockPair(t, cfg, group)
		},
	}
}

func open(t testing.TB, cfg rabbitmq.Config) *rabbitmq.Broker {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	b, err := rabbitmq.Open(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// putMalformed publishes bytes with a header that can't be metadata.
func putMalformed(t testing.TB, s *server, cfg rabbitmq.Config, topic string, raw []byte) {
	t.Helper()
	ch := s.dial(t)
	require.NoError(t, ch.Confirm(false))
	c, err := ch.PublishWithDeferredConfirm(cfg.ExchangeName(topic), "", true, false, amqp.Publishing{
		Headers: amqp.Table{"broken": amqp.Table{"a": "b"}}, Body: raw, DeliveryMode: amqp.Persistent,
	})
	require.NoError(t, err)
	require.True(t, c.Wait())
}

// stockConfig is watermill-amqp's own for publish and subscribe, with our names.
func stockConfig(cfg rabbitmq.Config, group string) stock.Config {
	c := stock.NewDurablePubSubConfig(cfg.URL, func(topic string) string { return topic + "_" + group })
	c.Exchange.GenerateName = cfg.ExchangeName
	return c
}

func stockPair(t testing.TB, cfg rabbitmq.Config, group string) (message.Publisher, message.Subscriber) {
	t.Helper()
	pub, err := stock.NewPublisher(stockConfig(cfg, group), watermill.NopLogger{})
	require.NoError(t, err)
	sub, err := stock.NewSubscriber(stockConfig(cfg, group), watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = sub.Close()
		_ = pub.Close()
	})
	return pub, sub
}
