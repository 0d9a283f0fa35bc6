package rabbitmq_test

import (
	"context"
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

// Run with:
//
//	go test . -run '^$' -bench . -benchtime 20000x
//
// Each path is measured beside stock and beside a hand-written loop on one client,
// in one run on one server, all on quorum queues; ns/op is per message.

const perCall = 100

type bench struct {
	s    *server
	cfg  rabbitmq.Config
	ours *rabbitmq.Broker
}

func newBench(b *testing.B) *bench {
	s := sharedServer(b)
	cfg := rabbitmq.Config{URL: s.url(), Logger: quiet}
	return &bench{s, cfg, open(b, cfg)}
}

// topic makes a topic with one group.
func (x *bench) topic(b *testing.B) (topic, queue string) {
	topic = unique("bench")
	require.NoError(b, x.ours.EnsureTopology(context.Background(), broker.Subscription{Topic: topic, Group: "g"}))
	return topic, x.cfg.QueueName(topic, "g")
}

func report(b *testing.B) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	b.StopTimer()
}

func BenchmarkPublish100(b *testing.B) {
	x := newBench(b)
	run := func(name string, publish func(topic string, batch []*message.Message) error) {
		b.Run(name, func(b *testing.B) {
			topic, _ := x.topic(b)
			batch := brokertest.BenchMessages(perCall, 0)
			b.ResetTimer()
			for left := b.N; left > 0; left -= perCall {
				require.NoError(b, publish(topic, batch[:min(left, perCall)]))
			}
			report(b)
		})
	}
	ch := x.s.dial(b)
	require.NoError(b, ch.Confirm(false))
	run("hand-written", func(topic string, batch []*message.Message) error {
		var confirms []*amqp.DeferredConfirmation
		for _, m := range batch {
			p, err := stock.DefaultMarshaler{}.Marshal(m)
			if err != nil {
				return err
			}
			c, err := ch.PublishWithDeferredConfirm(topic, "", true, false, p)
			if err != nil {
				return err
			}
			confirms = append(confirms, c)
		}
		for _, c := range confirms {
			require.True(b, c.Wait())
		}
		return nil
	})
	run("headrace", func(topic string, batch []*message.Message) error {
		return x.ours.Publisher().PublishBatch(context.Background(), topic, batch)
	})
	for name, confirm := range map[string]bool{"stock": false, "stock-confirmed": true} {
		cfg := stockConfig(x.cfg, "")
		cfg.Publish.ConfirmDelivery = confirm
		pub, err := stock.NewPublisher(cfg, watermill.NopLogger{})
		require.NoError(b, err)
		defer pub.Close()
		run(name, func(topic string, batch []*message.Message) error { return pub.Publish(topic, batch...) })
	}
}

func BenchmarkConsume(b *testing.B) {
	x := newBench(b)
	ctx := context.Background()
	run := func(name string, consume func(b *testing.B, topic, queue string)) {
		b.Run(name, func(b *testing.B) {
			topic, queue := x.topic(b)
			for left := b.N; left > 0; left -= 1000 {
				publish(b, x.ours, topic, brokertest.BenchMessages(min(left, 1000), 0))
			}
			b.ResetTimer()
			consume(b, topic, queue)
			report(b)
		})
	}
	drain := func(b *testing.B, sub message.Subscriber, topic string) {
		ch, err := sub.Subscribe(ctx, topic)
		require.NoError(b, err)
		for range b.N {
			(<-ch).Ack()
		}
		require.NoError(b, sub.Close()) // the acks belong to the work
	}
	run("hand-written", func(b *testing.B, _, queue string) {
		ch := x.s.dial(b)
		require.NoError(b, ch.Qos(100, 0, false))
		in, err := ch.Consume(queue, "", false, false, false, false, nil)
		require.NoError(b, err)
		for n := range b.N {
			d := <-in
			_, err := stock.DefaultMarshaler{}.Unmarshal(d)
			require.NoError(b, err)
			if n%50 == 49 || n == b.N-1 {
				require.NoError(b, d.Ack(true))
			}
		}
		require.NoError(b, ch.Close())
	})
	run("headrace", func(b *testing.B, topic, _ string) {
		sub, err := x.ours.Subscriber(broker.SubscriberConfig{Group: "g", Logger: quiet})
		require.NoError(b, err)
		drain(b, sub, topic)
	})
	for name, prefetch := range map[string]int{"stock": 1, "stock-prefetch-100": 100} {
		run(name, func(b *testing.B, topic, queue string) {
			cfg := stockConfig(x.cfg, "")
			cfg.Queue.GenerateName = func(string) string { return queue }
			cfg.TopologyBuilder = asIs{}
			cfg.Consume.Qos.PrefetchCount = prefetch
			sub, err := stock.NewSubscriber(cfg, watermill.NopLogger{})
			require.NoError(b, err)
			drain(b, sub, topic)
		})
	}
}

// asIs leaves the queues as they are: stock would declare them of another type.
type asIs struct{}

func (asIs) BuildTopology(*amqp.Channel, stock.BuildTopologyParams, stock.Config, watermill.LoggerAdapter) error {
	return nil
}

func (asIs) ExchangeDeclare(*amqp.Channel, string, stock.Config) error { return nil }
