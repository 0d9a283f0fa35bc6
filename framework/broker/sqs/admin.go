package sqs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
)

const (
	// browseLease is how long Browse and Delete hide what they look at.
	browseLease = 30 * time.Second
	// browseWait is the long poll that ends them: a short one asks only some of
	// SQS's servers.
	browseWait = 1
)

type admin struct{ b *Broker }

// sources are the open subscriptions.
type sources struct {
	mu sync.Mutex
	by map[*source]broker.Subscription
}

func (s *sources) add(src *source, sub broker.Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = make(map[*source]broker.Subscription)
	}
	s.by[src] = sub
}

func (s *sources) remove(src *source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.by, src)
}

// oldest is when the oldest message was sent that a subscription of this process
// holds.
func (s *sources) oldest(sub broker.Subscription) time.Time {
	s.mu.Lock()
	var of []*source
	for src, its := range s.by {
		if its == sub {
			of = append(of, src)
		}
	}
	s.mu.Unlock()
	var oldest time.Time
	for _, src := range of {
		if t := src.oldest(); !t.IsZero() && (oldest.IsZero() || t.Before(oldest)) {
			oldest = t
		}
	}
	return oldest
}

// Stats reads the queue's attributes. SQS tells no age but to CloudWatch:
// OldestAge is that of the oldest message that this process holds, 0 where it
// holds none.
func (a admin) Stats(ctx context.Context, sub broker.Subscription) (broker.Stats, error) {
	fail := func(err error) (broker.Stats, error) {
		return broker.Stats{}, fmt.Errorf("sqs: stats of group %q on topic %q: %w", sub.Group, sub.Topic, err)
	}
	name := a.b.names.queue(sub.Topic, sub.Group)
	if deadLetters(sub.Topic) {
		name = a.b.names.own(sub.Topic)
	}
	url, ok, err := a.find(ctx, name)
	if err != nil {
		return fail(err)
	}
	if !ok {
		return broker.Stats{}, nil
	}
	n, err := a.count(ctx, url)
	if err != nil {
		return fail(err)
	}
	stats := broker.Stats{Lag: n.visible + n.delayed, Pending: n.hidden}
	if oldest := a.b.sources.oldest(sub); !oldest.IsZero() && stats.Lag+stats.Pending > 0 {
		stats.OldestAge = max(time.Since(oldest), time.Nanosecond)
	}
	return stats, nil
}

// find looks a queue up; false: there is none.
func (a admin) find(ctx context.Context, name string) (string, bool, error) {
	url, err := a.b.queueURL(ctx, name, "")
	var missing *missingQueueError
	if errors.As(err, &missing) {
		return "", false, nil
	}
	return url, err == nil, err
}

type counts struct{ visible, hidden, delayed int64 }

func (a admin) count(ctx context.Context, url string) (counts, error) {
	out, err := a.b.sqs.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &url,
		AttributeNames: []types.QueueAttributeName{
			types.QueueAttributeNameApproximateNumberOfMessages,
			types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
			types.QueueAttributeNameApproximateNumberOfMessagesDelayed,
		},
	})
	if noQueue(err) {
		return counts{}, nil
	} else if err != nil {
		return counts{}, err
	}
	n := func(name types.QueueAttributeName) int64 {
		n, _ := strconv.ParseInt(out.Attributes[string(name)], 10, 64)
		return n
	}
	return counts{
		visible: n(types.QueueAttributeNameApproximateNumberOfMessages),
		hidden:  n(types.QueueAttributeNameApproximateNumberOfMessagesNotVisible),
		delayed: n(types.QueueAttributeNameApproximateNumberOfMessagesDelayed),
	}, nil
}

// queues are all queues that hold messages of a topic: its own and its groups'.
func (a admin) queues(ctx context.Context, topic string) (urls []string, err error) {
	own, ok, err := a.find(ctx, a.b.names.own(topic))
	if err != nil {
		return nil, err
	}
	if ok {
		urls = append(urls, own)
	}
	if deadLetters(topic) {
		return urls, nil
	}
	groups, err := a.b.discover(ctx, topic)
	return append(urls, groups...), err
}

// Depth is how many messages rest in the topic's queues, those that are being
// handled included: one for each group that has not settled it.
func (a admin) Depth(ctx context.Context, topic string) (int64, error) {
	urls, err := a.queues(ctx, topic)
	total := int64(0)
	for _, url := range urls {
		var n counts
		if n, err = a.count(ctx, url); err != nil {
			break
		}
		total += n.visible + n.hidden + n.delayed
	}
	if err != nil {
		return 0, fmt.Errorf("sqs: depth of topic %q: %w", topic, err)
	}
	return total, nil
}

// receipts are those of messages that Browse hides at the moment.
type receipts struct {
	mu sync.Mutex
	by map[string]string // position → receipt handle
}

func (r *receipts) put(position, receipt string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = make(map[string]string)
	}
	r.by[position] = receipt
}

// take removes and returns a receipt.
func (r *receipts) take(position string) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	receipt, ok := r.by[position]
	delete(r.by, position)
	return receipt, ok
}

// Browse receives the messages of the topic's queues, hides them for 30 s, and
// gives them back when it ends. So it counts as a delivery of each, other
// consumers miss them meanwhile, messages that are being handled are not seen,
// and of a FIFO queue no more than ten of each message group. It is made for
// dead letters, whose queue has no limit on deliveries and no groups.
func (a admin) Browse(ctx context.Context, topic string, since time.Time) iter.Seq2[broker.Stored, error] {
	return func(yield func(broker.Stored, error) bool) {
		fail := func(err error) {
			yield(broker.Stored{}, fmt.Errorf("sqs: browse topic %q: %w", topic, err))
		}
		urls, err := a.queues(ctx, topic)
		if err != nil {
			fail(err)
			return
		}
		now := time.Now()
		for _, url := range urls {
			goOn, err := a.browse(ctx, url, since, now, yield)
			if err != nil {
				fail(err)
				return
			}
			if !goOn {
				return
			}
		}
	}
}

func (a admin) browse(ctx context.Context, url string, since, until time.Time, yield func(broker.Stored, error) bool) (goOn bool, err error) {
	var seen []string
	defer func() { a.giveBack(context.WithoutCancel(ctx), url, seen) }()
	known := make(map[string]bool)
	for {
		n, err := a.count(ctx, url)
		if err != nil {
			return false, err
		}
		wait := int32(browseWait)
		if n.visible == 0 && len(known) == 0 {
			return true, nil
		}
		msgs, err := a.receive(ctx, url, wait)
		if err != nil {
			return false, err
		}
		// All are noted before the first is shown: the reader may stop there.
		var fresh []broker.Stored
		var bodies []*types.Message
		for i := range msgs {
			m := &msgs[i]
			position := queueName(url) + "/" + aws.ToString(m.MessageId)
			a.b.held.put(position, aws.ToString(m.ReceiptHandle))
			seen = append(seen, position)
			if !known[position] {
				known[position] = true
				fresh = append(fresh, broker.Stored{Position: position, PublishedAt: sentAt(m)})
				bodies = append(bodies, m)
			}
		}
		if len(fresh) == 0 {
			return true, nil
		}
		for i, s := range fresh {
			if s.PublishedAt.Before(since.Truncate(time.Millisecond)) || s.PublishedAt.After(until) {
				continue
			}
			s.Message = a.stored(ctx, bodies[i])
			if !yield(s, nil) {
				return false, nil
			}
		}
	}
}

// stored decodes a message; what can't be decoded keeps its raw bytes and the
// reason under broker.MalformedReasonKey.
func (a admin) stored(ctx context.Context, m *types.Message) *message.Message {
	malformed := func(err error) *message.Message {
		msg := rawMessage(m)
		if msg.Metadata.Get(broker.MalformedReasonKey) == "" {
			msg.Metadata.Set(broker.MalformedReasonKey, err.Error())
		}
		return msg
	}
	var payload []byte
	if ref := m.MessageAttributes[AttrClaim].StringValue; ref != nil {
		err := errors.New("no claim-check store is set up here")
		if a.b.cfg.Payloads != nil {
			payload, err = a.b.cfg.Payloads.Get(ctx, *ref)
		}
		if err != nil {
			return malformed(fmt.Errorf("the payload is in the claim-check store as %s: %w", *ref, err))
		}
	}
	msg, err := decode(m, payload)
	if err != nil {
		return malformed(err)
	}
	// SQS itself moved it here, without a word.
	if m.Attributes[string(types.MessageSystemAttributeNameDeadLetterQueueSourceArn)] != "" && msg.Metadata[middleware.DeadLetterReason] == "" {
		msg.Metadata.Set(middleware.DeadLetterReason, middleware.ReasonDeliveriesExhausted)
	}
	return msg
}

func (a admin) receive(ctx context.Context, url string, wait int32) ([]types.Message, error) {
	out, err := a.b.sqs.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &url, MaxNumberOfMessages: batchEntries, WaitTimeSeconds: wait,
		VisibilityTimeout:     int32(browseLease / time.Second),
		MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameAll,
		},
	})
	if err != nil {
		return nil, err
	}
	return out.Messages, nil
}

// giveBack makes what Browse or Delete looked at visible again, in order.
func (a admin) giveBack(ctx context.Context, url string, positions []string) {
	var in []types.ChangeMessageVisibilityBatchRequestEntry
	flush := func() {
		if len(in) == 0 {
			return
		}
		rctx, cancel := context.WithTimeout(ctx, a.b.cfg.RequestTimeout)
		defer cancel()
		if _, err := a.b.sqs.ChangeMessageVisibilityBatch(rctx, &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &url, Entries: in}); err != nil {
			a.b.cfg.Logger.WarnContext(ctx, "giving back browsed messages failed; they are visible again in a while",
				"queue", url, "after", browseLease, "error", err)
		}
		in = nil
	}
	for _, position := range positions {
		receipt, ok := a.b.held.take(position)
		if !ok {
			continue // deleted meanwhile, or seen twice
		}
		if in = append(in, visibility(len(in), &receipt, 0)); len(in) == batchEntries {
			flush()
		}
	}
	flush()
}

// queueName is the last part of a queue's URL.
func queueName(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }

// Delete removes messages. What a running Browse hides goes at once; the rest is
// looked for by receiving the queue's messages, with Browse's limits.
func (a admin) Delete(ctx context.Context, topic string, positions ...string) (int, error) {
	removed := 0
	fail := func(err error) (int, error) {
		return removed, fmt.Errorf("sqs: delete %d messages of topic %q: %w", len(positions), topic, err)
	}
	if len(positions) == 0 {
		return 0, nil
	}
	urls, err := a.queues(ctx, topic)
	if err != nil {
		return fail(err)
	}
	byName := make(map[string]string, len(urls))
	for _, url := range urls {
		byName[queueName(url)] = url
	}
	missing := make(map[string]map[string]bool) // queue URL → positions
	hidden := make(map[string][]string)         // queue URL → receipts
	for _, position := range positions {
		name, _, ok := strings.Cut(position, "/")
		url := byName[name]
		if !ok || url == "" {
			continue // another topic's, or a queue that is gone
		}
		if receipt, ok := a.b.held.take(position); ok {
			hidden[url] = append(hidden[url], receipt)
			continue
		}
		if missing[url] == nil {
			missing[url] = make(map[string]bool)
		}
		missing[url][position] = true
	}
	for url, receipts := range hidden {
		n, err := a.remove(ctx, url, receipts)
		if removed += n; err != nil {
			return fail(err)
		}
	}
	for url, wanted := range missing {
		n, err := a.search(ctx, url, wanted)
		if removed += n; err != nil {
			return fail(err)
		}
	}
	return removed, nil
}

// search receives until it has found and removed what is wanted.
func (a admin) search(ctx context.Context, url string, wanted map[string]bool) (removed int, err error) {
	var seen []string
	defer func() { a.giveBack(context.WithoutCancel(ctx), url, seen) }()
	known := make(map[string]bool)
	for len(wanted) > 0 {
		msgs, err := a.receive(ctx, url, browseWait)
		if err != nil {
			return removed, err
		}
		fresh := false
		var found []string
		for i := range msgs {
			position := queueName(url) + "/" + aws.ToString(msgs[i].MessageId)
			fresh = fresh || !known[position]
			known[position] = true
			if wanted[position] {
				delete(wanted, position)
				found = append(found, aws.ToString(msgs[i].ReceiptHandle))
				continue
			}
			a.b.held.put(position, aws.ToString(msgs[i].ReceiptHandle))
			seen = append(seen, position)
		}
		n, err := a.remove(ctx, url, found)
		if removed += n; err != nil {
			return removed, err
		}
		if !fresh {
			return removed, nil
		}
	}
	return removed, nil
}

// remove deletes by receipt and returns how many the queue confirmed.
func (a admin) remove(ctx context.Context, url string, receipts []string) (int, error) {
	n := 0
	for start := 0; start < len(receipts); start += batchEntries {
		part := receipts[start:min(start+batchEntries, len(receipts))]
		in := make([]types.DeleteMessageBatchRequestEntry, len(part))
		for i := range part {
			in[i] = types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &part[i]}
		}
		out, err := a.b.sqs.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: in})
		if err != nil {
			return n, err
		}
		n += len(out.Successful)
		for _, f := range out.Failed {
			err = errors.Join(err, fmt.Errorf("%s: %s", aws.ToString(f.Code), aws.ToString(f.Message)))
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}
