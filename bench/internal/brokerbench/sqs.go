package brokerbench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-aws/sqs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/sqs"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// sqsBench is one emulator.
type sqsBench struct {
	cfg    sqs.Config
	aws    aws.Config
	ours   *sqs.Broker
	client *awssqs.Client
}

func (b *bench) sqsSubjects(ctx context.Context) ([]subject, error) {
	x := &sqsBench{
		cfg: sqs.Config{
			Mode: sqs.ModeSQS, Region: "us-east-1", Endpoint: b.AWS, Topology: sqs.TopologyEnsure, WaitTime: time.Second,
			Prefix: "b" + strings.ReplaceAll(events.NewID(), "-", "")[20:] + "-", Logger: quiet,
		},
		aws: aws.Config{Region: "us-east-1", BaseEndpoint: &b.AWS, Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")},
	}
	var err error
	if x.ours, err = sqs.Open(ctx, x.cfg); err != nil {
		return nil, err
	}
	b.onClose(func() { _ = x.ours.Close() })
	x.client = awssqs.NewFromConfig(x.aws)
	pub, err := stock.NewPublisher(stock.PublisherConfig{AWSConfig: x.aws, QueueUrlResolver: stock.TransparentUrlResolver{}}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	// on is a job on a queue of its own that holds what fill says.
	on := func(filled bool, run func(ctx context.Context, n int, m *meter, topic, url string) error) job {
		return func(ctx context.Context, n int, m *meter) error {
			topic := "order.placed." + events.NewID()
			url, err := x.queue(ctx, topic)
			if err != nil {
				return err
			}
			defer func() { _, _ = x.client.DeleteQueue(ctx, &awssqs.DeleteQueueInput{QueueUrl: &url}) }()
			if filled {
				if err := fill(ctx, x.ours.Publisher(), topic, n); err != nil {
					return err
				}
			}
			return run(ctx, n, m, topic, url)
		}
	}
	stockConsume := on(true, x.stockConsume)
	byHand := on(true, x.handConsume)
	return []subject{
		{
			broker: "SQS, emulated", what: "publish", share: 10,
			ours: on(false, func(ctx context.Context, n int, m *meter, topic, _ string) error {
				return publishing(n, m, func(msgs []*message.Message) error { return x.ours.Publisher().PublishBatch(ctx, topic, msgs) })
			}),
			stock: on(false, func(_ context.Context, n int, m *meter, _, url string) error {
				return publishing(n, m, func(msgs []*message.Message) error { return pub.Publish(url, msgs...) })
			}),
			hand: on(false, x.handPublish),
		},
		{
			broker: "SQS, emulated", what: "consume and delete", share: 10,
			ours: on(true, func(ctx context.Context, n int, m *meter, topic, _ string) error {
				sub, err := x.ours.Subscriber(broker.SubscriberConfig{Group: group, Logger: quiet})
				if err != nil {
					return err
				}
				return draining(ctx, n, m, sub, topic, true)
			}),
			stock: stockConsume,
			hand:  byHand,
		},
		{
			broker: "SQS, emulated", what: "the same with the whole stack, duplicates known in memory", share: 10,
			ours: on(true, func(ctx context.Context, n int, m *meter, topic, _ string) error {
				return app(ctx, n, m, withStack(x.ours, middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})), topic, plain)
			}),
			stock: stockConsume,
			hand:  byHand,
		},
	}, nil
}

// queue makes the queue of the topic's group.
func (x *sqsBench) queue(ctx context.Context, topic string) (url string, err error) {
	if err := x.ours.EnsureTopology(ctx, broker.Subscription{Topic: topic, Group: group}); err != nil {
		return "", err
	}
	out, err := x.client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: aws.String(x.cfg.QueueName(topic, group))})
	if err != nil {
		return "", err
	}
	return aws.ToString(out.QueueUrl), nil
}

func (x *sqsBench) handPublish(ctx context.Context, n int, m *meter, _, url string) error {
	codec := stock.DefaultMarshalerUnmarshaler{}
	return publishing(n, m, func(msgs []*message.Message) error {
		for start := 0; start < len(msgs); start += 10 {
			var in []types.SendMessageBatchRequestEntry
			for i, msg := range msgs[start:min(start+10, len(msgs))] {
				w, err := codec.Marshal(msg)
				if err != nil {
					return err
				}
				in = append(in, types.SendMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), MessageBody: w.Body, MessageAttributes: w.MessageAttributes})
			}
			out, err := x.client.SendMessageBatch(ctx, &awssqs.SendMessageBatchInput{QueueUrl: &url, Entries: in})
			if err != nil {
				return err
			}
			if len(out.Failed) > 0 {
				return fmt.Errorf("%d entries failed", len(out.Failed))
			}
		}
		return nil
	})
}

func (x *sqsBench) handConsume(ctx context.Context, n int, m *meter, _, url string) error {
	codec := stock.DefaultMarshalerUnmarshaler{}
	m.start()
	defer m.stop()
	for empty := 0; n > 0; {
		out, err := x.client.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{
			QueueUrl: &url, MaxNumberOfMessages: 10, WaitTimeSeconds: 1, MessageAttributeNames: []string{"All"},
		})
		if err != nil {
			return err
		}
		var in []types.DeleteMessageBatchRequestEntry
		for i := range out.Messages {
			if _, err := codec.Unmarshal(&out.Messages[i]); err != nil {
				return err
			}
			in = append(in, types.DeleteMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), ReceiptHandle: out.Messages[i].ReceiptHandle})
		}
		if len(in) == 0 {
			if empty++; empty == 30 {
				return errors.New("nothing came for 30 s")
			}
			continue
		}
		empty = 0
		if _, err := x.client.DeleteMessageBatch(ctx, &awssqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: in}); err != nil {
			return err
		}
		n -= len(in)
	}
	return nil
}

func (x *sqsBench) stockConsume(ctx context.Context, n int, m *meter, _, url string) error {
	sub, err := stock.NewSubscriber(stock.SubscriberConfig{
		AWSConfig: x.aws, QueueUrlResolver: stock.TransparentUrlResolver{},
		// Attributes are not received unless asked for; one at a time is the default.
		GenerateReceiveMessageInput: func(_ context.Context, url stock.QueueURL) (*awssqs.ReceiveMessageInput, error) {
			return &awssqs.ReceiveMessageInput{
				QueueUrl: aws.String(string(url)), MessageAttributeNames: []string{"All"}, WaitTimeSeconds: 1, MaxNumberOfMessages: 1,
			}, nil
		},
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	return draining(ctx, n, m, sub, url, false)
}
