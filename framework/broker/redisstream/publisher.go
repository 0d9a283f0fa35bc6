package redisstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/framework/broker"
)

const (
	// maxMessageBytes is the default of Redis's proto-max-bulk-len.
	maxMessageBytes = 512 << 20
	// One pipeline carries at most so many entries and about so many bytes.
	pipelineEntries = 1000
	pipelineBytes   = 4 << 20
)

type publisher struct{ b *Broker }

// Publish sends msgs in order, each under its own context.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	return broker.PublishEach(p, topic, msgs)
}

// PublishBatch sends msgs in transactions of XADD, in order.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if err := broker.CheckPublish(ctx, p.b.closed.Load(), topic, len(msgs)); err != nil {
		return err
	}
	failed := make(map[int]error)
	fail := func(from int, err error) error {
		for i := from; i < len(msgs); i++ {
			failed[i] = err
		}
		return &broker.PublishError{Topic: topic, Failed: failed}
	}
	key := p.b.key(topic)
	for start := 0; start < len(msgs); {
		if err := ctx.Err(); err != nil {
			return fail(start, err)
		}
		end, err := p.send(ctx, key, msgs, start, failed)
		if err != nil {
			// The server is not there, or takes nothing now: what comes later would
			// arrive out of order.
			return fail(end, fmt.Errorf("not sent, since an earlier one failed: %w", err))
		}
		start = end
	}
	if len(failed) > 0 {
		return &broker.PublishError{Topic: topic, Failed: failed}
	}
	return nil
}

// Close does nothing: the Broker owns the publisher.
func (p *publisher) Close() error { return nil }

// KeepsKeyOrder is true: a pipeline is a transaction, which Redis refuses as a
// whole when it can't take one command of it, and the first refusal ends a batch.
func (p *publisher) KeepsKeyOrder() bool { return true }

// send sends one pipeline from msgs[start] and returns where the next begins.
// It notes what was not confirmed in failed, and returns an error when no more
// should be tried.
func (p *publisher) send(ctx context.Context, key string, msgs []*message.Message, start int, failed map[int]error) (end int, err error) {
	cmds := make([]redis.Cmder, 0, min(len(msgs)-start, pipelineEntries))
	at := make([]int, 0, cap(cmds))
	size := 0
	for end = start; end < len(msgs) && len(cmds) < pipelineEntries && size < pipelineBytes; end++ {
		cmd, n, err := xadd(ctx, key, msgs[end])
		if err != nil {
			failed[end] = fmt.Errorf("%w: %w", broker.ErrRejected, err)
			continue
		}
		size += n
		cmds, at = append(cmds, cmd), append(at, end)
	}
	if len(cmds) == 0 {
		return end, nil
	}
	if err := p.exec(ctx, cmds); err != nil {
		for _, i := range at {
			failed[i] = err
		}
		return end, err
	}
	var refused error
	for n, cmd := range cmds {
		err := cmd.Err()
		if err == nil {
			continue
		}
		var answer redis.Error
		switch {
		case redis.HasErrorPrefix(err, "WRONGTYPE"):
			failed[at[n]] = fmt.Errorf("%w: key %q is not a stream: %w", broker.ErrRejected, key, err)
		case errors.As(err, &answer):
			failed[at[n]] = err
			refused = err
		default:
			// The connection's deadline is that of ctx, and may be a moment ahead.
			if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
				err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
			}
			failed[at[n]] = err
			return p.rest(cmds, at, n, end, failed), err
		}
	}
	return end, refused
}

// rest notes the errors of the commands after the nth.
func (p *publisher) rest(cmds []redis.Cmder, at []int, n, end int, failed map[int]error) int {
	for ; n < len(cmds); n++ {
		if err := cmds[n].Err(); err != nil {
			failed[at[n]] = err
		}
	}
	return end
}

// exec runs the commands as one transaction, so that none is taken after one
// that was refused (a full memory, a demoted primary), and returns when ctx ends,
// whether the server has answered or not; then it returns an error and the
// commands belong to the pipeline. Their own errors it leaves to the caller.
func (p *publisher) exec(ctx context.Context, cmds []redis.Cmder) error {
	pipe := p.b.client.TxPipeline()
	if len(cmds) == 1 {
		pipe = p.b.client.Pipeline()
	}
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd)
	}
	if ctx.Done() == nil {
		_, _ = pipe.Exec(ctx)
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = pipe.Exec(ctx)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// xadd builds the command that adds msg, and returns about how large it is.
func xadd(ctx context.Context, key string, msg *message.Message) (*redis.StringCmd, int, error) {
	fields, err := marshaller.Marshal(key, msg)
	if err != nil {
		return nil, 0, err
	}
	md, _ := fields[fieldMetadata].([]byte)
	payload, _ := fields[fieldPayload].([]byte)
	size := len(msg.UUID) + len(md) + len(payload)
	if size > maxMessageBytes {
		return nil, 0, fmt.Errorf("message %s has %d bytes, above the %d that Redis takes", msg.UUID, size, maxMessageBytes)
	}
	return redis.NewStringCmd(ctx, "xadd", key, "*",
		fieldUUID, msg.UUID, fieldMetadata, md, fieldPayload, payload), size, nil
}
