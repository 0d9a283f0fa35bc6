package lanes

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
)

// deadLetterTimeout bounds the publish of one malformed entry.
const deadLetterTimeout = 10 * time.Second

// deadLetter is the default OnMalformed: a raw copy goes to the group's dead
// letters, marked as malformed.
func deadLetter(cfg Config) func(context.Context, *message.Message, error) error {
	return func(ctx context.Context, raw *message.Message, reason error) error {
		if cfg.DeadLetters == nil {
			return errors.New("there is no publisher for dead letters")
		}
		ctx, cancel := context.WithTimeout(ctx, deadLetterTimeout)
		defer cancel()
		raw.Metadata.Set(broker.MalformedReasonKey, middleware.ReasonMalformed)
		raw.Metadata.Set(middleware.DeadLetterError, reason.Error())
		raw.Metadata.Set(middleware.DeadLetterTopic, cfg.Topic)
		raw.Metadata.Set(middleware.DeadLetterGroup, cfg.Group)
		return cfg.DeadLetters.PublishBatch(ctx, broker.DeadLetterTopic(cfg.Group), []*message.Message{raw})
	}
}
