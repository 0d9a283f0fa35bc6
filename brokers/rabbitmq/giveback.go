package rabbitmq

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/headrace-go/headrace/framework/broker/lanes"
)

// silenceWait bounds how long a drain waits for the consumer's end.
const silenceWait = 2 * time.Second

// Release gives messages back: at once when the drain has begun, else when their
// delay is over. RabbitMQ counts that.
func (s *source) Release(ctx context.Context, entries []*lanes.Entry) error {
	if s.isDraining() {
		if s.keeps() {
			return nil // Close gives all back in order
		}
		s.awaitSilence(ctx)
	}
	now := time.Now()
	s.io.Lock()
	defer s.io.Unlock()
	s.mu.Lock()
	var back []*hold
	for _, e := range entries {
		h := s.holds[e.ID]
		switch {
		case h == nil:
		case e.Delay <= 0 || s.draining:
			back = append(back, h)
		default:
			h.due = now.Add(e.Delay)
			s.delayed.push(h)
			notify(s.more) // the session's timer
		}
	}
	s.mu.Unlock()
	s.giveBack(back)
	return nil
}

// giveBack puts messages back to the head of the queue, in order. The io lock is
// held.
func (s *source) giveBack(back []*hold) {
	slices.SortFunc(back, func(a, b *hold) int { return cmp.Compare(a.seq, b.seq) })
	s.mu.Lock()
	ch := s.ch
	var tags []uint64
	for _, h := range back {
		if h.settled {
			continue
		}
		if h.consumer != nil {
			tags = append(tags, h.tag)
		}
		s.settle(h)
	}
	s.mu.Unlock()
	if ch == nil {
		return // they went back with the channel
	}
	for _, tag := range tags {
		if ch.Nack(tag, false, true) != nil {
			return
		}
	}
}

// awaitSilence waits until the consumer has ended, so that what is given back does
// not come again at once.
func (s *source) awaitSilence(ctx context.Context) {
	s.mu.Lock()
	away := s.ch == nil
	s.mu.Unlock()
	if away {
		return
	}
	timer := time.NewTimer(silenceWait)
	defer timer.Stop()
	select {
	case <-s.silent:
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Drain stops the deliveries. What no Fetch returned goes back once they have
// ended.
func (s *source) Drain() {
	s.mu.Lock()
	s.draining = true
	unfetched := s.buffer
	s.buffer = nil
	for len(s.delayed) > 0 {
		unfetched = append(unfetched, s.delayed.pop())
	}
	s.unfetched = unfetched
	s.mu.Unlock()
	close(s.drainOn)
}

// quieten notes that nothing is delivered any more.
func (s *source) quieten() {
	s.silence.Do(func() { close(s.silent) })
	if s.keeps() {
		return
	}
	s.io.Lock()
	defer s.io.Unlock()
	s.mu.Lock()
	back := s.unfetched
	s.unfetched = nil
	s.mu.Unlock()
	s.giveBack(back)
}

// Close gives back what is left, in order, and closes the channel.
func (s *source) Close(ctx context.Context) error {
	s.b.held.removeSource(s)
	return do(ctx, func() error {
		s.giveBackAll(ctx)
		s.stop()
		s.running.Wait()
		return nil
	})
}

func (s *source) giveBackAll(ctx context.Context) {
	if !s.single() {
		s.awaitSilence(ctx)
	}
	s.io.Lock()
	defer s.io.Unlock()
	s.mu.Lock()
	var left []*hold
	for _, h := range s.holds {
		left = append(left, h)
	}
	s.mu.Unlock()
	s.sendAcks(time.Now(), true)
	if s.single() {
		return // what this one gives back it would get again: the channel's end does it
	}
	s.giveBack(left)
}
