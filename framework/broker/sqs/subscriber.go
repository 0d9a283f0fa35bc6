package sqs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"golang.org/x/sync/errgroup"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
)

const (
	// capMargin is how long before the 12 hours are over a message is given up.
	capMargin = 5 * time.Second
	// claimDelay is how long a message waits whose payload's store did not answer.
	claimDelay = 5 * time.Second
)

// source is one subscription to one group's queue.
type source struct {
	b     *Broker
	url   string
	lease time.Duration // how long SQS hides a message
	log   *slog.Logger
	poll  *poller

	mu      sync.Mutex
	renewed sync.Cond          // a renewal came back
	byID    map[string]*hold   // by the entry's id
	byMsg   map[string]*hold   // by SQS's message id: the latest receive of it
	arrived uint64             // standard queues: the order of arrival
	stop    context.CancelFunc // of the keeper
	keeper  sync.WaitGroup
}

// hold is one received message: what it takes to extend, delete or release it.
type hold struct {
	id   string
	sent time.Time
	raw  *received

	// Guarded by source.mu.
	receipt  string
	received time.Time
	until    time.Time // the end of the lease, as far as is known
	waiting  bool      // received, and not yet fetched
	renewing bool      // an extension is under way
	settling bool      // a delete or a release is under way or done
	acked    bool      // it is a delete
}

// received is a message with the payload that was fetched for it.
type received struct {
	msg     types.Message
	payload []byte
	err     error // why there is no payload
}

func (b *Broker) join(ctx context.Context, cfg lanes.Config) (lanes.Source, error) {
	if b.closed.Load() {
		return nil, broker.ErrClosed
	}
	sub := broker.Subscription{Topic: cfg.Topic, Group: cfg.Group}
	if err := b.EnsureTopology(ctx, sub); err != nil {
		return nil, err
	}
	url, err := b.joined(ctx, sub)
	if err != nil {
		return nil, err
	}
	s := &source{
		b: b, url: url, lease: hidden(cfg.Lease),
		log:   cfg.Logger.With("topic", cfg.Topic, "group", cfg.Group, "consumer", cfg.Consumer),
		byID:  make(map[string]*hold),
		byMsg: make(map[string]*hold),
	}
	s.renewed.L = &s.mu
	s.poll = newPoller(s)
	kctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.keeper.Go(func() { s.keep(kctx, cfg.Heartbeat) })
	b.sources.add(s, sub)
	return s, nil
}

// hidden is the visibility timeout for a lease: whole seconds, and one more for
// the round trip and the rounding of SQS's own clock.
func hidden(lease time.Duration) time.Duration {
	return min(time.Duration(wholeSeconds(lease)+1)*time.Second, MaxVisibility)
}

// joined is the queue of a subscription whose topology was seen to.
func (b *Broker) joined(ctx context.Context, sub broker.Subscription) (string, error) {
	if deadLetters(sub.Topic) {
		return b.ownQueue(ctx, sub.Topic)
	}
	url, err := b.queueURL(ctx, b.names.queue(sub.Topic, sub.Group),
		fmt.Sprintf("it is the queue of group %q on topic %q", sub.Group, sub.Topic))
	if err == nil {
		b.routes.joined(sub.Topic, url)
	}
	return url, err
}

// Fetch returns what the receives brought and starts new ones.
func (s *source) Fetch(ctx context.Context, limit int) ([]*lanes.Entry, error) {
	batch, err := s.poll.next(ctx, limit)
	if len(batch) == 0 {
		return nil, err
	}
	entries := make([]*lanes.Entry, 0, len(batch))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range batch {
		if s.byID[h.id] != h {
			continue // its lease ran out while it waited
		}
		h.waiting = false
		s.arrived++
		count := receiveCount(&h.raw.msg)
		entries = append(entries, &lanes.Entry{
			ID: h.id, Pos: s.position(h), Stored: count, Raw: h.raw,
			// SQS does not tell a message that was given back from one whose consumer died.
			Left: count > 1,
		})
	}
	return entries, nil
}

// Reclaim finds nothing: SQS itself hands out what others left behind.
func (s *source) Reclaim(context.Context, int, func(string) bool) ([]*lanes.Entry, error) {
	return nil, nil
}

// Decode decodes a received message.
func (s *source) Decode(e *lanes.Entry) (*message.Message, error) {
	r, _ := e.Raw.(*received)
	if r.err != nil {
		return nil, r.err
	}
	// A handler may write into the payload: the next delivery has its own.
	return decode(&r.msg, slices.Clone(r.payload))
}

// Malformed keeps the bytes of a message that Decode refused.
func (s *source) Malformed(e *lanes.Entry) *message.Message {
	r, _ := e.Raw.(*received)
	return rawMessage(&r.msg)
}

// Ack deletes messages. What the queue no longer has is settled too.
func (s *source) Ack(ctx context.Context, entries []*lanes.Entry) error {
	s.mu.Lock()
	for _, e := range entries {
		if h := s.byID[e.ID]; h != nil {
			h.acked = true
		}
	}
	s.mu.Unlock()
	return s.settle(ctx, entries, s.b.cfg.Parallel, func(ctx context.Context, batch []grip) (answer, error) {
		in := make([]types.DeleteMessageBatchRequestEntry, len(batch))
		for i := range batch {
			in[i] = types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &batch[i].receipt}
		}
		out, err := s.b.sqs.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &s.url, Entries: in})
		if err != nil {
			return answer{}, fmt.Errorf("delete %d messages from queue %s: %w", len(batch), s.url, err)
		}
		a := answer{what: "delete"}
		for _, ok := range out.Successful {
			a.done = append(a.done, aws.ToString(ok.Id))
		}
		a.failed = out.Failed
		return a, nil
	})
}

// Release makes messages visible again, once their delay is over.
func (s *source) Release(ctx context.Context, entries []*lanes.Entry) error {
	delays := make(map[string]time.Duration, len(entries))
	for _, e := range entries {
		delays[e.ID] = e.Delay
	}
	parallel := s.b.cfg.Parallel
	if s.b.cfg.FIFO {
		parallel = 1 // the first of a key is given back first
	}
	return s.settle(ctx, entries, parallel, func(ctx context.Context, batch []grip) (answer, error) {
		now := time.Now()
		in := make([]types.ChangeMessageVisibilityBatchRequestEntry, len(batch))
		for i, g := range batch {
			timeout := min(wholeSeconds(delays[g.hold.id]), capSeconds(g.received, now))
			in[i] = visibility(i, &batch[i].receipt, max(timeout, 0))
		}
		out, err := s.b.sqs.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &s.url, Entries: in})
		if err != nil {
			return answer{}, fmt.Errorf("give %d messages back to queue %s: %w", len(batch), s.url, err)
		}
		a := answer{what: "release"}
		for _, ok := range out.Successful {
			a.done = append(a.done, aws.ToString(ok.Id))
		}
		a.failed = out.Failed
		return a, nil
	})
}

func visibility(i int, receipt *string, timeout int) types.ChangeMessageVisibilityBatchRequestEntry {
	return types.ChangeMessageVisibilityBatchRequestEntry{
		Id: aws.String(strconv.Itoa(i)), ReceiptHandle: receipt, VisibilityTimeout: int32(timeout),
	}
}

// answer is what a batch request said of its entries.
type answer struct {
	what   string
	done   []string
	failed []types.BatchResultErrorEntry
}

// settle runs one kind of batch request over entries, ten at a time. What was
// settled is forgotten; an error says that the rest must be tried again. An
// extension that is under way is waited for, so that none comes after.
func (s *source) settle(ctx context.Context, entries []*lanes.Entry, parallel int, send func(context.Context, []grip) (answer, error)) error {
	holds := make([]*hold, 0, len(entries))
	s.mu.Lock()
	for _, e := range entries {
		if h := s.byID[e.ID]; h != nil {
			h.settling = true
			holds = append(holds, h)
		}
	}
	for _, h := range holds {
		for h.renewing {
			s.renewed.Wait()
		}
	}
	s.mu.Unlock()

	var g errgroup.Group
	g.SetLimit(parallel)
	for batch := range slices.Chunk(holds, batchEntries) {
		g.Go(func() error { return s.settleBatch(ctx, batch, send) })
	}
	return g.Wait()
}

// grip is a hold as one request sees it: a new receive of the message may give
// the hold another receipt meanwhile.
type grip struct {
	hold     *hold
	receipt  string
	received time.Time
}

func (s *source) grips(holds []*hold) []grip {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]grip, len(holds))
	for i, h := range holds {
		out[i] = grip{hold: h, receipt: h.receipt, received: h.received}
	}
	return out
}

func (s *source) settleBatch(ctx context.Context, holds []*hold, send func(context.Context, []grip) (answer, error)) error {
	batch := s.grips(holds)
	rctx, cancel := context.WithTimeout(ctx, s.b.cfg.RequestTimeout)
	defer cancel()
	a, err := send(rctx, batch)
	if err != nil {
		if noQueue(err) {
			s.log.WarnContext(ctx, "the queue is gone, and its messages with it", "queue", s.url, "messages", len(batch))
			s.forget(batch)
			return nil
		}
		return err
	}
	done := make([]bool, len(batch))
	each(a.done, len(batch), func(id string) *string { return &id }, func(i int, _ string) { done[i] = true })
	var retry error
	each(a.failed, len(batch), func(f types.BatchResultErrorEntry) *string { return f.Id }, func(i int, f types.BatchResultErrorEntry) {
		if done[i] = gone(f); done[i] {
			// It was deleted already, or its lease is over and it comes again.
			s.log.WarnContext(ctx, "SQS no longer knows this receive of the message; if it was not settled before, it comes again",
				"request", a.what, "message", aws.ToString(batch[i].hold.raw.msg.MessageId), "code", aws.ToString(f.Code))
			return
		}
		retry = fmt.Errorf("%s in queue %s: %s: %s", a.what, s.url, aws.ToString(f.Code), aws.ToString(f.Message))
	})
	settled := make([]grip, 0, len(batch))
	for i, g := range batch {
		if done[i] {
			settled = append(settled, g)
		}
	}
	if again := s.forget(settled); len(again) > 0 {
		// They were received anew meanwhile: the new receipts count, and not for long.
		retry = errors.Join(retry, s.settleBatch(ctx, again, send))
	}
	if len(settled) < len(batch) && retry == nil {
		retry = fmt.Errorf("%s in queue %s: the answer says nothing about %d of %d messages", a.what, s.url, len(batch)-len(settled), len(batch))
	}
	return retry
}

// gone tells that the receipt handle is good for nothing any more.
func gone(f types.BatchResultErrorEntry) bool {
	switch aws.ToString(f.Code) {
	case "ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight",
		"AWS.SimpleQueueService.MessageNotInflight", "InvalidReceiptHandle":
		return true
	}
	return false
}

// forget drops holds that are settled, and returns those that were received anew
// after their receipt was used: they are to be settled by the new one.
func (s *source) forget(settled []grip) (again []*hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range settled {
		if g.receipt != g.hold.receipt {
			again = append(again, g.hold)
			continue
		}
		s.drop(g.hold)
	}
	return again
}

// drop forgets a hold. The lock is held.
func (s *source) drop(h *hold) {
	delete(s.byID, h.id)
	if id := aws.ToString(h.raw.msg.MessageId); s.byMsg[id] == h {
		delete(s.byMsg, id)
	}
}

// Renew extends leases. What can't be extended any more is lost: the twelve
// hours are over, SQS says so, or the lease ran out before it could be extended.
// Counts are SQS's own.
func (s *source) Renew(ctx context.Context, refs []lanes.Ref) (lost []string, err error) {
	holds := make([]*hold, 0, len(refs))
	s.mu.Lock()
	for _, r := range refs {
		if h := s.byID[r.ID]; h == nil {
			lost = append(lost, r.ID)
		} else {
			holds = append(holds, h)
		}
	}
	s.mu.Unlock()
	over, err := s.extend(ctx, holds)
	for _, h := range over {
		lost = append(lost, h.id)
	}
	return lost, err
}

// extend gives holds another lease. It returns and forgets those that are lost.
func (s *source) extend(ctx context.Context, holds []*hold) (lost []*hold, err error) {
	now := time.Now()
	var todo []*hold
	var timeouts []int
	s.mu.Lock()
	for _, h := range holds {
		if h.settling || h.renewing || s.byID[h.id] != h {
			continue
		}
		timeout := min(wholeSeconds(s.lease), capSeconds(h.received, now))
		if timeout < 1 {
			lost = append(lost, h)
			s.drop(h)
			continue
		}
		h.renewing = true
		todo, timeouts = append(todo, h), append(timeouts, timeout)
	}
	s.mu.Unlock()
	if len(lost) > 0 {
		s.log.WarnContext(ctx, "SQS hides a message for 12 hours at most: given up, and it comes again", "messages", len(lost))
	}

	var g errgroup.Group
	g.SetLimit(s.b.cfg.Parallel)
	for start := 0; start < len(todo); start += batchEntries {
		end := min(start+batchEntries, len(todo))
		g.Go(func() error {
			over, err := s.extendBatch(ctx, todo[start:end], timeouts[start:end])
			s.mu.Lock()
			lost = append(lost, over...)
			s.mu.Unlock()
			return err
		})
	}
	err = g.Wait()
	return lost, err
}

func (s *source) extendBatch(ctx context.Context, batch []*hold, timeouts []int) (lost []*hold, err error) {
	grips := s.grips(batch)
	in := make([]types.ChangeMessageVisibilityBatchRequestEntry, len(batch))
	for i := range batch {
		in[i] = visibility(i, &grips[i].receipt, timeouts[i])
	}
	start := time.Now()
	rctx, cancel := context.WithTimeout(ctx, s.b.cfg.RequestTimeout)
	defer cancel()
	out, err := s.b.sqs.ChangeMessageVisibilityBatch(rctx, &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &s.url, Entries: in})
	now := time.Now()

	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.renewed.Broadcast()
	extended, over := make([]bool, len(batch)), make([]bool, len(batch))
	if err != nil {
		err = fmt.Errorf("extend %d leases of queue %s: %w", len(batch), s.url, err)
	} else {
		each(out.Successful, len(batch), func(e types.ChangeMessageVisibilityBatchResultEntry) *string { return e.Id },
			func(i int, _ types.ChangeMessageVisibilityBatchResultEntry) { extended[i] = true })
		each(out.Failed, len(batch), func(f types.BatchResultErrorEntry) *string { return f.Id },
			func(i int, f types.BatchResultErrorEntry) {
				extended[i], over[i] = false, gone(f)
				if !over[i] {
					err = fmt.Errorf("extend a lease of queue %s: %s: %s", s.url, aws.ToString(f.Code), aws.ToString(f.Message))
				}
			})
	}
	for i, h := range batch {
		h.renewing = false
		switch {
		case extended[i]:
			h.until = start.Add(time.Duration(timeouts[i]) * time.Second)
			continue
		case grips[i].receipt != h.receipt:
			continue // received anew meanwhile: the lease is the new one
		case over[i], now.After(h.until):
			if !h.settling {
				s.drop(h)
				lost = append(lost, h)
			}
			continue
		}
		if err == nil {
			err = fmt.Errorf("extend a lease of queue %s: the answer says nothing about it", s.url)
		}
	}
	return lost, err
}

// each calls fn with the index that each answer's id names.
func each[T any](answers []T, n int, id func(T) *string, fn func(int, T)) {
	for _, a := range answers {
		if i, err := strconv.Atoi(aws.ToString(id(a))); err == nil && i >= 0 && i < n {
			fn(i, a)
		}
	}
}

// capSeconds is for how long a message may still be hidden, at most.
func capSeconds(received, now time.Time) int {
	return int((MaxVisibility - capMargin - now.Sub(received)) / time.Second)
}

// Load brings back bodies, which are kept here: SQS would count a delivery.
func (s *source) Load(_ context.Context, refs []lanes.Ref) (raw map[string]any, err error) {
	raw = make(map[string]any, len(refs))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range refs {
		if h := s.byID[r.ID]; h != nil {
			raw[r.ID] = h.raw
		}
	}
	return raw, nil
}

// Drain gives back what was received and not fetched. Receives that are under
// way go on, so that what they bring is given back at once too, rather than after
// its lease.
func (s *source) Drain() {
	if rest := s.poll.close(); len(rest) > 0 {
		s.b.polls.Go(func() { s.release(s.b.pollCtx, rest) })
	}
}

// Close ends the subscription.
func (s *source) Close(context.Context) error {
	s.Drain() // Fetch may have been at it
	s.b.sources.remove(s)
	s.stop()
	s.keeper.Wait()
	return nil
}

// release gives back what was received and not fetched.
func (s *source) release(ctx context.Context, holds []*hold) {
	if len(holds) == 0 {
		return
	}
	entries := make([]*lanes.Entry, len(holds))
	for i, h := range holds {
		entries[i] = &lanes.Entry{ID: h.id}
		if h.raw.err != nil {
			entries[i].Delay = claimDelay
		}
	}
	if err := s.Release(ctx, entries); err != nil {
		s.log.WarnContext(ctx, "giving back what came after the end failed; the lease brings it back", "messages", len(holds), "error", err)
	}
}

// keep extends the leases of what was received and is not fetched yet.
func (s *source) keep(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		soon := time.Now().Add(s.lease - every/2)
		var waiting []*hold
		s.mu.Lock()
		for _, h := range s.byID {
			if h.waiting && h.until.Before(soon) {
				waiting = append(waiting, h)
			}
		}
		s.mu.Unlock()
		if _, err := s.extend(ctx, waiting); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "extending the leases of messages that wait failed", "messages", len(waiting), "error", err)
		}
	}
}

// hold takes received messages in. A message that is still held here comes again
// when its lease ran out in between: it keeps its place with the new receipt, or
// is deleted by it, and does not run twice.
func (s *source) hold(msgs []types.Message, at time.Time) []*hold {
	fresh := make([]*hold, 0, len(msgs))
	s.mu.Lock()
	defer s.mu.Unlock()
	until := at.Add(s.lease)
	for i := range msgs {
		m := msgs[i]
		id, receipt := aws.ToString(m.MessageId), aws.ToString(m.ReceiptHandle)
		if h := s.byMsg[id]; h != nil && (!h.settling || h.acked) {
			h.receipt, h.received, h.until = receipt, at, until
			continue
		}
		s.arrived++
		h := &hold{
			id: id + "#" + strconv.FormatUint(s.arrived, 10), received: at, sent: sentAt(&m), raw: &received{msg: m},
			receipt: receipt, until: until, waiting: true,
		}
		s.byID[h.id], s.byMsg[id] = h, h
		fresh = append(fresh, h)
	}
	return fresh
}

// claim fetches the payloads that are not in the messages. A message whose
// payload can't be had now is given back for a while; one whose payload is gone
// is malformed.
func (s *source) claim(ctx context.Context, holds []*hold) []*hold {
	var g errgroup.Group
	g.SetLimit(s.b.cfg.Parallel)
	for _, h := range holds {
		ref := h.raw.msg.MessageAttributes[AttrClaim].StringValue
		if ref == nil {
			continue
		}
		g.Go(func() error {
			if s.b.cfg.Payloads == nil {
				h.raw.err = fmt.Errorf("the payload is in a claim-check store (%s), and none is set up here: set Payloads", *ref)
				return nil
			}
			rctx, cancel := context.WithTimeout(ctx, s.b.cfg.RequestTimeout)
			defer cancel()
			h.raw.payload, h.raw.err = s.b.cfg.Payloads.Get(rctx, *ref)
			return nil
		})
	}
	_ = g.Wait()
	var back []*hold
	ready := slices.DeleteFunc(holds, func(h *hold) bool {
		if h.raw.err == nil || s.b.cfg.Payloads == nil || errors.Is(h.raw.err, fs.ErrNotExist) {
			return false
		}
		back = append(back, h)
		return true
	})
	if len(back) > 0 {
		s.log.WarnContext(ctx, "payloads can't be read from the claim-check store; trying again", "messages", len(back), "error", back[0].raw.err)
		s.release(ctx, back)
	}
	return ready
}

// position orders entries: FIFO queues number them, standard ones don't.
func (s *source) position(h *hold) lanes.Pos {
	if n, ok := new(big.Int).SetString(h.raw.msg.Attributes[string(types.MessageSystemAttributeNameSequenceNumber)], 10); ok {
		return lanes.Pos{Hi: new(big.Int).Rsh(n, 64).Uint64(), Lo: n.Uint64()}
	}
	return lanes.Pos{Lo: s.arrived}
}

// receiveCount is how often SQS has handed the message out.
func receiveCount(m *types.Message) int {
	n, err := strconv.Atoi(m.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)])
	if err != nil {
		return 1
	}
	return n
}

// sentAt is when SQS took the message.
func sentAt(m *types.Message) time.Time {
	ms, err := strconv.ParseInt(m.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)], 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
