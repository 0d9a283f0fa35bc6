package rabbitmq

import (
	"context"
	"slices"
	"time"

	"github.com/headrace-go/headrace/framework/broker/lanes"
)

// ackWait is how long an ack waits at most for those before it.
const ackWait = 5 * time.Millisecond

// Ack settles messages. One whose channel is gone is remembered, and settled when
// it comes again.
func (s *source) Ack(_ context.Context, entries []*lanes.Entry) error {
	s.io.Lock()
	defer s.io.Unlock()
	s.mu.Lock()
	now := time.Now()
	for _, e := range entries {
		h := s.holds[e.ID]
		if h == nil {
			continue
		}
		if h.consumer != nil {
			s.memory.sent(identity(&h.d))
			s.unsent = append(s.unsent, h.tag)
		} else {
			s.memory.owe(identity(&h.d), now)
		}
		s.settle(h)
	}
	s.mu.Unlock()
	s.sendAcks(now, false)
	return nil
}

// sendAcks sends what is acked. One ack settles all up to its tag, so those behind
// a message that still runs wait a moment for it, unless all must go. The io lock
// is held.
func (s *source) sendAcks(now time.Time, all bool) {
	s.mu.Lock()
	ch := s.ch
	end, upTo := s.settledPrefix(), uint64(0)
	for _, tag := range s.unsent {
		if tag <= end {
			upTo = max(upTo, tag) // it must be one that RabbitMQ still waits for
		}
	}
	rest := slices.DeleteFunc(s.unsent, func(tag uint64) bool { return tag <= upTo })
	all = all || len(rest) > s.prefetch/2 // the credit must not run out
	switch {
	case all || len(rest) == 0:
		s.unsent, s.ackBy = nil, time.Time{}
	default:
		if s.unsent = rest; s.ackBy.IsZero() {
			s.ackBy = now.Add(ackWait)
			notify(s.more) // the session's timer
		}
		rest = nil
	}
	s.mu.Unlock()
	if ch == nil {
		return
	}
	// An error means that the channel is gone; the acks are in memory.
	if upTo > 0 && ch.Ack(upTo, true) != nil {
		return
	}
	for _, tag := range rest {
		if ch.Ack(tag, false) != nil {
			return
		}
	}
}

// settle forgets a hold. The lock is held.
func (s *source) settle(h *hold) {
	h.settled = true
	delete(s.holds, h.id)
	if h.consumer != nil {
		h.consumer.out--
		return
	}
	if id := identity(&h.d); s.doubt[id] == h {
		delete(s.doubt, id)
	}
}

// settledPrefix is a tag up to which everything of the channel is settled; 0: the
// first is not. The lock is held.
func (s *source) settledPrefix() (upTo uint64) {
	for len(s.tags) > 0 && s.tags[0].settled {
		upTo = s.tags[0].tag
		s.tags = s.tags[1:]
	}
	// Behind one that is held for long the settled ones would gather.
	if len(s.tags) > 2*len(s.holds)+1000 {
		s.tags = slices.DeleteFunc(s.tags, func(h *hold) bool { return h.settled })
	}
	return upTo
}
