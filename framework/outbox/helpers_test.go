package outbox

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
)

func publishError(topic string, failed map[int]error) error {
	return &broker.PublishError{Topic: topic, Failed: failed}
}

// hold lets no publish through until gate is closed.
func hold(gate chan struct{}) func(context.Context, string, []*message.Message) error {
	return func(ctx context.Context, _ string, _ []*message.Message) error {
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
