package sqs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// pollSlack is what a receive may take beyond its waiting time.
const pollSlack = 10 * time.Second

// poller keeps receives under way for one subscription: one on a quiet queue,
// more while they come back full, never for more messages than there is room
// for. It does not cancel a receive, since SQS may have handed messages to it
// that then nobody sees before their lease is over.
type poller struct {
	s *source

	mu       sync.Mutex
	on       chan struct{} // something came
	want     int           // how many receives should be under way
	running  int
	reserved int // messages asked for and not yet fetched
	ready    []*hold
	err      error
	closed   bool
}

func newPoller(s *source) *poller { return &poller{s: s, on: make(chan struct{}, 1), want: 1} }

// next starts the receives that limit leaves room for and returns what came.
func (p *poller) next(ctx context.Context, limit int) ([]*hold, error) {
	for {
		p.mu.Lock()
		if len(p.ready) > 0 || p.err != nil {
			batch, err := p.ready, p.err
			p.ready, p.err = nil, nil
			p.reserved -= len(batch)
			p.start(limit - len(batch))
			p.mu.Unlock()
			if len(batch) > 0 {
				err = nil
			}
			return batch, err
		}
		p.start(limit)
		p.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, nil
		case <-p.on:
		}
	}
}

// start begins receives as far as there is room. The lock is held.
func (p *poller) start(room int) {
	if p.closed || p.s.b.closed.Load() {
		return
	}
	for p.running < p.want && room-p.reserved > 0 {
		n := min(room-p.reserved, batchEntries)
		p.running++
		p.reserved += n
		p.s.b.polls.Go(func() { p.receive(p.s.b.pollCtx, n) })
	}
}

// receive runs one receive.
func (p *poller) receive(ctx context.Context, n int) {
	s := p.s
	wait := max(s.b.cfg.WaitTime, 0)
	rctx, cancel := context.WithTimeout(ctx, wait+pollSlack)
	defer cancel()
	at := time.Now()
	out, err := s.b.sqs.ReceiveMessage(rctx, &sqs.ReceiveMessageInput{
		QueueUrl:              &s.url,
		MaxNumberOfMessages:   int32(n),
		WaitTimeSeconds:       int32(wholeSeconds(wait)),
		VisibilityTimeout:     int32(wholeSeconds(s.lease)),
		MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameApproximateReceiveCount,
			types.MessageSystemAttributeNameSentTimestamp,
			types.MessageSystemAttributeNameSequenceNumber,
		},
	})
	var holds []*hold
	if err == nil && len(out.Messages) > 0 {
		// The lease runs from the answer at the latest, and from the question if
		// the message was there: a wait does not shorten it.
		if waited := time.Since(at); waited > s.lease/4 {
			at = time.Now().Add(-s.lease / 4)
		}
		holds = s.claim(ctx, s.hold(out.Messages, at))
	}
	p.mu.Lock()
	p.running--
	p.reserved -= n - len(holds)
	switch {
	case err != nil:
		p.want = 1
		p.err = fmt.Errorf("receive from queue %s: %w", s.url, err)
		if noQueue(err) {
			p.err = fmt.Errorf("queue %s is gone: create it again, or restart where Topology is %q: %w", s.url, TopologyEnsure, err)
		}
	case n == batchEntries && len(out.Messages) == n:
		p.want = min(p.want*2, s.b.cfg.MaxPolls)
	case len(out.Messages) == 0:
		p.want = 1
	}
	closed := p.closed
	if closed {
		p.reserved -= len(holds)
	} else {
		p.ready = append(p.ready, holds...)
	}
	p.mu.Unlock()
	if closed {
		s.release(context.WithoutCancel(ctx), holds)
		return
	}
	select {
	case p.on <- struct{}{}:
	default:
	}
}

// close ends the polling and returns what came and was not fetched. What still
// comes is released.
func (p *poller) close() []*hold {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	rest := p.ready
	p.ready = nil
	return rest
}

// oldest is the time at which the oldest message that is held was sent; zero
// when none is.
func (s *source) oldest() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest time.Time
	for _, h := range s.byID {
		if !h.sent.IsZero() && (oldest.IsZero() || h.sent.Before(oldest)) {
			oldest = h.sent
		}
	}
	return oldest
}
