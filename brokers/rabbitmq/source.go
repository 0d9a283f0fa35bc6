package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
)

const (
	// maxPrefetch is the most that basic.qos takes.
	maxPrefetch = 1<<16 - 1
	// fetchWait bounds one Fetch.
	fetchWait = 500 * time.Millisecond
	// doubtGrace is how long after the connection is back a message may take to
	// come again before it counts as another consumer's. What was returned comes
	// before all else.
	doubtGrace = 5 * time.Second
)

// ackWait is how long an ack waits at most for those before it.
const ackWait = 5 * time.Millisecond

// silenceWait bounds how long a drain waits for the consumer's end.
const silenceWait = 2 * time.Second

var errAway = errors.New("RabbitMQ is away")

// source is one subscription to one queue. The messages that it holds are those
// of its present channel, and, for a while, those of the one before, which are in
// doubt: they may be another consumer's by now.
type source struct {
	b        *Broker
	sub      broker.Subscription
	queue    string
	order    bool
	prefetch int
	maxHeld  int
	lease    time.Duration
	log      *slog.Logger

	stop    context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{} // Fetch has something to look at
	more    chan struct{} // the session should take on more than the prefetch
	drainOn chan struct{} // closed when the drain begins
	silent  chan struct{} // closed when nothing is delivered any more
	silence sync.Once

	// io is held from choosing delivery tags to having sent them, so that an ack
	// of many never meets one that is on its way back.
	io sync.Mutex

	mu       sync.Mutex
	ch       *amqp.Channel // nil while RabbitMQ is away
	away     error         // why
	live     *consumer
	want     bool // the engine has room, and all that live may have out is held
	seq      uint64
	holds    map[string]*hold // by the entry's id: all that is not settled
	buffer   []*hold          // of them, those that no Fetch returned yet
	tags     []*hold          // those of the present channel by tag, settled ones among them
	delayed  delays
	draining bool

	unfetched []*hold // when the drain began

	unsent []uint64  // acked, and RabbitMQ is not told yet
	ackBy  time.Time // when it is at the latest

	doubt      map[string]*hold // by identity: held on a channel that is gone
	doubtUntil time.Time
	memory     settledMemory
	lost       []string
}

// hold is one message that the source holds.
type hold struct {
	id  string
	seq uint64
	d   amqp.Delivery // its body and headers are never written to

	// Guarded by source.mu.
	tag      uint64
	consumer *consumer // of the present channel; nil in doubt
	since    time.Time // when it was delivered
	settled  bool
	due      time.Time // source.delayed has it
	index    int
}

// consumer is one consumer tag and what it has out.
type consumer struct {
	tag string
	out int
}

func (b *Broker) join(ctx context.Context, cfg lanes.Config) (lanes.Source, error) {
	if b.closed.Load() {
		return nil, broker.ErrClosed
	}
	sub := broker.Subscription{Topic: cfg.Topic, Group: cfg.Group}
	if err := b.EnsureTopology(ctx, sub); err != nil {
		return nil, err
	}
	s := &source{
		b: b, sub: sub, queue: b.names.queue(sub.Topic, sub.Group),
		order: cfg.Order, prefetch: cfg.MaxInFlight, maxHeld: cfg.MaxHeld, lease: cfg.Lease,
		log:     cfg.Logger.With("topic", cfg.Topic, "group", cfg.Group, "consumer", cfg.Consumer),
		wake:    make(chan struct{}, 1),
		more:    make(chan struct{}, 1),
		drainOn: make(chan struct{}),
		silent:  make(chan struct{}),
		holds:   make(map[string]*hold),
		doubt:   make(map[string]*hold),
		away:    errAway,
	}
	if s.single() {
		// A second consumer would only stand by: see more.
		s.prefetch = min(cfg.MaxInFlight+cfg.MaxHeld, maxPrefetch)
	}
	rctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	ready := make(chan error, 1)
	s.running.Go(func() { s.run(rctx, ready) })
	select {
	case err := <-ready:
		if err != nil {
			stop()
			s.running.Wait()
			return nil, err
		}
	case <-ctx.Done():
		stop()
		s.running.Wait()
		return nil, ctx.Err()
	}
	b.held.addSource(s)
	return s, nil
}

// single tells whether one member of the group consumes at a time.
func (s *source) single() bool { return s.b.cfg.SingleActive && !ownOnly(s.sub.Topic) }

// keeps tells whether a drain keeps everything to its end: with order nobody else
// may get a later message of a key before the earlier ones are settled.
func (s *source) keeps() bool { return s.order || s.single() }

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Fetch returns what was delivered.
func (s *source) Fetch(ctx context.Context, limit int) ([]*lanes.Entry, error) {
	timer := time.NewTimer(fetchWait)
	defer timer.Stop()
	for {
		entries, away := s.take(limit)
		if len(entries) > 0 {
			return entries, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.wake:
		case <-timer.C:
			return nil, away
		}
	}
}

func (s *source) take(limit int) ([]*lanes.Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(limit, len(s.buffer))
	if n == 0 {
		if s.ch == nil {
			return nil, s.away
		}
		if s.live != nil && s.live.out >= s.prefetch && len(s.delayed) < s.maxHeld {
			s.want = true
			notify(s.more)
		}
		return nil, nil
	}
	entries := make([]*lanes.Entry, n)
	for i, h := range s.buffer[:n] {
		entries[i] = &lanes.Entry{ID: h.id, Pos: lanes.Pos{Lo: h.seq}, Stored: count(&h.d), Raw: h}
	}
	s.buffer = s.buffer[n:]
	return entries, nil
}

// Reclaim finds nothing: RabbitMQ itself hands out what others left behind.
func (s *source) Reclaim(context.Context, int, func(string) bool) ([]*lanes.Entry, error) {
	return nil, nil
}

// Decode decodes a delivery.
func (s *source) Decode(e *lanes.Entry) (*message.Message, error) {
	h, _ := e.Raw.(*hold)
	return decode(&h.d)
}

// Malformed keeps the bytes of a message that Decode refused.
func (s *source) Malformed(e *lanes.Entry) *message.Message {
	h, _ := e.Raw.(*hold)
	return rawMessage(&h.d, position(s.queue, fingerprint(&h.d), 0))
}

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

// Renew tells what is lost: messages of a channel that is gone which did not come
// again, and puts back in time what RabbitMQ would soon take away.
func (s *source) Renew(_ context.Context, refs []lanes.Ref) (lost []string, err error) {
	s.refresh(time.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.doubt) > 0 && time.Now().After(s.doubtUntil) {
		for _, h := range s.doubt {
			s.lost = append(s.lost, h.id)
			s.settle(h)
		}
	}
	lost, s.lost = s.lost, nil
	for _, r := range refs {
		if s.holds[r.ID] == nil {
			lost = append(lost, r.ID)
		}
	}
	return lost, nil
}

// Load returns what is held in the process anyway.
func (s *source) Load(_ context.Context, refs []lanes.Ref) (map[string]any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw := make(map[string]any, len(refs))
	for _, r := range refs {
		if h := s.holds[r.ID]; h != nil {
			raw[r.ID] = h
		}
	}
	return raw, nil
}

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

// pending is how many messages are held, and since when the oldest is published.
func (s *source) pending() (n int, oldest time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.holds {
		if h.consumer == nil {
			continue // in doubt: the queue has it
		}
		n++
		if at := publishedAt(&h.d); !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	return n, oldest
}

func entryID(seq uint64) string { return strconv.FormatUint(seq, 10) }
