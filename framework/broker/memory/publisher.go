package memory

import (
	"bytes"
	"context"
	"fmt"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
)

type publisher struct{ b *Broker }

// Publish appends msgs to topic, unless the context of one has ended.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	for _, m := range msgs {
		if m.Context().Err() != nil {
			return p.PublishBatch(m.Context(), topic, msgs)
		}
	}
	return p.PublishBatch(context.Background(), topic, msgs)
}

// PublishBatch appends msgs to topic, all or none.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	err := ctx.Err()
	if err == nil && topic == "" {
		err = fmt.Errorf("the topic has no name: %w", broker.ErrRejected)
	}
	if err == nil {
		t, e := p.b.topic(topic)
		if e == nil {
			t.append(msgs)
			return nil
		}
		err = e
	}
	failed := make(map[int]error, len(msgs))
	for i := range msgs {
		failed[i] = err
	}
	return &broker.PublishError{Topic: topic, Failed: failed}
}

// Close does nothing: the Broker owns the publisher.
func (p *publisher) Close() error { return nil }

// KeepsKeyOrder is true: a batch is appended as a whole or not at all.
func (p *publisher) KeepsKeyOrder() bool { return true }

// clone copies what a publisher or a handler may change later.
func clone(uuid string, payload []byte, metadata message.Metadata) *message.Message {
	m := message.NewMessage(uuid, bytes.Clone(payload))
	maps.Copy(m.Metadata, metadata)
	return m
}
