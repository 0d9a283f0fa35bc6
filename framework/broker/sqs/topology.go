package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	stock "github.com/ThreeDotsLabs/watermill-aws/sqs"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/headrace-go/headrace/framework/broker"
)

// The names of the attributes that the broker reads and sets.
const (
	attrARN       = string(types.QueueAttributeNameQueueArn)
	attrRedrive   = string(types.QueueAttributeNameRedrivePolicy)
	attrRetention = string(types.QueueAttributeNameMessageRetentionPeriod)
	attrMaxSize   = string(types.QueueAttributeNameMaximumMessageSize)
	attrSSE       = string(types.QueueAttributeNameSqsManagedSseEnabled)
	attrKMS       = string(types.QueueAttributeNameKmsMasterKeyId)
	attrFIFO      = string(types.QueueAttributeNameFifoQueue)
	attrScope     = string(types.QueueAttributeNameDeduplicationScope)
	attrThrough   = string(types.QueueAttributeNameFifoThroughputLimit)
	attrPolicy    = string(types.QueueAttributeNamePolicy)
)

const (
	newQueueTries = 5
	newQueuePause = 200 * time.Millisecond
)

// queueSpec is how a queue should be.
type queueSpec struct {
	name  string
	topic string
	group string // "": the topic's own queue
	dead  string // ARN of the dead letters' queue; "": none
}

type queue struct {
	url, arn string
	attrs    map[string]string
}

// EnsureTopology creates, verifies or ignores what the subscriptions need, as
// Config.Topology says: the group's queue, the queue of its dead letters, and
// for ModeSNS the topic, the subscription and the queue's policy. Under verify
// the error names everything that is missing or differs, and the remedy.
func (b *Broker) EnsureTopology(ctx context.Context, subs ...broker.Subscription) error {
	var errs []error
	for _, sub := range subs {
		if sub.Topic == "" || sub.Group == "" {
			return fmt.Errorf("sqs: topic %q, group %q: name both", sub.Topic, sub.Group)
		}
		if sub.Type != "" {
			b.types.Store(subscriptionKey(sub), sub.Type)
		}
		var err error
		switch {
		case deadLetters(sub.Topic):
			_, err = b.ownQueue(ctx, sub.Topic)
		case b.cfg.Topology == TopologyEnsure:
			_, err = b.ensureGroup(ctx, sub)
		case b.cfg.Topology == TopologyVerify:
			err = b.verifyGroup(ctx, sub)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// ensureGroup makes everything that one group on one topic needs.
func (b *Broker) ensureGroup(ctx context.Context, sub broker.Subscription) (url string, err error) {
	deadTopic := broker.DeadLetterTopic(sub.Group)
	dead, err := b.ensureQueue(ctx, queueSpec{name: b.names.own(deadTopic), topic: deadTopic})
	if err != nil {
		return "", err
	}
	q, err := b.ensureQueue(ctx, queueSpec{
		name: b.names.queue(sub.Topic, sub.Group), topic: sub.Topic, group: sub.Group, dead: dead.arn,
	})
	if err != nil {
		return "", err
	}
	if b.cfg.Mode == ModeSNS {
		if err := b.ensureSubscription(ctx, sub, q); err != nil {
			return "", err
		}
	}
	b.routes.joined(sub.Topic, q.url)
	return q.url, nil
}

// ensureQueue creates a queue, or sets what differs on one that exists.
func (b *Broker) ensureQueue(ctx context.Context, spec queueSpec) (queue, error) {
	fail := func(what string, err error) (queue, error) {
		return queue{}, fmt.Errorf("sqs: %s queue %q: %w", what, spec.name, err)
	}
	want, err := b.wanted(spec)
	if err != nil {
		return fail("describe", err)
	}
	q, err := b.lookUp(ctx, spec.name)
	if noQueue(err) {
		_, err = b.sqs.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &spec.name, Attributes: want, Tags: b.tags(spec)})
		// Another replica may have created it meanwhile, otherwise than we would.
		var exists *types.QueueNameExists
		if err != nil && !errors.As(err, &exists) && code(err) != "QueueAlreadyExists" && code(err) != "QueueNameExists" {
			return fail("create", err)
		}
		// AWS shows a new queue after a moment.
		for try := range newQueueTries {
			if q, err = b.lookUp(ctx, spec.name); !noQueue(err) || !pause(ctx, newQueuePause<<try) {
				break
			}
		}
	}
	if err != nil {
		return fail("look up", err)
	}
	change := make(map[string]string)
	for name, value := range want {
		if !sameAttribute(name, q.attrs[name], value) {
			change[name] = value
		}
	}
	if _, wrong := change[attrFIFO]; wrong {
		return fail("change", errors.New("it exists as a standard queue, and that can't be changed: delete it or use another Prefix"))
	}
	if len(change) > 0 {
		if _, err := b.sqs.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{QueueUrl: &q.url, Attributes: change}); err != nil {
			return fail("set attributes of", err)
		}
	}
	b.routes.setURL(spec.name, q.url)
	return q, nil
}

// lookUp reads a queue's URL and attributes.
func (b *Broker) lookUp(ctx context.Context, name string) (queue, error) {
	out, err := b.sqs.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		return queue{}, err
	}
	q := queue{url: aws.ToString(out.QueueUrl)}
	attrs, err := b.sqs.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: out.QueueUrl, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if err != nil {
		return queue{}, err
	}
	q.attrs, q.arn = attrs.Attributes, attrs.Attributes[attrARN]
	return q, nil
}

// wanted are the attributes of a queue that is created.
func (b *Broker) wanted(spec queueSpec) (map[string]string, error) {
	cfg := stock.QueueConfigAttributes{
		MessageRetentionPeriod:        seconds(b.cfg.Retention),
		MaximumMessageSize:            strconv.Itoa(b.cfg.MaxMessageBytes),
		ReceiveMessageWaitTimeSeconds: seconds(max(b.cfg.WaitTime, 0)),
		VisibilityTimeout:             seconds(broker.DefaultLease),
		FifoQueue:                     stock.QueueConfigAttributesBool(b.cfg.FIFO),
	}
	if b.cfg.KMSKey != "" {
		cfg.KmsMasterKeyId = b.cfg.KMSKey
	} else {
		cfg.SqsManagedSseEnabled = "true"
	}
	if b.cfg.FIFO {
		// Deduplication and throughput for each key, not for the whole queue.
		cfg.DeduplicationScope, cfg.FifoThroughputLimit = "messageGroup", "perMessageGroupId"
	}
	if spec.dead != "" {
		policy, err := json.Marshal(redrive{Target: spec.dead, MaxReceiveCount: json.Number(strconv.Itoa(b.cfg.MaxReceiveCount))})
		if err != nil {
			return nil, err
		}
		cfg.RedrivePolicy = string(policy)
	}
	attrs, err := cfg.Attributes()
	if err != nil {
		return nil, err
	}
	if !b.cfg.FIFO {
		delete(attrs, attrFIFO) // "false" is refused
	}
	return attrs, nil
}

// redrive is a queue's redrive policy.
type redrive struct {
	Target          string      `json:"deadLetterTargetArn"`
	MaxReceiveCount json.Number `json:"maxReceiveCount"`
}

func parseRedrive(s string) redrive {
	var loose struct {
		Target          string `json:"deadLetterTargetArn"`
		MaxReceiveCount any    `json:"maxReceiveCount"` // a number, or one in quotes
	}
	if json.Unmarshal([]byte(s), &loose) != nil {
		return redrive{}
	}
	return redrive{Target: loose.Target, MaxReceiveCount: json.Number(fmt.Sprint(loose.MaxReceiveCount))}
}

// sameAttribute compares what a queue has with what it should have.
func sameAttribute(name, has, want string) bool {
	switch name {
	case attrRedrive:
		return parseRedrive(has) == parseRedrive(want)
	case attrScope, attrThrough:
		return has == want || has == "" // an emulator that knows nothing of them
	}
	return has == want
}

func seconds(d time.Duration) string { return strconv.Itoa(wholeSeconds(d)) }

// wholeSeconds rounds up: SQS knows no less.
func wholeSeconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// tags are a queue's tags.
func (b *Broker) tags(spec queueSpec) map[string]string {
	tags := map[string]string{"headrace:topic": tagValue(spec.topic)}
	if spec.group != "" {
		tags["headrace:group"] = tagValue(spec.group)
	}
	for name, value := range b.cfg.Tags {
		tags[name] = value
	}
	return tags
}

// tagValue leaves what AWS allows in a tag.
func tagValue(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(" +-=._:/@", r) {
			return r
		}
		return '-'
	}, s)
	return s[:min(len(s), 256)]
}

// verifyGroup checks what one group on one topic needs.
func (b *Broker) verifyGroup(ctx context.Context, sub broker.Subscription) error {
	deadTopic := broker.DeadLetterTopic(sub.Group)
	dead, deadErr := b.verifyQueue(ctx, queueSpec{name: b.names.own(deadTopic), topic: deadTopic})
	q, err := b.verifyQueue(ctx, queueSpec{
		name: b.names.queue(sub.Topic, sub.Group), topic: sub.Topic, group: sub.Group, dead: dead.arn,
	})
	errs := []error{deadErr, err}
	if b.cfg.Mode == ModeSNS && q.arn != "" {
		errs = append(errs, b.verifySubscription(ctx, sub, q))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	b.routes.joined(sub.Topic, q.url)
	return nil
}

// verifyQueue compares a queue with what it should be and names what differs.
// The queue is returned where it exists.
func (b *Broker) verifyQueue(ctx context.Context, spec queueSpec) (queue, error) {
	what := fmt.Sprintf("it is the queue of group %q on topic %q", spec.group, spec.topic)
	if spec.group == "" {
		what = fmt.Sprintf("it is where the dead letters of topic %q are kept", spec.topic)
	}
	q, err := b.lookUp(ctx, spec.name)
	switch {
	case noQueue(err):
		return queue{}, &missingQueueError{name: spec.name, what: what, err: err}
	case err != nil:
		return queue{}, fmt.Errorf("sqs: look up queue %q: %w", spec.name, err)
	}
	var wrong []string
	differs := func(attr, want string) {
		wrong = append(wrong, fmt.Sprintf("%s is %q and should be %s", attr, q.attrs[attr], want))
	}
	if got, _ := strconv.Atoi(q.attrs[attrRetention]); time.Duration(got)*time.Second != b.cfg.Retention {
		differs(attrRetention, seconds(b.cfg.Retention))
	}
	if got, err := strconv.Atoi(q.attrs[attrMaxSize]); err == nil && got < b.cfg.MaxMessageBytes {
		differs(attrMaxSize, fmt.Sprintf("%d or more", b.cfg.MaxMessageBytes))
	}
	if (q.attrs[attrFIFO] == "true") != b.cfg.FIFO {
		differs(attrFIFO, strconv.FormatBool(b.cfg.FIFO))
	}
	switch {
	case b.cfg.KMSKey != "" && q.attrs[attrKMS] != b.cfg.KMSKey:
		differs(attrKMS, strconv.Quote(b.cfg.KMSKey))
	case b.cfg.KMSKey == "" && q.attrs[attrKMS] == "" && q.attrs[attrSSE] != "true":
		differs(attrSSE, "true, or "+attrKMS+" set: messages rest unencrypted")
	}
	if spec.group != "" {
		has := parseRedrive(q.attrs[attrRedrive])
		switch {
		case has.Target == "":
			differs(attrRedrive, "set, with deadLetterTargetArn "+strconv.Quote(spec.dead)+": a message that kills its consumer would come for ever")
		case spec.dead != "" && has.Target != spec.dead:
			differs(attrRedrive, "with deadLetterTargetArn "+strconv.Quote(spec.dead))
		case has.MaxReceiveCount.String() != strconv.Itoa(b.cfg.MaxReceiveCount):
			differs(attrRedrive, fmt.Sprintf("with maxReceiveCount %d (or set MaxReceiveCount)", b.cfg.MaxReceiveCount))
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return q, fmt.Errorf("sqs: queue %q is not as it should be (%s): %s: change the queue or the settings, or set Topology to %q to start all the same",
			spec.name, what, strings.Join(wrong, "; "), TopologyOff)
	}
	b.routes.setURL(spec.name, q.url)
	return q, nil
}
