package redisstream_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/brokertest"
	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/framework/testenv"
)

// Run with:
//
//	go test ./framework/broker/redisstream -run '^$' -bench . -benchtime 200000x
//
// Each path is measured beside a hand-written loop on the same client library
// (ceiling) and the stock adapter, in one run; ns/op is per message.

const perCall = 100

func BenchmarkPublish100(b *testing.B) {
	server := testenv.Redis(b)
	ctx := context.Background()
	run := func(name string, publish func(topic string, batch []*message.Message) error) {
		b.Run(name, func(b *testing.B) {
			batch := brokertest.BenchMessages(perCall, 1)
			topic := uuid.NewString()
			b.ResetTimer()
			for left := b.N; left > 0; left -= perCall {
				if err := publish(topic, batch[:min(left, perCall)]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
			b.StopTimer()
			server.Client().Del(ctx, topic)
		})
	}
	c := client(b, server.URL())
	codec := stock.DefaultMarshallerUnmarshaller{}
	run("ceiling", func(topic string, batch []*message.Message) error {
		pipe := c.Pipeline()
		for _, m := range batch {
			fields, err := codec.Marshal(topic, m)
			if err != nil {
				return err
			}
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: fields})
		}
		_, err := pipe.Exec(ctx)
		return err
	})
	ours := open(b, redisstream.Config{URL: server.URL()})
	run("headrace", func(topic string, batch []*message.Message) error {
		return ours.Publisher().PublishBatch(ctx, topic, batch)
	})
	pub, err := stock.NewPublisher(stock.PublisherConfig{Client: c}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	run("stock", func(topic string, batch []*message.Message) error { return pub.Publish(topic, batch...) })
}

func BenchmarkConsume(b *testing.B) {
	server := testenv.Redis(b)
	ctx := context.Background()
	ours := open(b, redisstream.Config{URL: server.URL()})
	run := func(name string, keys int, consume func(b *testing.B, topic, group string)) {
		b.Run(name, func(b *testing.B) {
			topic, group := uuid.NewString(), uuid.NewString()
			for left := b.N; left > 0; left -= 1000 {
				if err := ours.Publisher().PublishBatch(ctx, topic, brokertest.BenchMessages(min(left, 1000), max(keys, 1))); err != nil {
					b.Fatal(err)
				}
			}
			b.ResetTimer()
			consume(b, topic, group)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
			b.StopTimer()
			server.Client().Del(ctx, topic)
		})
	}
	c := client(b, server.URL())
	run("ceiling", 0, func(b *testing.B, topic, group string) {
		codec := stock.DefaultMarshallerUnmarshaller{}
		c.XGroupCreateMkStream(ctx, topic, group, "0")
		for left := b.N; left > 0; {
			got, err := c.XReadGroup(ctx, &redis.XReadGroupArgs{
				Group: group, Consumer: "c", Streams: []string{topic, ">"}, Count: 100, Block: time.Second,
			}).Result()
			if err != nil {
				b.Fatal(err)
			}
			ids := make([]string, 0, 100)
			for _, m := range got[0].Messages {
				if _, err := codec.Unmarshal(m.Values); err != nil {
					b.Fatal(err)
				}
				ids = append(ids, m.ID)
			}
			if err := c.XAck(ctx, topic, group, ids...).Err(); err != nil {
				b.Fatal(err)
			}
			left -= len(ids)
		}
	})
	drain := func(b *testing.B, sub message.Subscriber, topic string) {
		ch, err := sub.Subscribe(ctx, topic)
		if err != nil {
			b.Fatal(err)
		}
		for range b.N {
			(<-ch).Ack()
		}
	}
	headrace := func(cfg broker.SubscriberConfig) func(b *testing.B, topic, group string) {
		return func(b *testing.B, topic, group string) {
			cfg.Group, cfg.Logger = group, quiet
			sub, err := ours.Subscriber(cfg)
			if err != nil {
				b.Fatal(err)
			}
			drain(b, sub, topic)
			// The acks belong to the work.
			if err := sub.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
	run("headrace", 0, headrace(broker.SubscriberConfig{}))
	run("headrace-wide", 0, headrace(broker.SubscriberConfig{Concurrency: 50, MaxInFlight: 1000}))
	run("headrace-order", 500, headrace(broker.SubscriberConfig{Order: true, Concurrency: 50, MaxInFlight: 1000}))
	run("stock", 0, func(b *testing.B, topic, group string) {
		// Close of a stock subscriber closes its client.
		sub, err := stock.NewSubscriber(stock.SubscriberConfig{
			Client: client(b, server.URL()), ConsumerGroup: group, DisableIndefiniteInitialBlock: true,
		}, watermill.NopLogger{})
		if err != nil {
			b.Fatal(err)
		}
		drain(b, sub, topic)
		b.StopTimer()
		_ = sub.Close()
		b.StartTimer()
	})
}

// BenchmarkLatency is from Publish to the handler's hands and back, one message
// at a time on an idle subscription.
func BenchmarkLatency(b *testing.B) {
	server := testenv.Redis(b)
	ctx := context.Background()
	ours := open(b, redisstream.Config{URL: server.URL()})
	sub, err := ours.Subscriber(broker.SubscriberConfig{Group: "g", Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = sub.Close() })
	ch, err := sub.Subscribe(ctx, "topic")
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for range b.N {
		if err := ours.Publisher().PublishBatch(ctx, "topic", brokertest.BenchMessages(1, 1)); err != nil {
			b.Fatal(err)
		}
		(<-ch).Ack()
	}
}
