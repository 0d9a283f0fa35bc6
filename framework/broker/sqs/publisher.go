package sqs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	stock "github.com/ThreeDotsLabs/watermill-aws/sqs"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

const (
	batchEntries = 10
	// sendTries is how often an entry is sent that AWS refused for the moment.
	sendTries   = 3
	sendBackoff = 50 * time.Millisecond
)

type publisher struct{ b *Broker }

// outgoing is one message on its way.
type outgoing struct {
	index int
	wire  wire
	key   string // order within it; "": none
	group string // FIFO
	dedup string // FIFO
}

// Publish sends msgs in order, each under its own context.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	return broker.PublishEach(p, topic, msgs)
}

// PublishBatch sends msgs in batches. On FIFO queues the messages of one key go
// one after the other, so that none overtakes one that was not confirmed; a
// standard queue keeps no order, and its batches go in parallel.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if err := broker.CheckPublish(ctx, p.b.closed.Load(), topic, len(msgs)); err != nil {
		return err
	}
	failed := &failures{}
	p.send(ctx, topic, msgs, failed)
	return failed.err(topic)
}

// Close does nothing: the Broker owns the publisher.
func (p *publisher) Close() error { return nil }

// KeepsKeyOrder is true: on FIFO queues a message is sent after the one before
// it of its key was confirmed, and standard queues have no order to keep.
func (p *publisher) KeepsKeyOrder() bool { return true }

func (p *publisher) send(ctx context.Context, topic string, msgs []*message.Message, failed *failures) {
	out := make([]*outgoing, 0, len(msgs))
	for i, msg := range msgs {
		o, err := p.prepare(ctx, topic, i, msg)
		if err != nil {
			failed.set(i, err)
			continue
		}
		out = append(out, o)
	}
	if len(out) == 0 {
		return
	}
	r, err := p.b.route(ctx, topic)
	if err != nil {
		for _, o := range out {
			failed.set(o.index, err)
		}
		return
	}
	var targets []func(context.Context, []*outgoing) (map[string]error, error)
	if r.topicARN != "" {
		targets = append(targets, p.toTopic(r.topicARN))
	}
	for _, url := range r.queues {
		targets = append(targets, p.toQueue(url))
	}
	var all errgroup.Group
	for _, target := range targets {
		all.Go(func() error {
			p.spread(ctx, topic, out, target, failed)
			return nil
		})
	}
	_ = all.Wait()
}

// prepare encodes a message and takes its payload to the store when it is too
// large.
func (p *publisher) prepare(ctx context.Context, topic string, i int, msg *message.Message) (*outgoing, error) {
	w, err := encode(msg)
	if err != nil {
		return nil, err
	}
	limit := p.b.cfg.MaxMessageBytes
	if w.size > limit {
		if p.b.cfg.Payloads == nil {
			return nil, fmt.Errorf("message %s has %d bytes with its attributes, above the %d that %s takes: publish less, or set up a claim check: %w",
				msg.UUID, w.size, limit, p.b.cfg.Mode, broker.ErrRejected)
		}
		if w.claimed("").size > limit {
			return nil, fmt.Errorf("message %s has metadata of more than the %d bytes that %s takes: %w", msg.UUID, limit, p.b.cfg.Mode, broker.ErrRejected)
		}
		ref, err := p.b.cfg.Payloads.Put(ctx, msg.Payload)
		if err != nil {
			return nil, fmt.Errorf("store the payload of message %s (%d bytes): %w", msg.UUID, len(msg.Payload), err)
		}
		if w = w.claimed(ref); w.size > limit {
			return nil, fmt.Errorf("message %s has metadata of more than the %d bytes that %s takes: %w", msg.UUID, limit, p.b.cfg.Mode, broker.ErrRejected)
		}
	}
	o := &outgoing{index: i, wire: w}
	if !p.b.cfg.FIFO {
		return o, nil
	}
	o.key = msg.Metadata[events.KeyOrdering]
	id := msg.Metadata[events.KeyID]
	if id == "" || deadLetters(topic) {
		// No event: nothing to recognize a copy by. And a dead letter that is edited
		// or imported again is no copy of the one that goes: SQS would drop it.
		id = uuid.NewString()
	} else if redriven := msg.Metadata[middleware.DeadLetterRedriveCount]; redriven != "" {
		id += "." + redriven // a replay within five minutes is no duplicate
	}
	o.dedup, o.group = token(id), token(o.key)
	if o.key == "" || deadLetters(topic) {
		// A group of its own: no order, and nothing that it could hold up.
		o.key, o.group = "", o.dedup
	}
	return o, nil
}

// spread sends everything to one target.
func (p *publisher) spread(ctx context.Context, topic string, out []*outgoing, target func(context.Context, []*outgoing) (map[string]error, error), failed *failures) {
	for len(out) > 0 {
		round, rest := nextRound(out)
		g := errgroup.Group{}
		g.SetLimit(p.b.cfg.Parallel)
		for _, batch := range batches(round, p.b.cfg.MaxMessageBytes) {
			g.Go(func() error {
				p.deliver(ctx, topic, batch, target, failed)
				return nil
			})
		}
		_ = g.Wait()
		out = rest[:0]
		blocked := make(map[string]error)
		for _, o := range round {
			if err := failed.get(o.index); err != nil && o.key != "" {
				blocked[o.key] = err
			}
		}
		for _, o := range rest {
			if err := blocked[o.key]; err != nil {
				failed.set(o.index, fmt.Errorf("not sent, since an earlier one of its key failed: %w", err))
				continue
			}
			out = append(out, o)
		}
	}
}

// nextRound takes the first message of each key, and all that have none.
func nextRound(out []*outgoing) (round, rest []*outgoing) {
	var seen map[string]bool
	for _, o := range out {
		if o.key == "" {
			round = append(round, o)
			continue
		}
		if seen[o.key] {
			rest = append(rest, o)
			continue
		}
		if seen == nil {
			seen = make(map[string]bool)
		}
		seen[o.key] = true
		round = append(round, o)
	}
	return round, rest
}

// batches cuts into batches of ten and of no more than limit bytes in sum.
func batches(out []*outgoing, limit int) [][]*outgoing {
	var all [][]*outgoing
	start, size := 0, 0
	for i, o := range out {
		if i > start && (i-start == batchEntries || size+o.wire.size > limit) {
			all = append(all, out[start:i])
			start, size = i, 0
		}
		size += o.wire.size
	}
	return append(all, out[start:])
}

// deliver sends one batch, and again what was refused for the moment.
func (p *publisher) deliver(ctx context.Context, topic string, batch []*outgoing, target func(context.Context, []*outgoing) (map[string]error, error), failed *failures) {
	for try := 1; ; try++ {
		rctx, cancel := context.WithTimeout(ctx, p.b.cfg.RequestTimeout)
		results, err := target(rctx, batch)
		cancel()
		if err != nil {
			if noQueue(err) || noTopic(err) {
				p.b.routes.forget(topic)
			}
			if hopeless(code(err)) {
				// One that AWS will never take must not stop the others.
				if half := len(batch) / 2; half > 0 {
					p.deliver(ctx, topic, batch[:half], target, failed)
					p.deliver(ctx, topic, batch[half:], target, failed)
					return
				}
				err = fmt.Errorf("%w: %w", broker.ErrRejected, err)
			}
			for _, o := range batch {
				failed.set(o.index, err)
			}
			return
		}
		var again []*outgoing
		for i, o := range batch {
			err, answered := results[strconv.Itoa(i)]
			switch {
			case answered && err == nil:
			case answered && (errors.Is(err, broker.ErrRejected) || try == sendTries):
				failed.set(o.index, err)
			case !answered && try == sendTries:
				failed.set(o.index, errors.New("not confirmed: the answer says nothing about this entry"))
			default:
				again = append(again, o)
			}
		}
		if len(again) == 0 {
			return
		}
		if batch = again; !pause(ctx, sendBackoff<<(try-1)) {
			for _, o := range batch {
				failed.set(o.index, ctx.Err())
			}
			return
		}
	}
}

// pause waits up to d, at least half of it. It returns false when ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + rand.N(d/2))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// results collects what AWS said of each entry by its id. An entry that is both
// confirmed and refused counts as refused: a second copy is the lesser harm.
type results map[string]error

func (r results) ok(id *string) {
	if _, said := r[aws.ToString(id)]; !said {
		r[aws.ToString(id)] = nil
	}
}

func (r results) fail(id, code, msg *string) {
	err := fmt.Errorf("%s: %s", aws.ToString(code), aws.ToString(msg))
	if hopeless(aws.ToString(code)) {
		err = fmt.Errorf("%w: %w", broker.ErrRejected, err)
	}
	r[aws.ToString(id)] = err
}

// toQueue sends batches to one queue.
func (p *publisher) toQueue(url string) func(context.Context, []*outgoing) (map[string]error, error) {
	return func(ctx context.Context, batch []*outgoing) (map[string]error, error) {
		entries := make([]types.SendMessageBatchRequestEntry, len(batch))
		for i, o := range batch {
			entries[i] = types.SendMessageBatchRequestEntry{
				Id: aws.String(strconv.Itoa(i)), MessageBody: &o.wire.body, MessageAttributes: o.wire.sqsAttributes(),
			}
			if o.group != "" {
				entries[i].MessageGroupId, entries[i].MessageDeduplicationId = &o.group, &o.dedup
			}
		}
		out, err := p.b.sqs.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: entries})
		if err != nil {
			return nil, fmt.Errorf("send to queue %s: %w", url, err)
		}
		r := make(results, len(batch))
		for _, e := range out.Failed {
			r.fail(e.Id, e.Code, e.Message)
		}
		for _, e := range out.Successful {
			r.ok(e.Id)
		}
		return r, nil
	}
}

// toTopic publishes batches to one SNS topic.
func (p *publisher) toTopic(arn string) func(context.Context, []*outgoing) (map[string]error, error) {
	return func(ctx context.Context, batch []*outgoing) (map[string]error, error) {
		entries := make([]snstypes.PublishBatchRequestEntry, len(batch))
		for i, o := range batch {
			attrs := make(map[string]snstypes.MessageAttributeValue, len(o.wire.attrs))
			for name, value := range o.wire.attrs {
				attrs[name] = snstypes.MessageAttributeValue{DataType: aws.String(stock.AWSStringDataType), StringValue: &value}
			}
			entries[i] = snstypes.PublishBatchRequestEntry{
				Id: aws.String(strconv.Itoa(i)), Message: &o.wire.body, MessageAttributes: attrs,
			}
			if o.group != "" {
				entries[i].MessageGroupId, entries[i].MessageDeduplicationId = &o.group, &o.dedup
			}
		}
		out, err := p.b.sns.PublishBatch(ctx, &sns.PublishBatchInput{TopicArn: &arn, PublishBatchRequestEntries: entries})
		if err != nil {
			return nil, fmt.Errorf("publish to topic %s: %w", arn, err)
		}
		r := make(results, len(batch))
		for _, e := range out.Failed {
			r.fail(e.Id, e.Code, e.Message)
		}
		for _, e := range out.Successful {
			r.ok(e.Id)
		}
		return r, nil
	}
}

// failures collects what was not confirmed. Safe for concurrent use.
type failures struct {
	mu sync.Mutex
	by map[int]error
}

func (f *failures) set(i int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		f.by = make(map[int]error)
	}
	if f.by[i] == nil {
		f.by[i] = err
	}
}

func (f *failures) get(i int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.by[i]
}

func (f *failures) err(topic string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.by) == 0 {
		return nil
	}
	return &broker.PublishError{Topic: topic, Failed: f.by}
}
