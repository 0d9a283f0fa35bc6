package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// CheckPublish is what an adapter's PublishBatch of n messages begins with: it
// returns nil, or refuses all of them with a *PublishError, since the publisher is
// closed, the topic has no name or ctx has ended.
func CheckPublish(ctx context.Context, closed bool, topic string, n int) error {
	switch {
	case closed:
		return AllFailed(topic, n, ErrClosed, nil)
	case topic == "":
		return AllFailed(topic, n, fmt.Errorf("the topic has no name: %w", ErrRejected), nil)
	case ctx.Err() != nil:
		return AllFailed(topic, n, ctx.Err(), nil)
	}
	return nil
}

// AllFailed is the error of a batch of n messages none of which was confirmed: err
// is why, but for those that known has a reason of their own for. Known may be nil
// and is not changed.
func AllFailed(topic string, n int, err error, known map[int]error) *PublishError {
	failed := make(map[int]error, n)
	for i := range n {
		if failed[i] = known[i]; failed[i] == nil {
			failed[i] = err
		}
	}
	return &PublishError{Topic: topic, Failed: failed}
}

// PublishEach is a Publish made of p's PublishBatch: it sends msgs in order, each
// under its own context, in as few batches as their contexts allow. It stops at
// the first batch that fails; what comes later is reported as not sent. The error
// is a *PublishError that names every message of msgs that is not confirmed.
func PublishEach(p Publisher, topic string, msgs []*message.Message) error {
	for start := 0; start < len(msgs); {
		// Contexts that end together can share a batch.
		ctx := msgs[start].Context()
		end := start + 1
		for end < len(msgs) && msgs[end].Context().Done() == ctx.Done() {
			end++
		}
		if err := p.PublishBatch(ctx, topic, msgs[start:end]); err != nil {
			return partFailed(err, topic, len(msgs), start, end)
		}
		start = end
	}
	return nil
}

// partFailed makes the error of the batch [start, end) the error of all n.
func partFailed(err error, topic string, n, start, end int) error {
	failed := make(map[int]error, n-start)
	var part *PublishError
	if errors.As(err, &part) && len(part.Failed) > 0 {
		for i, e := range part.Failed {
			failed[start+i] = e
		}
	} else {
		// Whoever reads the error takes what it does not name for confirmed.
		for i := start; i < end; i++ {
			failed[i] = err
		}
	}
	for i := end; i < n; i++ {
		failed[i] = fmt.Errorf("not sent, since an earlier one failed: %w", err)
	}
	return &PublishError{Topic: topic, Failed: failed}
}
