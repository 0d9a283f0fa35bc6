package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	stocksns "github.com/ThreeDotsLabs/watermill-aws/sns"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/pkg/events"
)

const (
	subRaw    = "RawMessageDelivery"
	subFilter = "FilterPolicy"
	// policyTries is how often a policy is read and written again, when another
	// writer got in between.
	policyTries = 5
)

// topic returns the ARN of topic's SNS topic, which ensure creates.
func (b *Broker) topic(ctx context.Context, topic string) (string, error) {
	name := b.names.own(topic)
	if b.cfg.Topology == TopologyEnsure {
		arn, err := b.createTopic(ctx, topic, name)
		if err != nil {
			return "", fmt.Errorf("sns: create topic %q: %w", name, err)
		}
		return arn, nil
	}
	arn, err := b.findTopic(ctx, name)
	if err != nil {
		return "", fmt.Errorf("sns: look up topic %q: %w", name, err)
	}
	if arn == "" {
		return "", fmt.Errorf("sns: topic %q does not exist: it carries Headrace's topic %q: create it, or set Topology to %q where the program may",
			name, topic, TopologyEnsure)
	}
	return arn, nil
}

func (b *Broker) createTopic(ctx context.Context, topic, name string) (string, error) {
	cfg := stocksns.ConfigAttributes{KmsMasterKeyId: b.cfg.KMSKey}
	if b.cfg.FIFO {
		cfg.FifoTopic, cfg.ContentBasedDeduplication = "true", "false"
		cfg.CustomAttributes = map[string]string{"FifoThroughputScope": "MessageGroup"}
	}
	attrs, err := cfg.Attributes()
	if err != nil {
		return "", err
	}
	size := strconv.Itoa(b.cfg.MaxMessageBytes)
	if b.cfg.MaxMessageBytes > DefaultSNSMessageBytes {
		attrs[attrMaxSize] = size
	}
	var tags []snstypes.Tag
	for key, value := range b.tags(queueSpec{topic: topic}) {
		tags = append(tags, snstypes.Tag{Key: aws.String(key), Value: aws.String(value)})
	}
	out, err := b.sns.CreateTopic(ctx, &sns.CreateTopicInput{Name: &name, Attributes: attrs, Tags: tags})
	if err == nil {
		return aws.ToString(out.TopicArn), nil
	}
	// It exists with other attributes or tags.
	if c := code(err); c != "InvalidParameter" && c != "InvalidParameterException" {
		return "", err
	}
	arn, findErr := b.findTopic(ctx, name)
	if findErr != nil || arn == "" {
		return "", errors.Join(err, findErr)
	}
	for attr, value := range attrs {
		if attr == "FifoTopic" {
			continue // it is part of the name
		}
		if _, err := b.sns.SetTopicAttributes(ctx, &sns.SetTopicAttributesInput{TopicArn: &arn, AttributeName: &attr, AttributeValue: &value}); err != nil {
			return "", fmt.Errorf("set %s: %w", attr, err)
		}
	}
	return arn, nil
}

// findTopic returns the topic's ARN, or "" where there is none.
func (b *Broker) findTopic(ctx context.Context, name string) (string, error) {
	if b.cfg.AccountID != "" && b.cfg.Region != "" {
		arn := fmt.Sprintf("arn:%s:sns:%s:%s:%s", partition(b.cfg.Region), b.cfg.Region, b.cfg.AccountID, name)
		if b.cfg.Topology == TopologyOff {
			return arn, nil
		}
		_, err := b.sns.GetTopicAttributes(ctx, &sns.GetTopicAttributesInput{TopicArn: &arn})
		if noTopic(err) {
			return "", nil
		}
		return arn, err
	}
	pages := &sns.ListTopicsInput{}
	for {
		out, err := b.sns.ListTopics(ctx, pages)
		if err != nil {
			return "", fmt.Errorf("allow sns:ListTopics, or set AccountID and Region: %w", err)
		}
		for _, t := range out.Topics {
			if arn := aws.ToString(t.TopicArn); strings.HasSuffix(arn, ":"+name) {
				return arn, nil
			}
		}
		if out.NextToken == nil {
			return "", nil
		}
		pages.NextToken = out.NextToken
	}
}

// partition is the first part of a region's ARNs.
func partition(region string) string {
	switch {
	case strings.HasPrefix(region, "cn-"):
		return "aws-cn"
	case strings.HasPrefix(region, "us-gov-"):
		return "aws-us-gov"
	}
	return "aws"
}

func noTopic(err error) bool {
	var gone *snstypes.NotFoundException
	return errors.As(err, &gone) || code(err) == "NotFound"
}

// ensureSubscription subscribes a group's queue to its topic: raw, filtered, and
// with the right to send.
func (b *Broker) ensureSubscription(ctx context.Context, sub broker.Subscription, q queue) error {
	fail := func(what string, err error) error {
		return fmt.Errorf("sns: %s group %q on topic %q: %w", what, sub.Group, sub.Topic, err)
	}
	topicARN, err := b.topic(ctx, sub.Topic)
	if err != nil {
		return err
	}
	if err := b.allow(ctx, q, topicARN); err != nil {
		return fail("let the topic send to the queue of", err)
	}
	want := map[string]string{subRaw: "true"}
	filter, filtered, err := b.filter(sub)
	if err != nil {
		return fail("describe the filter of", err)
	}
	if filter != "" {
		want[subFilter] = filter
	}
	arn, has, err := b.subscription(ctx, topicARN, q.arn)
	if err != nil {
		return fail("look for the subscription of", err)
	}
	if arn == "" {
		_, err := b.sns.Subscribe(ctx, &sns.SubscribeInput{
			TopicArn: &topicARN, Protocol: aws.String("sqs"), Endpoint: &q.arn, Attributes: want, ReturnSubscriptionArn: true,
		})
		if err == nil {
			return nil
		}
		// Another replica was faster, otherwise than we would: set it right.
		if arn, has, _ = b.subscription(ctx, topicARN, q.arn); arn == "" {
			return fail("subscribe", err)
		}
	}
	if filtered && has[subFilter] != "" && filter == "" {
		want[subFilter] = "{}" // takes the filter away
	}
	for name, value := range want {
		if sameSubscription(name, has[name], value) {
			continue
		}
		if _, err := b.sns.SetSubscriptionAttributes(ctx, &sns.SetSubscriptionAttributesInput{
			SubscriptionArn: &arn, AttributeName: &name, AttributeValue: &value,
		}); err != nil {
			return fail("set "+name+" of", err)
		}
	}
	return nil
}

// allow adds to the queue's policy that the topic may send, and looks whether it
// stayed: another writer may have read the policy before and written after.
func (b *Broker) allow(ctx context.Context, q queue, topicARN string) error {
	for range policyTries {
		out, err := b.sqs.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
			QueueUrl: &q.url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNamePolicy},
		})
		if err != nil {
			return err
		}
		policy, changed, err := allowTopic(out.Attributes[attrPolicy], q.arn, topicARN)
		if err != nil || !changed {
			return err
		}
		if _, err := b.sqs.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{
			QueueUrl: &q.url, Attributes: map[string]string{attrPolicy: policy},
		}); err != nil {
			return err
		}
	}
	return fmt.Errorf("someone else keeps changing the policy of queue %q: it did not keep the statement for %q in %d tries", q.arn, topicARN, policyTries)
}

// filter is the subscription's filter policy; "": none. It is known where the
// config or EnsureTopology said what the group takes.
func (b *Broker) filter(sub broker.Subscription) (policy string, known bool, err error) {
	var kinds []string
	if b.cfg.FilterTypes != nil {
		kinds = slices.Clone(b.cfg.FilterTypes(sub))
	} else if kind, said := b.types.Load(subscriptionKey(sub)); said {
		kinds = []string{kind.(string)}
	} else {
		return "", false, nil
	}
	if len(kinds) == 0 {
		return "", true, nil
	}
	slices.Sort(kinds)
	var takes []any
	for _, kind := range slices.Compact(kinds) {
		takes = append(takes, kind)
	}
	// What says no type must reach the handler, which dead-letters it: a filter
	// would let it vanish.
	takes = append(takes, map[string]bool{"exists": false})
	out, err := json.Marshal(map[string]any{events.KeyType: takes})
	return string(out), true, err
}

// subscriptionKey is sub without its type.
func subscriptionKey(sub broker.Subscription) broker.Subscription {
	return broker.Subscription{Topic: sub.Topic, Group: sub.Group}
}

// subscription finds a queue's subscription to a topic and reads its attributes.
func (b *Broker) subscription(ctx context.Context, topicARN, queueARN string) (arn string, attrs map[string]string, err error) {
	pages := &sns.ListSubscriptionsByTopicInput{TopicArn: &topicARN}
	for {
		out, err := b.sns.ListSubscriptionsByTopic(ctx, pages)
		if err != nil {
			return "", nil, err
		}
		for _, s := range out.Subscriptions {
			if aws.ToString(s.Protocol) != "sqs" || aws.ToString(s.Endpoint) != queueARN {
				continue
			}
			got, err := b.sns.GetSubscriptionAttributes(ctx, &sns.GetSubscriptionAttributesInput{SubscriptionArn: s.SubscriptionArn})
			if err != nil {
				return "", nil, err
			}
			return aws.ToString(s.SubscriptionArn), got.Attributes, nil
		}
		if out.NextToken == nil {
			return "", nil, nil
		}
		pages.NextToken = out.NextToken
	}
}

func sameSubscription(name, has, want string) bool {
	if name != subFilter || has == want {
		return has == want
	}
	var a, b any
	return json.Unmarshal([]byte(has), &a) == nil && json.Unmarshal([]byte(want), &b) == nil && reflect.DeepEqual(a, b)
}

// verifySubscription checks topic, subscription and policy.
func (b *Broker) verifySubscription(ctx context.Context, sub broker.Subscription, q queue) error {
	topicARN, err := b.topic(ctx, sub.Topic)
	if err != nil {
		return err
	}
	arn, has, err := b.subscription(ctx, topicARN, q.arn)
	if err != nil {
		return fmt.Errorf("sns: look for the subscription of group %q on topic %q: %w", sub.Group, sub.Topic, err)
	}
	if arn == "" {
		return fmt.Errorf("sns: queue %q has no subscription to topic %q: group %q would receive nothing: subscribe it with %s=true, or set Topology to %q where the program may",
			q.arn, topicARN, sub.Group, subRaw, TopologyEnsure)
	}
	var wrong []string
	if want, filtered, err := b.filter(sub); err != nil {
		return err
	} else if filtered && !sameSubscription(subFilter, has[subFilter], want) {
		wrong = append(wrong, fmt.Sprintf("%s is %q and should be %q", subFilter, has[subFilter], want))
	}
	// Without raw delivery messages are unwrapped: dearer, and they need more room.
	if has[subRaw] != "true" {
		wrong = append(wrong, fmt.Sprintf("%s is %q and should be \"true\"", subRaw, has[subRaw]))
	}
	if _, missing, err := allowTopic(q.attrs[attrPolicy], q.arn, topicARN); err != nil {
		wrong = append(wrong, err.Error())
	} else if missing && !mentions(q.attrs[attrPolicy], topicARN) {
		wrong = append(wrong, fmt.Sprintf("the queue's policy does not let %q send to it", topicARN))
	}
	if len(wrong) > 0 {
		return fmt.Errorf("sns: the subscription of group %q on topic %q is not as it should be: %s: change it, or set Topology to %q to start all the same",
			sub.Group, sub.Topic, strings.Join(wrong, "; "), TopologyOff)
	}
	return nil
}

// mentions tells whether a policy written by someone else names the topic, or
// allows patterns, which only AWS can judge.
func mentions(policy, topicARN string) bool {
	return strings.Contains(policy, topicARN) || strings.Contains(policy, "*")
}
