package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/framework/broker"
)

type publisher struct{ b *Broker }

// Publish sends msgs in order, each under its own context.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	return broker.PublishEach(p, topic, msgs)
}

// PublishBatch sends msgs together and waits for the word of all in-sync replicas
// on each. A later one may be confirmed while an earlier one was not.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if err := broker.CheckPublish(ctx, p.b.closed.Load(), topic, len(msgs)); err != nil {
		return err
	}
	failed := make(map[int]error)
	if err := p.b.ensureTopic(ctx, topic); err != nil {
		return broker.AllFailed(topic, len(msgs), err, nil)
	}
	type result struct {
		index int
		err   error
	}
	name, limit := p.b.cfg.TopicName(topic), p.b.cfg.MaxMessageBytes
	results, sent := make(chan result, len(msgs)), make(map[int]bool, len(msgs))
	for i, msg := range msgs {
		r, err := encode(name, msg)
		if err != nil {
			failed[i] = fmt.Errorf("message %s: %w: %w", msg.UUID, broker.ErrRejected, err)
			continue
		}
		if n := size(r); n > limit {
			failed[i] = fmt.Errorf("message %s has %d bytes with its metadata, above MaxMessageBytes %d: publish less, or raise it here and at the brokers: %w",
				msg.UUID, n, limit, broker.ErrRejected)
			continue
		}
		sent[i] = true
		p.b.client.Produce(ctx, r, func(_ *kgo.Record, err error) { results <- result{i, err} })
	}
	for len(sent) > 0 {
		select {
		case r := <-results:
			delete(sent, r.index)
			if errors.Is(r.err, kerr.UnknownTopicOrPartition) {
				p.b.forget(topic)
			}
			if r.err != nil {
				failed[r.index] = rejected(r.err)
			}
		case <-ctx.Done():
			for i := range sent {
				failed[i] = fmt.Errorf("not confirmed: %w", ctx.Err())
			}
			clear(sent)
		}
	}
	if len(failed) > 0 {
		return &broker.PublishError{Topic: topic, Failed: failed}
	}
	return nil
}

// Close does nothing: the Broker owns the publisher.
func (p *publisher) Close() error { return nil }
