package kafka_test

import (
	"context"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/brokertest"
)

// Run with:
//
//	go test . -run '^$' -bench . -benchtime 50000x
//
// Each path is measured beside the stock adapter, and beside a hand-written loop
// on the same client library, on one broker in this process (kfake, which keeps
// everything in memory); ns/op is per message.

const perCall = 100

// rate ends the measured part of a run.
func rate(b *testing.B) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
	b.StopTimer()
}

func record(topic string, m *message.Message) *kgo.Record {
	r := &kgo.Record{Topic: topic, Value: m.Payload, Headers: []kgo.RecordHeader{{Key: kafka.HeaderUUID, Value: []byte(m.UUID)}}}
	for k, v := range m.Metadata {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: k, Value: []byte(v)})
	}
	return r
}

func BenchmarkPublish100(b *testing.B) {
	addr, ctx := cluster(b), context.Background()
	run := func(name string, publish func(topic string, batch []*message.Message) error) {
		b.Run(name, func(b *testing.B) {
			topic, all := uuid.NewString(), brokertest.BenchMessages(b.N, 0)
			if err := publish(topic, brokertest.BenchMessages(1, 0)); err != nil { // makes the topic
				b.Fatal(err)
			}
			b.ResetTimer()
			for len(all) > 0 {
				n := min(len(all), perCall)
				if err := publish(topic, all[:n]); err != nil {
					b.Fatal(err)
				}
				all = all[n:]
			}
			rate(b)
		})
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.AllowAutoTopicCreation(), kgo.ProducerLinger(0))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(client.Close)
	run("hand-written", func(topic string, batch []*message.Message) error {
		records := make([]*kgo.Record, len(batch))
		for i, m := range batch {
			records[i] = record(topic, m)
		}
		return client.ProduceSync(ctx, records...).FirstErr()
	})
	ours := open(b, config(addr))
	run("headrace", func(topic string, batch []*message.Message) error {
		return ours.Publisher().PublishBatch(ctx, topic, batch)
	})
	pub, err := stock.NewPublisher(stock.PublisherConfig{Brokers: []string{addr}, Marshaler: stock.DefaultMarshaler{}}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = pub.Close() })
	run("stock", func(topic string, batch []*message.Message) error { return pub.Publish(topic, batch...) })
}

func BenchmarkConsume(b *testing.B) {
	addr, ctx := cluster(b), context.Background()
	ours := open(b, config(addr))
	run := func(name string, consume func(b *testing.B, topic string)) {
		b.Run(name, func(b *testing.B) {
			topic := uuid.NewString()
			for left := b.N; left > 0; left -= 1000 {
				if err := ours.Publisher().PublishBatch(ctx, topic, brokertest.BenchMessages(min(left, 1000), 0)); err != nil {
					b.Fatal(err)
				}
			}
			b.ResetTimer()
			consume(b, topic)
			rate(b)
		})
	}
	drain := func(b *testing.B, sub message.Subscriber, topic string) {
		ch, err := sub.Subscribe(ctx, topic)
		if err != nil {
			b.Fatal(err)
		}
		for range b.N {
			(<-ch).Ack()
		}
	}
	run("hand-written", func(b *testing.B, topic string) {
		client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumerGroup("hand"), kgo.ConsumeTopics(topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
		if err != nil {
			b.Fatal(err)
		}
		for left := b.N; left > 0; {
			fetches := client.PollRecords(ctx, 500)
			fetches.EachRecord(func(r *kgo.Record) {
				m := message.NewMessage("", r.Value)
				for _, h := range r.Headers {
					m.Metadata[h.Key] = string(h.Value)
				}
				left--
			})
			if err := client.CommitUncommittedOffsets(ctx); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		client.Close()
		b.StartTimer()
	})
	headrace := func(cfg broker.SubscriberConfig) func(b *testing.B, topic string) {
		return func(b *testing.B, topic string) {
			cfg.Group, cfg.Logger = "g", quiet
			sub, err := ours.Subscriber(cfg)
			if err != nil {
				b.Fatal(err)
			}
			drain(b, sub, topic)
			b.StopTimer()
			if err := sub.Close(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	}
	run("headrace", headrace(broker.SubscriberConfig{}))
	run("headrace-wide", headrace(broker.SubscriberConfig{Concurrency: 50, MaxInFlight: 1000}))
	run("stock", func(b *testing.B, topic string) {
		cfg := stock.DefaultSaramaSubscriberConfig()
		cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
		sub, err := stock.NewSubscriber(stock.SubscriberConfig{
			Brokers: []string{addr}, Unmarshaler: stock.DefaultMarshaler{}, ConsumerGroup: "stock", OverwriteSaramaConfig: cfg,
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
