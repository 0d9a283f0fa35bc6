package nats_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/brokers/nats"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/brokertest"
)

// Run with:
//
//	go test . -run '^$' -bench . -benchtime 50000x
//
// Each path is measured beside the stock adapter, and beside a hand-written loop
// on the same client library, on one server in this process; ns/op is per message.

const perCall = 100

// rate ends the measured part of a run.
func rate(b *testing.B) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
	b.StopTimer()
}

func benchStream(b *testing.B, js jetstream.JetStream) (topic string) {
	b.Helper()
	topic = uuid.NewString()
	if _, err := js.CreateStream(context.Background(), nats.Config{}.StreamConfig(topic)); err != nil {
		b.Fatal(err)
	}
	return topic
}

func BenchmarkPublish100(b *testing.B) {
	s := startServer(b)
	_, js := s.client(b)
	ctx := context.Background()
	run := func(name string, publish func(topic string, batch []*message.Message) error) {
		b.Run(name, func(b *testing.B) {
			topic := benchStream(b, js)
			all := brokertest.BenchMessages(b.N, 1) // new ones each time: the server knows copies
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
	marshaler := stock.NATSMarshaler{}
	run("hand-written", func(topic string, batch []*message.Message) error {
		futures := make([]jetstream.PubAckFuture, len(batch))
		for i, m := range batch {
			w, err := marshaler.Marshal(topic, m)
			if err != nil {
				return err
			}
			w.Header.Set(jetstream.MsgIDHeader, m.UUID)
			if futures[i], err = js.PublishMsgAsync(w); err != nil {
				return err
			}
		}
		for _, f := range futures {
			select {
			case <-f.Ok():
			case err := <-f.Err():
				return err
			}
		}
		return nil
	})
	ours := open(b, nats.Config{URL: s.url()})
	run("headrace", func(topic string, batch []*message.Message) error {
		return ours.Publisher().PublishBatch(ctx, topic, batch)
	})
	pub, err := stock.NewPublisher(stock.PublisherConfig{URL: s.url(), JetStream: stock.JetStreamConfig{TrackMsgId: true}}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = pub.Close() })
	run("stock", func(topic string, batch []*message.Message) error { return pub.Publish(topic, batch...) })
}

func BenchmarkConsume(b *testing.B) {
	s := startServer(b)
	_, js := s.client(b)
	ctx := context.Background()
	ours := open(b, nats.Config{URL: s.url()})
	run := func(name string, consume func(b *testing.B, topic string)) {
		b.Run(name, func(b *testing.B) {
			topic := benchStream(b, js)
			for left := b.N; left > 0; left -= 1000 {
				if err := ours.Publisher().PublishBatch(ctx, topic, brokertest.BenchMessages(min(left, 1000), 1)); err != nil {
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
		codec := stock.NATSMarshaler{}
		c, err := js.CreateConsumer(ctx, nats.Config{}.StreamName(topic), nats.Config{}.ConsumerConfig(topic, "g", 0))
		if err != nil {
			b.Fatal(err)
		}
		for left := b.N; left > 0; {
			page, err := c.Fetch(min(left, 500), jetstream.FetchMaxWait(time.Second))
			if err != nil {
				b.Fatal(err)
			}
			var last jetstream.Msg
			for m := range page.Messages() {
				if _, err := codec.Unmarshal(&natsgo.Msg{Header: m.Headers(), Data: m.Data()}); err != nil {
					b.Fatal(err)
				}
				if last != nil {
					if err := last.Ack(); err != nil {
						b.Fatal(err)
					}
				}
				last = m
				left--
			}
			if last != nil {
				if err := last.DoubleAck(ctx); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	headrace := func(cfg broker.SubscriberConfig) func(b *testing.B, topic string) {
		return func(b *testing.B, topic string) {
			cfg.Group, cfg.Logger = "g", quiet
			sub, err := ours.Subscriber(cfg)
			if err != nil {
				b.Fatal(err)
			}
			drain(b, sub, topic)
			// The acks belong to the work, the last and empty fetch does not.
			sub2 := broker.Subscription{Topic: topic, Group: "g"}
			for {
				if stats, err := ours.Admin().Stats(ctx, sub2); err != nil {
					b.Fatal(err)
				} else if stats.Pending == 0 {
					break
				}
			}
			b.StopTimer()
			if err := sub.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
	run("headrace", headrace(broker.SubscriberConfig{}))
	run("headrace-wide", headrace(broker.SubscriberConfig{Concurrency: 50, MaxInFlight: 1000}))
	run("stock", func(b *testing.B, topic string) {
		sub, err := stock.NewSubscriber(stock.SubscriberConfig{
			URL: s.url(), Unmarshaler: &stock.NATSMarshaler{}, QueueGroupPrefix: "g",
			JetStream: stock.JetStreamConfig{
				DurablePrefix:    "g",
				SubscribeOptions: []natsgo.SubOpt{natsgo.DeliverAll(), natsgo.AckExplicit()},
			},
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
