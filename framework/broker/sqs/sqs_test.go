package sqs_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stocksns "github.com/ThreeDotsLabs/watermill-aws/sns"
	stocksqs "github.com/ThreeDotsLabs/watermill-aws/sqs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssns "github.com/aws/aws-sdk-go-v2/service/sns"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/brokertest"
	"github.com/headrace-go/headrace/framework/broker/sqs"
	"github.com/headrace-go/headrace/framework/testenv"
)

var quiet = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) {
	brokertest.Main(m, func(ctx context.Context, addr string) (broker.Broker, error) {
		cfg, err := fromAddr(addr)
		if err != nil {
			return nil, err
		}
		return sqs.Open(ctx, cfg)
	})
}

// settings of every broker of the tests: polls end after a second, since the
// emulator gives messages to polls whose client has gone.
func settings(endpoint string, mode sqs.Mode, fifo bool, prefix string) sqs.Config {
	return sqs.Config{
		Mode: mode, FIFO: fifo, Endpoint: endpoint, Prefix: prefix,
		Topology: sqs.TopologyEnsure, WaitTime: time.Second, DiscoverEvery: 100 * time.Millisecond, Logger: quiet,
	}
}

// addr is what another process needs to open the same broker.
func addr(cfg sqs.Config) string {
	return cfg.Endpoint + "?" + url.Values{
		"mode": {string(cfg.Mode)}, "fifo": {fmt.Sprint(cfg.FIFO)}, "prefix": {cfg.Prefix},
	}.Encode()
}

func fromAddr(addr string) (sqs.Config, error) {
	endpoint, query, _ := strings.Cut(addr, "?")
	q, err := url.ParseQuery(query)
	return settings(endpoint, sqs.Mode(q.Get("mode")), q.Get("fifo") == "true", q.Get("prefix")), err
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, mode := range []sqs.Mode{sqs.ModeSQS, sqs.ModeSNS} {
		for _, fifo := range []bool{false, true} {
			name := string(mode) + "-standard"
			if fifo {
				name = string(mode) + "-fifo"
			}
			t.Run(name, func(t *testing.T) {
				// One after the other: the emulator has one thread, and leases are short.
				h := brokertest.Harness{
					Start:     func(t *testing.T) *brokertest.Storage { return startStorage(t, mode, fifo) },
					Latency:   4 * time.Second,
					Unordered: true,
					NoAge:     true,
				}
				if mode != sqs.ModeSQS || fifo {
					h.Backlog = 2_000
				}
				brokertest.Run(t, h)
			})
		}
	}
}

func prefix() string { return "t" + uuid.NewString()[:8] + "-" }

func startStorage(t *testing.T, mode sqs.Mode, fifo bool) *brokertest.Storage {
	server := testenv.AWS(t)
	proxy := testenv.NewProxy(t, server.Addr())
	cfg := settings("http://"+proxy.Addr(), mode, fifo, prefix())
	s := &brokertest.Storage{
		Addr: addr(cfg),
		Open: func(t testing.TB) broker.Broker { return open(t, cfg) },
		Stop: func() {
			proxy.Cut()
			// The emulator's side of a cut poll would still take a message, and hide
			// it for a lease: let it end first.
			<-time.After(cfg.WaitTime + 100*time.Millisecond)
		},
		Restart: proxy.Restore,
		PutMalformed: func(t testing.TB, topic string, raw []byte) {
			putMalformed(t, cfg, topic, raw)
		},
		StockNeedsPayload: true,
	}
	if !fifo { // stock knows no message groups
		s.Stock = func(t testing.TB, group string) (message.Publisher, message.Subscriber) {
			if mode == sqs.ModeSNS {
				return stockSNS(t, cfg, group)
			}
			return stockSQS(t, cfg, group)
		}
	}
	return s
}

func open(t testing.TB, cfg sqs.Config) *sqs.Broker {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	b, err := sqs.Open(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func awsConfig(endpoint string) aws.Config {
	return aws.Config{
		Region: "us-east-1", BaseEndpoint: aws.String(endpoint),
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	}
}

func client(endpoint string) *awssqs.Client { return awssqs.NewFromConfig(awsConfig(endpoint)) }

// groupQueues are the queues of a topic's groups.
func groupQueues(t testing.TB, cfg sqs.Config, topic string) []string {
	t.Helper()
	name := cfg.QueueName(topic, "")
	name = name[:strings.LastIndexByte(name, '_')+1]
	out, err := client(cfg.Endpoint).ListQueues(context.Background(), &awssqs.ListQueuesInput{QueueNamePrefix: &name})
	require.NoError(t, err)
	return out.QueueUrls
}

// putMalformed sends bytes with metadata that nobody can unpack.
func putMalformed(t testing.TB, cfg sqs.Config, topic string, raw []byte) {
	t.Helper()
	attr := func(s string) types.MessageAttributeValue {
		return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(s)}
	}
	body, attrs := string(raw), map[string]types.MessageAttributeValue{sqs.AttrMetadata: attr("{broken")}
	switch {
	case len(raw) == 0:
		body, attrs[sqs.AttrEncoding] = "(empty)", attr(sqs.EncodingEmpty)
	case raw[0] < ' ':
		body, attrs[sqs.AttrEncoding] = base64.StdEncoding.EncodeToString(raw), attr(sqs.EncodingBase64)
	}
	queues := groupQueues(t, cfg, topic)
	require.NotEmpty(t, queues)
	for _, url := range queues {
		in := &awssqs.SendMessageInput{QueueUrl: &url, MessageBody: &body, MessageAttributes: attrs}
		if cfg.FIFO {
			in.MessageGroupId, in.MessageDeduplicationId = aws.String(uuid.NewString()), aws.String(uuid.NewString())
		}
		_, err := client(cfg.Endpoint).SendMessage(context.Background(), in)
		require.NoError(t, err)
	}
}

// toGroups resolves a topic to the queue of its one group, for stock publishers.
type toGroups struct {
	t   testing.TB
	cfg sqs.Config
}

func (r toGroups) ResolveQueueUrl(_ context.Context, p stocksqs.ResolveQueueUrlParams) (stocksqs.QueueUrlResolverResult, error) {
	queues := groupQueues(r.t, r.cfg, p.Topic)
	if len(queues) != 1 {
		return stocksqs.QueueUrlResolverResult{}, errors.New("not one group")
	}
	url, exists := stocksqs.QueueURL(queues[0]), true
	return stocksqs.QueueUrlResolverResult{QueueName: stocksqs.QueueName(p.Topic), QueueURL: &url, Exists: &exists}, nil
}

func stockReceive(ctx context.Context, url stocksqs.QueueURL) (*awssqs.ReceiveMessageInput, error) {
	return &awssqs.ReceiveMessageInput{
		QueueUrl: aws.String(string(url)), MessageAttributeNames: []string{"All"}, WaitTimeSeconds: 1, MaxNumberOfMessages: 1,
	}, nil
}

func stockSQS(t testing.TB, cfg sqs.Config, group string) (message.Publisher, message.Subscriber) {
	t.Helper()
	pub, err := stocksqs.NewPublisher(stocksqs.PublisherConfig{
		AWSConfig: awsConfig(cfg.Endpoint), QueueUrlResolver: toGroups{t, cfg}, DoNotCreateQueueIfNotExists: true,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	sub, err := stocksqs.NewSubscriber(stocksqs.SubscriberConfig{
		AWSConfig: awsConfig(cfg.Endpoint),
		QueueUrlResolver: stocksqs.NewGetQueueUrlByNameUrlResolver(stocksqs.GetQueueUrlByNameUrlResolverConfig{
			GenerateGetQueueUrlInput: func(_ context.Context, topic string) (*awssqs.GetQueueUrlInput, error) {
				return &awssqs.GetQueueUrlInput{QueueName: aws.String(cfg.QueueName(topic, group))}, nil
			},
		}),
		GenerateCreateQueueInput: func(_ context.Context, name stocksqs.QueueName, _ stocksqs.QueueConfigAttributes) (*awssqs.CreateQueueInput, error) {
			return &awssqs.CreateQueueInput{QueueName: aws.String(cfg.QueueName(string(name), group))}, nil
		},
		GenerateReceiveMessageInput: stockReceive,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Close() })
	return pub, sub
}

// toTopicARN is what watermill-aws needs on this emulator, which knows no
// TargetArn.
type toTopicARN struct {
	stocksns.DefaultMarshalerUnmarshaler
}

func (m toTopicARN) Marshal(arn stocksns.TopicArn, msg *message.Message) *awssns.PublishInput {
	in := m.DefaultMarshalerUnmarshaler.Marshal(arn, msg)
	in.TopicArn, in.TargetArn = in.TargetArn, nil
	return in
}

// namedTopics resolves a topic to the ARN of its SNS topic.
type namedTopics struct {
	cfg    sqs.Config
	client *awssns.Client
}

func (r namedTopics) ResolveTopic(ctx context.Context, topic string) (stocksns.TopicArn, error) {
	out, err := r.client.CreateTopic(ctx, &awssns.CreateTopicInput{Name: aws.String(r.cfg.TopicName(topic))})
	if err != nil {
		return "", err
	}
	return stocksns.TopicArn(aws.ToString(out.TopicArn)), nil
}

func stockSNS(t testing.TB, cfg sqs.Config, group string) (message.Publisher, message.Subscriber) {
	t.Helper()
	topics := namedTopics{cfg, awssns.NewFromConfig(awsConfig(cfg.Endpoint))}
	pub, err := stocksns.NewPublisher(stocksns.PublisherConfig{
		AWSConfig: awsConfig(cfg.Endpoint), TopicResolver: topics, Marshaler: toTopicARN{},
	}, watermill.NopLogger{})
	require.NoError(t, err)
	sub, err := stocksns.NewSubscriber(stocksns.SubscriberConfig{
		AWSConfig: awsConfig(cfg.Endpoint), TopicResolver: topics,
		GenerateSqsQueueName: func(_ context.Context, arn stocksns.TopicArn) (string, error) {
			return "stock-" + group[len(group)-36:], nil
		},
	}, stocksqs.SubscriberConfig{
		AWSConfig: awsConfig(cfg.Endpoint), GenerateReceiveMessageInput: stockReceive,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Close() })
	return pub, sub
}
