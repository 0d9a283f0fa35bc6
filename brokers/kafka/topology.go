package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/headrace-go/headrace/framework/broker"
)

// EnsureTopology creates topics where they are missing. A group comes to be when
// its first member joins, and starts at the oldest message.
func (b *Broker) EnsureTopology(ctx context.Context, subs ...broker.Subscription) error {
	for _, sub := range subs {
		if sub.Topic == "" || sub.Group == "" {
			return fmt.Errorf("kafka: topic %q, group %q: name both", sub.Topic, sub.Group)
		}
		if err := b.ensureTopic(ctx, sub.Topic); err != nil {
			return err
		}
	}
	return nil
}

// TopicSettings is how a topic is created: for infrastructure code. C has its
// defaults.
func (c Config) TopicSettings(topic string) map[string]*string {
	c = c.WithDefaults()
	keep := "-1"
	if c.Retention > 0 && !deadLetters(topic) {
		keep = strconv.FormatInt(c.Retention.Milliseconds(), 10)
	}
	return map[string]*string{"cleanup.policy": kadm.StringPtr("delete"), "retention.ms": &keep, "retention.bytes": kadm.StringPtr("-1")}
}

func (b *Broker) ensureTopic(ctx context.Context, topic string) error {
	err := b.create(ctx, b.cfg.TopicName(topic), int32(b.cfg.Partitions), b.cfg.TopicSettings(topic))
	if err != nil {
		return fmt.Errorf("kafka: topic %q (%s): %w", topic, b.cfg.TopicName(topic), err)
	}
	return nil
}

// create creates a Kafka topic where it is missing.
func (b *Broker) create(ctx context.Context, name string, partitions int32, settings map[string]*string) error {
	if b.closed.Load() {
		return broker.ErrClosed
	}
	b.mu.Lock()
	known := b.topics[name]
	b.mu.Unlock()
	if known {
		return nil
	}
	ctx, cancel := b.timeout(ctx)
	defer cancel()
	// To look first needs no right to create.
	details, err := b.admin.ListTopics(ctx, name)
	if err != nil {
		return err
	}
	if !details.Has(name) {
		_, err := b.admin.CreateTopic(ctx, partitions, int16(b.cfg.ReplicationFactor), settings, name)
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return rejected(err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topics[name] = true
	return nil
}

// forget has a topic looked for again.
func (b *Broker) forget(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.topics, b.cfg.TopicName(topic))
}

// rejected marks what Kafka will never take.
func rejected(err error) error {
	for _, never := range []error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTopicException} {
		if errors.Is(err, never) {
			return fmt.Errorf("%w: %w", broker.ErrRejected, err)
		}
	}
	return err
}
