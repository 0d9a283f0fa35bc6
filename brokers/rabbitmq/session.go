package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	retryFirst = 50 * time.Millisecond
	retryMost  = 3 * time.Second
)

// run keeps a session open. It tells ready how the first went.
func (s *source) run(ctx context.Context, ready chan<- error) {
	for failures := 0; ctx.Err() == nil; failures++ {
		began := time.Now()
		opened := false
		err := s.session(ctx, failures > 0, func() {
			opened = true
			select {
			case ready <- nil:
			default:
			}
		})
		s.down(err)
		if ctx.Err() != nil {
			return
		}
		if !opened {
			select {
			case ready <- err: // the first: the subscription fails
			default:
			}
		}
		if opened && time.Since(began) > retryMost {
			failures = 0
		}
		if opened {
			s.log.WarnContext(ctx, "consuming interrupted; it goes on once RabbitMQ is back", "error", err)
		}
		d := min(retryFirst<<min(failures, 8), retryMost)
		t := time.NewTimer(d/2 + rand.N(d/2))
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

// session opens a channel and receives until it is gone.
func (s *source) session(ctx context.Context, again bool, opened func()) error {
	if again { // someone may have deleted the queue
		if err := s.b.EnsureTopology(ctx, s.sub); err != nil {
			return err
		}
	}
	ch, err := s.b.consume.channel(ctx)
	if err != nil {
		return err
	}
	var requests rpcs
	defer func() {
		// Acks that were sent are read before the channel is closed.
		_ = requests.do(context.WithoutCancel(ctx), ch.Close)
	}()
	gone := ch.NotifyClose(make(chan *amqp.Error, 1))
	var live *consumer
	var deliveries <-chan amqp.Delivery
	start := func(n int) error {
		return requests.do(ctx, func() (err error) {
			live, deliveries, err = s.start(ch, n)
			return err
		})
	}
	if err := requests.do(ctx, func() error { return ch.Qos(s.prefetch, 0, false) }); err != nil {
		return fmt.Errorf("set the prefetch: %w", err)
	}
	s.up(ch)
	if s.isDraining() {
		s.quieten()
	} else if err := start(0); err != nil {
		return err
	}
	opened()

	draining := s.drainOn
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for n := 1; ; {
		timer.Reset(s.sendDue(time.Now()))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-gone:
			return lostChannel(e)
		case d, ok := <-deliveries:
			if !ok {
				select {
				case e := <-gone:
					return lostChannel(e)
				default:
					return errors.New("RabbitMQ ended the consumer: the queue was deleted, or its leader moved")
				}
			}
			s.arrive(ch, live, d)
		case <-timer.C:
		case <-s.more:
			if !s.exhausted(live) || s.single() {
				continue
			}
			// All that the consumer may have out is held here and something else
			// could run: the next consumer takes on as much again. One at a time,
			// since RabbitMQ mixes the order of two.
			if err := s.end(ctx, &requests, ch, live, deliveries); err != nil {
				return err
			}
			if err := start(n); err != nil {
				return err
			}
			n++
		case <-draining:
			draining = nil
			if s.single() {
				continue // the next member must not begin before this one has ended
			}
			if live != nil {
				if err := s.end(ctx, &requests, ch, live, deliveries); err != nil {
					return err
				}
			}
			live, deliveries = nil, nil
			s.quieten()
		}
	}
}

func lostChannel(e *amqp.Error) error {
	if e == nil {
		return errors.New("the channel was closed")
	}
	if e.Code == amqp.PreconditionFailed {
		return fmt.Errorf("RabbitMQ closed the channel; where a message was held longer than its consumer_timeout, tell Config.ConsumerTimeout: %w", e)
	}
	return e
}

// start begins to consume. What several consumers of a channel have out goes back
// in the order of their tags.
func (s *source) start(ch *amqp.Channel, n int) (*consumer, <-chan amqp.Delivery, error) {
	c := &consumer{tag: fmt.Sprintf("headrace-%08d", n)}
	deliveries, err := ch.Consume(s.queue, c.tag, false, false, false, false, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("consume queue %q: %w", s.queue, err)
	}
	s.mu.Lock()
	s.live = c
	s.mu.Unlock()
	return c, deliveries, nil
}

// end cancels a consumer and takes what it still got.
func (s *source) end(ctx context.Context, requests *rpcs, ch *amqp.Channel, c *consumer, deliveries <-chan amqp.Delivery) error {
	s.mu.Lock()
	s.live = nil
	s.mu.Unlock()
	if err := requests.do(ctx, func() error { return ch.Cancel(c.tag, false) }); err != nil {
		return fmt.Errorf("end a consumer: %w", err)
	}
	for d := range deliveries {
		s.arrive(ch, c, d)
	}
	return nil
}

func (s *source) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// exhausted tells whether the consumer has out what it may, and all of it is held.
func (s *source) exhausted(c *consumer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := s.want && c != nil && c == s.live && c.out >= s.prefetch && len(s.buffer) == 0 && !s.draining
	s.want = false
	return want
}

// up takes on a new channel.
func (s *source) up(ch *amqp.Channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ch, s.away = ch, nil
	if len(s.doubt) > 0 {
		if until := time.Now().Add(doubtGrace); until.Before(s.doubtUntil) {
			s.doubtUntil = until
		}
	}
	notify(s.wake)
}

// down notes that the channel is gone. RabbitMQ puts all that was held back into
// the queue; what the subscription works on is in doubt from here on.
func (s *source) down(err error) {
	if err == nil {
		err = errAway
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = err
	if s.ch == nil {
		return
	}
	now := time.Now()
	s.ch, s.live, s.tags = nil, nil, nil
	s.unsent, s.ackBy = nil, time.Time{} // the memory has them
	s.doubtUntil = now.Add(s.lease)
	// Nobody works on these.
	for _, h := range s.buffer {
		s.drop(h)
	}
	s.buffer = nil
	for len(s.delayed) > 0 {
		s.drop(s.delayed.pop())
	}
	for _, h := range s.holds {
		h.consumer = nil
		if id := identity(&h.d); id != "" {
			s.doubt[id] = h
		} else { // a copy could not be told from another message like it
			s.lost = append(s.lost, h.id)
			s.drop(h)
		}
	}
	s.memory.gone(now)
}

func (s *source) drop(h *hold) {
	h.settled = true
	delete(s.holds, h.id)
}

// arrive takes in a delivery.
func (s *source) arrive(ch *amqp.Channel, c *consumer, d amqp.Delivery) {
	d.Acknowledger = nil
	s.mu.Lock()
	if d.Redelivered {
		if id := identity(&d); id != "" {
			if h := s.doubt[id]; h != nil {
				delete(s.doubt, id)
				h.tag, h.consumer, h.since = d.DeliveryTag, c, time.Now()
				c.out++
				s.tags = append(s.tags, h)
				s.mu.Unlock()
				return
			}
			if s.memory.take(id) {
				s.memory.sent(id)
				s.mu.Unlock()
				s.io.Lock()
				defer s.io.Unlock()
				_ = ch.Ack(d.DeliveryTag, false)
				return
			}
		}
	}
	s.seq++
	h := &hold{id: entryID(s.seq), seq: s.seq, d: d, tag: d.DeliveryTag, consumer: c, since: time.Now(), index: -1}
	c.out++
	s.holds[h.id] = h
	s.tags = append(s.tags, h)
	if !s.draining {
		s.buffer = append(s.buffer, h)
		notify(s.wake)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	if !s.keeps() {
		s.mu.Lock()
		s.unfetched = append(s.unfetched, h)
		s.mu.Unlock()
	}
}

// sendDue puts back what was delayed until now, and sends acks that have waited. It
// returns how long it is to the next.
func (s *source) sendDue(now time.Time) time.Duration {
	s.mu.Lock()
	var due []*hold
	for len(s.delayed) > 0 && !s.delayed[0].due.After(now) {
		due = append(due, s.delayed.pop())
	}
	acks := !s.ackBy.IsZero() && !s.ackBy.After(now)
	s.mu.Unlock()
	if len(due) > 0 || acks {
		s.io.Lock()
		s.sendAcks(now, acks)
		s.giveBack(due)
		s.io.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := time.Hour
	if len(s.delayed) > 0 {
		next = s.delayed[0].due.Sub(now)
	}
	if !s.ackBy.IsZero() {
		next = min(next, s.ackBy.Sub(now))
	}
	return max(next, 0)
}

// refresh puts messages back that RabbitMQ would soon take away, with the whole
// channel, since they are held for so long; they come again at once, and while
// nobody else takes them the handler does not notice. With order all go, so that
// they stay in order.
func (s *source) refresh(now time.Time) {
	limit := s.b.cfg.ConsumerTimeout * 4 / 5
	s.io.Lock()
	defer s.io.Unlock()
	s.mu.Lock()
	ch := s.ch
	old := false
	if ch != nil && !s.draining {
		for _, h := range s.tags {
			if !h.settled {
				old = now.Sub(h.since) > limit
				break // the first is the oldest
			}
		}
	}
	if !old {
		s.mu.Unlock()
		return
	}
	var tags []uint64
	kept := s.tags[:0:0]
	for _, h := range s.tags {
		if h.settled || !s.keeps() && now.Sub(h.since) <= limit || identity(&h.d) == "" {
			kept = append(kept, h)
			continue
		}
		tags = append(tags, h.tag)
		h.consumer.out--
		h.consumer = nil
		s.doubt[identity(&h.d)] = h
	}
	s.tags = kept
	s.doubtUntil = now.Add(doubtGrace)
	s.mu.Unlock()
	s.log.InfoContext(context.Background(), "messages held for long are put back and taken up again", "messages", len(tags))
	for _, tag := range tags {
		if ch.Nack(tag, false, true) != nil {
			return
		}
	}
}
