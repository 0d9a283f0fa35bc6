package sqs_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	awssns "github.com/aws/aws-sdk-go-v2/service/sns"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/sqs"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

func attributes(t *testing.T, cfg sqs.Config, name string) (url string, attrs map[string]string) {
	t.Helper()
	c := client(cfg.Endpoint)
	out, err := c.GetQueueUrl(context.Background(), &awssqs.GetQueueUrlInput{QueueName: &name})
	require.NoError(t, err)
	got, err := c.GetQueueAttributes(context.Background(), &awssqs.GetQueueAttributesInput{
		QueueUrl: out.QueueUrl, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	require.NoError(t, err)
	return *out.QueueUrl, got.Attributes
}

func TestEnsureAndVerify(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := testenv.AWS(t)
	for _, mode := range []sqs.Mode{sqs.ModeSQS, sqs.ModeSNS} {
		for _, fifo := range []bool{false, true} {
			t.Run(string(mode)+map[bool]string{true: "-fifo"}[fifo], func(t *testing.T) {
				t.Parallel()
				cfg := settings(server.Endpoint(), mode, fifo, prefix())
				cfg.FilterTypes = func(broker.Subscription) []string { return []string{"order.placed", "order.cancelled"} }
				verify := cfg
				verify.Topology = sqs.TopologyVerify
				sub := broker.Subscription{Topic: "order.placed", Group: "payments.charge"}
				queueName, deadName := cfg.QueueName(sub.Topic, sub.Group), cfg.TopicName(broker.DeadLetterTopic(sub.Group))

				// Nothing is there, and verify creates nothing.
				checker := open(t, verify)
				err := checker.EnsureTopology(ctx, sub)
				require.ErrorContains(t, err, queueName)
				require.ErrorContains(t, err, deadName, "all faults at once")
				require.ErrorContains(t, err, "ensure")
				_, err = subscribeOnce(t, checker, sub)
				require.ErrorContains(t, err, queueName)
				err = checker.Publisher().Publish(sub.Topic, message.NewMessage("u", []byte("x")))
				require.ErrorContains(t, err, cfg.TopicName(sub.Topic))

				require.NoError(t, open(t, cfg).EnsureTopology(ctx, sub))
				url, attrs := attributes(t, cfg, queueName)
				_, dead := attributes(t, cfg, deadName)
				require.Equal(t, "1209600", attrs["MessageRetentionPeriod"])
				require.Equal(t, "1209600", dead["MessageRetentionPeriod"])
				require.Equal(t, "true", attrs["SqsManagedSseEnabled"])
				require.Equal(t, fifo, attrs["FifoQueue"] == "true")
				var redrive map[string]any
				require.NoError(t, json.Unmarshal([]byte(attrs["RedrivePolicy"]), &redrive))
				require.Equal(t, map[string]any{"deadLetterTargetArn": dead["QueueArn"], "maxReceiveCount": 100.0}, redrive)
				tags, err := client(cfg.Endpoint).ListQueueTags(ctx, &awssqs.ListQueueTagsInput{QueueUrl: &url})
				require.NoError(t, err)
				require.Equal(t, map[string]string{"headrace:topic": sub.Topic, "headrace:group": sub.Group}, tags.Tags)
				require.NoError(t, open(t, verify).EnsureTopology(ctx, sub))

				// Whoever changes it hears of it at start-up.
				set := func(name, value string) {
					_, err := client(cfg.Endpoint).SetQueueAttributes(ctx, &awssqs.SetQueueAttributesInput{
						QueueUrl: &url, Attributes: map[string]string{name: value},
					})
					require.NoError(t, err)
				}
				set("MessageRetentionPeriod", "3600")
				set("RedrivePolicy", "")
				err = open(t, verify).EnsureTopology(ctx, sub)
				require.ErrorContains(t, err, `MessageRetentionPeriod is "3600" and should be 1209600`)
				require.ErrorContains(t, err, "RedrivePolicy")
				require.ErrorContains(t, err, queueName)
				off := verify
				off.Topology = sqs.TopologyOff
				require.NoError(t, open(t, off).EnsureTopology(ctx, sub))
				require.NoError(t, open(t, cfg).EnsureTopology(ctx, sub), "ensure sets it right")
				require.NoError(t, open(t, verify).EnsureTopology(ctx, sub))

				if mode == sqs.ModeSNS {
					other := verify
					other.FilterTypes = nil
					require.NoError(t, open(t, other).EnsureTopology(ctx, sub), "it is not known what the group takes")
					typed := sub
					typed.Type = "order.placed"
					require.ErrorContains(t, open(t, other).EnsureTopology(ctx, typed), "FilterPolicy")
					other.Topology = sqs.TopologyEnsure
					require.NoError(t, open(t, other).EnsureTopology(ctx, sub))
					require.NoError(t, open(t, verify).EnsureTopology(ctx, sub), "the filter that is there stays")
					require.NoError(t, open(t, other).EnsureTopology(ctx, typed))
					other.Topology = sqs.TopologyVerify
					require.NoError(t, open(t, other).EnsureTopology(ctx, typed))
					require.NoError(t, open(t, cfg).EnsureTopology(ctx, sub))
					// The policy keeps what others wrote.
					theirs := `{"Version":"2012-10-17","Statement":[{"Sid":"theirs","Effect":"Allow","Principal":{"AWS":"arn:aws:iam::1:root"},"Action":"sqs:SendMessage","Resource":"x"}]}`
					set("Policy", theirs)
					require.ErrorContains(t, open(t, verify).EnsureTopology(ctx, sub), "policy")
					require.NoError(t, open(t, cfg).EnsureTopology(ctx, sub))
					_, attrs = attributes(t, cfg, queueName)
					require.Contains(t, attrs["Policy"], "theirs")
					require.Contains(t, attrs["Policy"], cfg.TopicName(sub.Topic))
					require.NoError(t, open(t, verify).EnsureTopology(ctx, sub))
				}
			})
		}
	}
}

func subscribeOnce(t *testing.T, b broker.Broker, s broker.Subscription) (<-chan *message.Message, error) {
	t.Helper()
	sub, err := b.Subscriber(broker.SubscriberConfig{Group: s.Group, Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	return sub.Subscribe(context.Background(), s.Topic)
}

// In production the programs run on what infrastructure made, with the groups
// listed, and need neither ListQueues nor CreateQueue.
func TestListedGroups(t *testing.T) {
	t.Parallel()
	server := testenv.AWS(t)
	cfg := settings(server.Endpoint(), sqs.ModeSQS, false, prefix())
	ensure := open(t, cfg)
	for _, group := range []string{"a", "b", "unlisted"} {
		require.NoError(t, ensure.EnsureTopology(context.Background(), broker.Subscription{Topic: "t", Group: group}))
	}
	cfg.Topology, cfg.Groups = sqs.TopologyVerify, map[string][]string{"t": {"a", "b"}}
	publisher := open(t, cfg)
	require.NoError(t, publisher.Publisher().Publish("t", message.NewMessage("u", []byte("x"))))
	for group, want := range map[string]int64{"a": 1, "b": 1, "unlisted": 0} {
		stats, err := publisher.Admin().Stats(context.Background(), broker.Subscription{Topic: "t", Group: group})
		require.NoError(t, err)
		require.Equal(t, want, stats.Lag, group)
	}
}

// What is published before a topic has groups is kept, and seen.
func TestNothingIsDroppedWithoutGroups(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cfg := settings(testenv.AWS(t).Endpoint(), sqs.ModeSQS, false, prefix())
	b := open(t, cfg)
	require.NoError(t, b.Publisher().Publish("t", message.NewMessage("early", []byte("x"))))
	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g"})
	require.NoError(t, b.Publisher().Publish("t", message.NewMessage("later", []byte("x"))))
	m := receive(t, ch)
	require.Equal(t, "later", m.UUID)
	m.Ack()
	require.Eventually(t, func() bool {
		depth, err := b.Admin().Depth(ctx, "t")
		return err == nil && depth == 1
	}, patience, 10*time.Millisecond)
	for stored, err := range b.Admin().Browse(ctx, "t", time.Time{}) {
		require.NoError(t, err)
		require.Equal(t, "early", stored.Message.UUID)
		n, err := b.Admin().Delete(ctx, "t", stored.Position)
		require.NoError(t, err)
		require.Equal(t, 1, n, "a message that is browsed can be deleted meanwhile")
	}
	depth, err := b.Admin().Depth(ctx, "t")
	require.NoError(t, err)
	require.Zero(t, depth)
}

// What SQS itself gives up lands where the stack puts its dead letters.
func TestRedrivePolicyMeetsTheDeadLetters(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, fifo := range []bool{false, true} {
		cfg := settings(testenv.AWS(t).Endpoint(), sqs.ModeSQS, fifo, prefix())
		cfg.MaxReceiveCount = 2
		b := open(t, cfg)
		ch, sub := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g", Concurrency: 1, NackDelay: -1})
		sent := message.NewMessage("u", []byte("poison"))
		sent.Metadata.Set("k", "v")
		require.NoError(t, b.Publisher().Publish("t", sent))
		for range 2 {
			receive(t, ch).Nack()
		}
		require.Eventually(t, func() bool {
			depth, err := b.Admin().Depth(ctx, broker.DeadLetterTopic("g"))
			return err == nil && depth == 1
		}, patience, 10*time.Millisecond)
		require.NoError(t, sub.Close())
		for stored, err := range b.Admin().Browse(ctx, broker.DeadLetterTopic("g"), time.Time{}) {
			require.NoError(t, err)
			require.Equal(t, "u", stored.Message.UUID)
			require.Equal(t, "poison", string(stored.Message.Payload))
			require.Equal(t, "v", stored.Message.Metadata["k"])
			require.NotEmpty(t, stored.PublishedAt)
		}
	}
}

// B33: the same event through SNS raw, through SNS wrapped, by our publisher to
// SQS, and as a bare envelope from a program that knows nothing of us.
func TestTheSameEventByEveryWay_B33(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := testenv.AWS(t)
	envelope := events.Envelope{
		ID: events.NewID(), Source: "orders", Type: "order.placed", Timestamp: time.Now().UTC().Truncate(time.Millisecond), Version: "1.0",
		Data: json.RawMessage(`{"order_id":"o-1","note":"tab\tand <&>"}`),
		Metadata: events.Metadata{
			CorrelationID: "c-1", CausationID: "k-1", OrderingKey: "o-1",
			TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", TraceState: "vendor=a",
			Extra: map[string]string{"tenant": "t\t1"},
		},
	}
	payload, err := envelope.Encode()
	require.NoError(t, err)
	decoded, err := events.Decode(payload)
	require.NoError(t, err)
	sent := message.NewMessage(envelope.ID, payload)
	for k, v := range decoded.Headers() {
		sent.Metadata[k] = v
	}
	got := make(map[string]*message.Message)

	direct := open(t, settings(server.Endpoint(), sqs.ModeSQS, false, prefix()))
	ch, _ := subscribe(t, direct, "order.placed", broker.SubscriberConfig{Group: "g"})
	require.NoError(t, direct.Publisher().Publish("order.placed", sent.Copy()))
	got["our publisher to SQS"] = take(t, ch)

	cfg := settings(server.Endpoint(), sqs.ModeSNS, false, prefix())
	b := open(t, cfg)
	sub := broker.Subscription{Topic: "all", Group: "g", Type: "order.placed"}
	require.NoError(t, b.EnsureTopology(ctx, sub))
	ch, _ = subscribe(t, b, sub.Topic, broker.SubscriberConfig{Group: sub.Group})
	other := sent.Copy()
	other.Metadata.Set(events.KeyType, "order.confirmed")
	require.NoError(t, b.Publisher().Publish(sub.Topic, other, sent.Copy()))
	got["SNS, raw"] = take(t, ch)
	untyped := message.NewMessage("untyped", []byte("no envelope"))
	require.NoError(t, b.Publisher().Publish(sub.Topic, other, untyped))
	require.Equal(t, untyped.UUID, take(t, ch).UUID, "what says no type reaches the dead letters, not nowhere")

	// Someone turns raw delivery off.
	sns := awssns.NewFromConfig(awsConfig(server.Endpoint()))
	subs, err := sns.ListSubscriptions(ctx, &awssns.ListSubscriptionsInput{})
	require.NoError(t, err)
	turned := 0
	for _, s := range subs.Subscriptions {
		if strings.HasSuffix(aws.ToString(s.TopicArn), ":"+cfg.TopicName(sub.Topic)) {
			_, err := sns.SetSubscriptionAttributes(ctx, &awssns.SetSubscriptionAttributesInput{
				SubscriptionArn: s.SubscriptionArn, AttributeName: aws.String("RawMessageDelivery"), AttributeValue: aws.String("false"),
			})
			require.NoError(t, err)
			turned++
		}
	}
	require.Equal(t, 1, turned)
	require.NoError(t, b.Publisher().Publish(sub.Topic, other, sent.Copy()))
	got["SNS, wrapped"] = take(t, ch)

	url, _ := attributes(t, cfg, cfg.QueueName(sub.Topic, sub.Group))
	_, err = client(server.Endpoint()).SendMessage(ctx, &awssqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String(string(payload))})
	require.NoError(t, err)
	got["a bare envelope"] = take(t, ch)
	wrapped, err := json.Marshal(map[string]string{
		"Type": "Notification", "MessageId": "m", "TopicArn": "arn:aws:sns:r:1:foreign", "Message": string(payload),
	})
	require.NoError(t, err)
	_, err = client(server.Endpoint()).SendMessage(ctx, &awssqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String(string(wrapped))})
	require.NoError(t, err)
	got["a bare envelope from a foreign topic"] = take(t, ch)

	for way, m := range got {
		require.Equal(t, sent.UUID, m.UUID, way)
		require.Equal(t, string(sent.Payload), string(m.Payload), way)
		require.Equal(t, sent.Metadata, m.Metadata, way)
		e, err := events.Decode(m.Payload)
		require.NoError(t, err, way)
		require.Equal(t, decoded, e, way)
	}

	// What is no event of ours keeps its bytes; its handler decides.
	_, err = client(server.Endpoint()).SendMessage(ctx, &awssqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String(`{"Records":[]}`)})
	require.NoError(t, err)
	foreign := take(t, ch)
	require.Equal(t, `{"Records":[]}`, string(foreign.Payload))
	require.NotEmpty(t, foreign.UUID)
	require.Empty(t, foreign.Metadata)
}

func take(t *testing.T, ch <-chan *message.Message) *message.Message {
	t.Helper()
	m := receive(t, ch)
	m.Ack()
	return m
}

// A crash or a drain must not count against a message too soon, and a deferral
// not at all: it is held here, hidden from others.
func TestDeferralsAreNotCounted(t *testing.T) {
	t.Parallel()
	cfg := settings(testenv.AWS(t).Endpoint(), sqs.ModeSQS, false, prefix())
	cfg.MaxReceiveCount = 1
	b := open(t, cfg)
	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g", Concurrency: 1, Lease: time.Second})
	require.NoError(t, b.Publisher().Publish("t", message.NewMessage("u", []byte("x"))))
	for range 3 {
		m := receive(t, ch)
		d := middleware.DeliveryFrom(m.Context())
		require.Equal(t, 1, d.Count())
		d.Release()
		d.RedeliverAfter(600 * time.Millisecond) // longer than a lease in sum
		m.Nack()
	}
	take(t, ch)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	err := sqs.Config{
		Mode: "sqsns", Topology: "maybe", Prefix: "a.b", Endpoint: "4566", WaitTime: 1500 * time.Millisecond, MaxPolls: -1, Parallel: -1,
		MaxMessageBytes: 2 << 20, MaxReceiveCount: -1, Retention: 15 * 24 * time.Hour,
	}.WithDefaults().Validate()
	for _, want := range []string{`Mode is "sqsns"`, `Topology is "maybe"`, `Prefix is "a.b"`, `Endpoint is "4566"`, "WaitTime is 1.5s", "MaxPolls is -1",
		"Parallel is -1", "MaxMessageBytes is 2097152", "MaxReceiveCount is -1", "Retention is 360h"} {
		require.ErrorContains(t, err, want)
	}
	_, err = sqs.Open(context.Background(), sqs.Config{Endpoint: "http://127.0.0.1:1", RequestTimeout: 2 * time.Second})
	require.ErrorContains(t, err, "http://127.0.0.1:1")
	b := open(t, sqs.Config{SQS: newStrict(), Topology: sqs.TopologyEnsure, WaitTime: time.Second})
	_, err = b.Subscriber(broker.SubscriberConfig{Group: "g", Order: true})
	require.ErrorContains(t, err, "FIFO")
	_, err = b.Subscriber(broker.SubscriberConfig{Group: "g", Lease: 13 * time.Hour})
	require.ErrorContains(t, err, "Lease")
}
