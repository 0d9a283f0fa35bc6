package kafka_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rcrowley/go-metrics"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/brokertest"
	"github.com/headrace-go/headrace/framework/testenv"
)

var quiet = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) {
	metrics.UseNilMetrics = true // those of stock's client have a goroutine that never ends
	brokertest.Main(m, func(ctx context.Context, addr string) (broker.Broker, error) {
		return kafka.Open(ctx, config(addr))
	})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, brokertest.Harness{Start: startStorage, Unordered: true, Backlog: 30_000})
}

// cluster is a broker of the test's own, in this process.
func cluster(t testing.TB) (addr string) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DefaultNumPartitions(8), kfake.AllowAutoTopicCreation())
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c.ListenAddrs()[0]
}

func config(addr string) kafka.Config {
	return kafka.Config{Brokers: []string{addr}, Partitions: 8, ReplicationFactor: 1, Heartbeat: 100 * time.Millisecond, Logger: quiet}
}

func open(t testing.TB, cfg kafka.Config) *kafka.Broker {
	t.Helper()
	b, err := kafka.Open(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// through has every connection go to a proxy: clients are told the addresses of
// brokers, and would pass it by.
func through(cfg kafka.Config, p *testenv.Proxy) kafka.Config {
	cfg.Options = append(cfg.Options, kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, p.Addr())
	}))
	return cfg
}

func startStorage(t *testing.T) *brokertest.Storage {
	addr := cluster(t)
	proxy := testenv.NewProxy(t, addr)
	return &brokertest.Storage{
		Addr: addr,
		Open: func(t testing.TB) broker.Broker {
			cfg := config(addr)
			if strings.HasSuffix(t.Name(), "/Stock") {
				cfg.Partitions = 1 // it takes messages without a key to be in order
			}
			return open(t, through(cfg, proxy))
		},
		// The broker is in this process and keeps what it holds in memory: it can be
		// out of reach, but not die.
		Stop: proxy.Cut, Restart: proxy.Restore,
		PutMalformed: func(t testing.TB, topic string, raw []byte) {
			put(t, addr, &kgo.Record{Topic: kafka.Config{}.TopicName(topic), Value: raw, Headers: []kgo.RecordHeader{
				{Key: kafka.HeaderUUID, Value: []byte("one")}, {Key: kafka.HeaderUUID, Value: []byte("other")},
			}})
		},
		Stock: func(t testing.TB, group string) (message.Publisher, message.Subscriber) {
			return stockPair(t, addr, group)
		},
	}
}

func put(t testing.TB, addr string, records ...*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.AllowAutoTopicCreation())
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.ProduceSync(context.Background(), records...).FirstErr())
}

func stockPair(t testing.TB, addr, group string) (message.Publisher, message.Subscriber) {
	t.Helper()
	pub, err := stock.NewPublisher(stock.PublisherConfig{
		Brokers: []string{addr}, Marshaler: stock.DefaultMarshaler{}, OverwriteSaramaConfig: onePartition(),
	}, watermill.NopLogger{})
	require.NoError(t, err)
	cfg := stock.DefaultSaramaSubscriberConfig()
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	sub, err := stock.NewSubscriber(stock.SubscriberConfig{
		Brokers: []string{addr}, Unmarshaler: stock.DefaultMarshaler{}, ConsumerGroup: group, OverwriteSaramaConfig: cfg,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, sub.Close())
		require.NoError(t, pub.Close())
	})
	return pub, sub
}

// onePartition has the stock publisher send everything to one partition, so that
// it comes in order.
func onePartition() *sarama.Config {
	cfg := stock.DefaultSaramaSyncPublisherConfig()
	cfg.Producer.Partitioner = func(string) sarama.Partitioner { return first{} }
	return cfg
}

type first struct{}

func (first) Partition(*sarama.ProducerMessage, int32) (int32, error) { return 0, nil }
func (first) RequiresConsistency() bool                               { return false }
