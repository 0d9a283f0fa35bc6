package broker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
)

// batches is a Publisher that fails one of its batches.
type batches struct {
	broker.Publisher
	sizes []int
	fail  map[int]error
}

func (b *batches) PublishBatch(_ context.Context, _ string, msgs []*message.Message) error {
	b.sizes = append(b.sizes, len(msgs))
	return b.fail[len(b.sizes)-1]
}

func TestPublishEach(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Two, then two under a context of their own, then one.
	of := func() []*message.Message {
		msgs := make([]*message.Message, 5)
		for i := range msgs {
			msgs[i] = message.NewMessage(string(rune('a'+i)), nil)
			if i == 2 || i == 3 {
				msgs[i].SetContext(ctx)
			}
		}
		return msgs
	}
	boom := errors.New("boom")

	p := &batches{}
	require.NoError(t, broker.PublishEach(p, "t", of()))
	require.Equal(t, []int{2, 2, 1}, p.sizes)

	for name, c := range map[string]struct {
		err    error
		failed []int
	}{
		"one entry":                {&broker.PublishError{Topic: "t", Failed: map[int]error{1: boom}}, []int{3, 4}},
		"an error of another kind": {boom, []int{2, 3, 4}},
		"one that names no entry":  {&broker.PublishError{Topic: "t"}, []int{2, 3, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &batches{fail: map[int]error{1: c.err}}
			err := broker.PublishEach(p, "t", of())
			var got *broker.PublishError
			require.ErrorAs(t, err, &got)
			require.Equal(t, "t", got.Topic)
			require.Equal(t, []int{2, 2}, p.sizes, "nothing is sent after a failure")
			require.Len(t, got.Failed, len(c.failed))
			for _, i := range c.failed {
				require.Error(t, got.Failed[i])
			}
		})
	}
}
