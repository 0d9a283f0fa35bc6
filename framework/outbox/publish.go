package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
)

// publishGrace is how long a publisher may take to return after its context is
// over. Then its batch counts as unconfirmed and it is left to itself.
const publishGrace = time.Second

var (
	errBehind      = errors.New("behind a failed row of its ordering key")
	errNotReturned = errors.New("the publisher did not return at its deadline")
)

// publish sends the rows and returns for each nil once the broker confirmed it.
// Rows go in waves: a wave's rows of a topic are one batch, in order, and its
// topics go at the same time. The next wave goes after the broker has answered
// for the one before, without the rows whose key has failed.
func (r *Relay) publish(ctx context.Context, rows []row) []error {
	verdicts := make([]error, len(rows))
	failedKeys := map[string]bool{}
	for _, wave := range waves(rows, r.keepsOrder && !r.cfg.StrictOrder) {
		now := wave[:0:len(wave)]
		for _, i := range wave {
			switch {
			case failedKeys[rows[i].key]:
				verdicts[i] = errBehind
			case rows[i].corrupt != nil:
				verdicts[i] = rows[i].corrupt
				r.noteFailed(failedKeys, rows[i].key, broker.ErrRejected)
			default:
				now = append(now, i)
			}
		}
		r.publishTopics(ctx, rows, now, verdicts)
		for _, i := range now {
			r.noteFailed(failedKeys, rows[i].key, verdicts[i])
		}
	}
	return verdicts
}

// noteFailed notes that later rows of the key must wait. Behind a row that will
// never be taken they do so only where order is strict.
func (r *Relay) noteFailed(failed map[string]bool, key string, err error) {
	if key != "" && err != nil && (r.cfg.StrictOrder || !errors.Is(err, broker.ErrRejected)) {
		failed[key] = true
	}
}

// waves splits rows so that no row can get past an earlier one of its key that
// fails. A wave has one row of a key; or, when the publisher keeps the order of
// a key within a call, its next rows as long as they go to the same topic. Rows
// without a key are in the first.
func waves(rows []row, keepsOrder bool) [][]int {
	var out [][]int
	type place struct {
		wave  int
		topic string
	}
	last := make(map[string]place, len(rows))
	for i := range rows {
		n := 0
		if k := rows[i].key; k != "" {
			was, again := last[k]
			switch {
			case again && keepsOrder && was.topic == rows[i].topic:
				n = was.wave
			case again:
				n = was.wave + 1
			}
			last[k] = place{n, rows[i].topic}
		}
		if n == len(out) {
			out = append(out, nil)
		}
		out[n] = append(out[n], i)
	}
	return out
}

func (r *Relay) publishTopics(ctx context.Context, rows []row, which []int, verdicts []error) {
	if len(which) == 0 {
		return
	}
	byTopic := map[string][]int{}
	for _, i := range which {
		byTopic[rows[i].topic] = append(byTopic[rows[i].topic], i)
	}
	var wg sync.WaitGroup
	for topic, idx := range byTopic {
		send := func() {
			msgs := make([]*message.Message, len(idx))
			for n, i := range idx {
				msgs[n] = rows[i].msg
			}
			for n, err := range r.publishBatch(ctx, topic, msgs) {
				verdicts[idx[n]] = err
			}
		}
		if len(byTopic) == 1 {
			send()
			return
		}
		wg.Go(send)
	}
	wg.Wait()
}

// publishBatch returns an error for each message that was not confirmed.
func (r *Relay) publishBatch(ctx context.Context, topic string, msgs []*message.Message) map[int]error {
	err := r.call(ctx, topic, msgs)
	if err == nil {
		return nil
	}
	var partial *broker.PublishError
	if errors.As(err, &partial) && len(partial.Failed) > 0 {
		return partial.Failed
	}
	failed := make(map[int]error, len(msgs))
	if errors.Is(err, broker.ErrRejected) && len(msgs) > 1 {
		// Some of them will never be taken, and the error does not say which.
		for i, m := range msgs {
			if err := r.call(ctx, topic, []*message.Message{m}); err != nil {
				failed[i] = err
			}
		}
		return failed
	}
	for i := range msgs {
		failed[i] = err
	}
	return failed
}

func (r *Relay) call(ctx context.Context, topic string, msgs []*message.Message) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("the publisher panicked: %v", p)
			}
		}()
		done <- r.cfg.Publisher.PublishBatch(ctx, topic, msgs)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	grace := time.NewTimer(publishGrace)
	defer grace.Stop()
	select {
	case err := <-done:
		return err
	case <-grace.C:
		return fmt.Errorf("publish to %q: %w: %w", topic, errNotReturned, context.Cause(ctx))
	}
}
