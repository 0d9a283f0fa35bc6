package sqs_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stocksqs "github.com/ThreeDotsLabs/watermill-aws/sqs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/brokertest"
	"github.com/headrace-go/headrace/framework/broker/sqs"
	"github.com/headrace-go/headrace/framework/testenv"
)

// Run with:
//
//	go test ./framework/broker/sqs -run '^$' -bench . -benchtime 20000x
//
// Each path is measured beside the stock adapter, and beside a hand-written loop
// on one client that sends, receives and deletes ten at a time, in one run on one
// emulator; ns/op is per message. BenchmarkRatios prints ours against both. The
// emulator has one thread and answers in a fraction of a millisecond: against AWS
// the difference is that of ten messages a round trip, and of parallel ones.

const perCall = 100

// bench is one emulator with one queue.
type bench struct {
	cfg    sqs.Config
	ours   *sqs.Broker
	client *awssqs.Client
	took   map[string]time.Duration // by path, the last run
}

// note ends the measured part of a run.
func (x *bench) note(b *testing.B, name string) {
	x.took[name] = b.Elapsed()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	b.StopTimer()
}

func newBench(b *testing.B) *bench {
	cfg := settings(testenv.AWS(b).Endpoint(), sqs.ModeSQS, false, prefix())
	return &bench{cfg: cfg, ours: open(b, cfg), client: client(cfg.Endpoint), took: map[string]time.Duration{}}
}

// topic makes a topic with one group and returns it and the queue's URL.
func (x *bench) topic(b *testing.B) (topic, url string) {
	b.Helper()
	ctx := context.Background()
	topic = uuid.NewString()
	if err := x.ours.EnsureTopology(ctx, broker.Subscription{Topic: topic, Group: "g"}); err != nil {
		b.Fatal(err)
	}
	out, err := x.client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: aws.String(x.cfg.QueueName(topic, "g"))})
	if err != nil {
		b.Fatal(err)
	}
	return topic, *out.QueueUrl
}

type path struct {
	name string
	run  func(b *testing.B)
}

func (x *bench) publishers(b *testing.B) []path {
	ctx := context.Background()
	run := func(name string, publish func(topic, url string, batch []*message.Message) error) path {
		return path{name, func(b *testing.B) {
			batch := brokertest.BenchMessages(perCall, 1)
			topic, url := x.topic(b)
			b.ResetTimer()
			for left := b.N; left > 0; left -= perCall {
				if err := publish(topic, url, batch[:min(left, perCall)]); err != nil {
					b.Fatal(err)
				}
			}
			x.note(b, name)
			_, _ = x.client.PurgeQueue(ctx, &awssqs.PurgeQueueInput{QueueUrl: &url})
		}}
	}
	stock, err := stocksqs.NewPublisher(stocksqs.PublisherConfig{
		AWSConfig: awsConfig(x.cfg.Endpoint), QueueUrlResolver: stocksqs.TransparentUrlResolver{},
	}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	marshaler := stocksqs.DefaultMarshalerUnmarshaler{}
	return []path{
		run("hand-written", func(_, url string, batch []*message.Message) error {
			for start := 0; start < len(batch); start += 10 {
				var in []types.SendMessageBatchRequestEntry
				for i, m := range batch[start:min(start+10, len(batch))] {
					w, err := marshaler.Marshal(m)
					if err != nil {
						return err
					}
					in = append(in, types.SendMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), MessageBody: w.Body, MessageAttributes: w.MessageAttributes})
				}
				if _, err := x.client.SendMessageBatch(ctx, &awssqs.SendMessageBatchInput{QueueUrl: &url, Entries: in}); err != nil {
					return err
				}
			}
			return nil
		}),
		run("headrace", func(topic, _ string, batch []*message.Message) error {
			return x.ours.Publisher().PublishBatch(ctx, topic, batch)
		}),
		run("stock", func(_, url string, batch []*message.Message) error { return stock.Publish(url, batch...) }),
	}
}

func (x *bench) consumers() []path {
	ctx := context.Background()
	run := func(name string, consume func(b *testing.B, topic, url string)) path {
		return path{name, func(b *testing.B) {
			topic, url := x.topic(b)
			for left := b.N; left > 0; left -= 1000 {
				if err := x.ours.Publisher().PublishBatch(ctx, topic, brokertest.BenchMessages(min(left, 1000), 1)); err != nil {
					b.Fatal(err)
				}
			}
			b.ResetTimer()
			consume(b, topic, url)
			x.note(b, name)
		}}
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
	return []path{
		run("hand-written", func(b *testing.B, _, url string) {
			codec := stocksqs.DefaultMarshalerUnmarshaler{}
			for left := b.N; left > 0; {
				out, err := x.client.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{
					QueueUrl: &url, MaxNumberOfMessages: 10, WaitTimeSeconds: 1, MessageAttributeNames: []string{"All"},
				})
				if err != nil {
					b.Fatal(err)
				}
				var in []types.DeleteMessageBatchRequestEntry
				for i := range out.Messages {
					if _, err := codec.Unmarshal(&out.Messages[i]); err != nil {
						b.Fatal(err)
					}
					in = append(in, types.DeleteMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), ReceiptHandle: out.Messages[i].ReceiptHandle})
				}
				if len(in) == 0 {
					continue // nothing within the wait
				}
				if _, err := x.client.DeleteMessageBatch(ctx, &awssqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: in}); err != nil {
					b.Fatal(err)
				}
				left -= len(in)
			}
		}),
		run("headrace", func(b *testing.B, topic, _ string) {
			sub, err := x.ours.Subscriber(broker.SubscriberConfig{Group: "g", Logger: quiet})
			if err != nil {
				b.Fatal(err)
			}
			drain(b, sub, topic)
			// The deletes belong to the work.
			if err := sub.Close(); err != nil {
				b.Fatal(err)
			}
		}),
		run("stock", func(b *testing.B, _, url string) {
			sub, err := stocksqs.NewSubscriber(stocksqs.SubscriberConfig{
				AWSConfig: awsConfig(x.cfg.Endpoint), QueueUrlResolver: stocksqs.TransparentUrlResolver{}, GenerateReceiveMessageInput: stockReceive,
			}, watermill.NopLogger{})
			if err != nil {
				b.Fatal(err)
			}
			drain(b, sub, url)
			b.StopTimer()
			_ = sub.Close()
			b.StartTimer()
		}),
	}
}

func BenchmarkPublish100(b *testing.B) {
	for _, p := range newBench(b).publishers(b) {
		b.Run(p.name, p.run)
	}
}

func BenchmarkConsume(b *testing.B) {
	for _, p := range newBench(b).consumers() {
		b.Run(p.name, p.run)
	}
}

// BenchmarkRatios runs the paths one after the other and reports how many times
// as fast ours is.
func BenchmarkRatios(b *testing.B) {
	x := newBench(b)
	for name, paths := range map[string][]path{"publish": x.publishers(b), "consume": x.consumers()} {
		b.Run(name, func(b *testing.B) {
			if b.N == 1 {
				return // the framework's trial run: no ratio in that
			}
			for _, p := range paths {
				b.StartTimer()
				p.run(b)
			}
			ours := x.took["headrace"].Seconds()
			b.ReportMetric(x.took["stock"].Seconds()/ours, "x-stock")
			b.ReportMetric(x.took["hand-written"].Seconds()/ours, "x-hand-written")
		})
	}
}
