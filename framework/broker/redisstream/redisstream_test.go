package redisstream_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/brokertest"
	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/framework/testenv"
)

var quiet = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) {
	brokertest.Main(m, func(ctx context.Context, addr string) (broker.Broker, error) {
		return redisstream.Open(ctx, redisstream.Config{URL: addr, Logger: quiet})
	})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, brokertest.Harness{Start: startStorage})
}

func startStorage(t *testing.T) *brokertest.Storage {
	server := testenv.Redis(t)
	return &brokertest.Storage{
		Addr: server.URL(),
		Open: func(t testing.TB) broker.Broker { return open(t, redisstream.Config{URL: server.URL()}) },
		Stop: server.Stop, Restart: server.Start,
		PutMalformed: func(t testing.TB, topic string, raw []byte) {
			c := client(t, server.URL())
			require.NoError(t, c.XAdd(context.Background(), &redis.XAddArgs{Stream: topic, Values: []any{"payload", raw}}).Err())
		},
		Stock: func(t testing.TB, group string) (message.Publisher, message.Subscriber) {
			logger := watermill.NopLogger{}
			pub, err := stock.NewPublisher(stock.PublisherConfig{Client: client(t, server.URL())}, logger)
			require.NoError(t, err)
			sub, err := stock.NewSubscriber(stock.SubscriberConfig{
				Client: client(t, server.URL()), ConsumerGroup: group, DisableIndefiniteInitialBlock: true,
			}, logger)
			require.NoError(t, err)
			t.Cleanup(func() { _ = sub.Close() })
			return pub, sub
		},
	}
}

func open(t testing.TB, cfg redisstream.Config) *redisstream.Broker {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	b, err := redisstream.Open(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func client(t testing.TB, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	require.NoError(t, err)
	c := redis.NewClient(opts)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
