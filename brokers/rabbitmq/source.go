package rabbitmq

import (
	"context"
	"errors"
	"log/slog"
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
