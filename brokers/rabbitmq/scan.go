package rabbitmq

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// placeMark stands between a message's identity and its queue in a position.
const placeMark = "@"

// position names a message in its queue; n tells apart those that are equal in
// everything, or have the same id.
func position(queue, fingerprint string, n int) string {
	if n > 0 {
		fingerprint = fmt.Sprintf("%s.%d", fingerprint, n)
	}
	return strings.ReplaceAll(fingerprint, placeMark, "-") + placeMark + queue
}

// scan is one walk through a queue. It takes every message that was ready when it
// began, and puts back what it does not remove.
type scan struct {
	queue string
	ch    *amqp.Channel

	requests rpcs

	mu   sync.Mutex
	tags map[string]uint64 // by position: what is in hand
	last uint64            // the last delivery tag
}

// scan calls fn with each ready message of the queue, until fn wants no more. What
// fn does not keep is removed; the number of those is returned.
func (a admin) scan(ctx context.Context, queue string, fn func(s *scan, place string, d *amqp.Delivery) (keep, more bool)) (removed int, err error) {
	n, consumers, err := a.ready(ctx, queue)
	if err != nil || n == 0 {
		return 0, err
	}
	wait := browseReturn
	if consumers > 0 { // they may take what is given back
		wait /= 20
	}
	ch, err := a.b.main.channel(ctx)
	if err != nil {
		return 0, err
	}
	s := &scan{queue: queue, ch: ch, tags: make(map[string]uint64)}
	a.b.held.addScan(s)
	defer func() {
		a.b.held.removeScan(s)
		a.giveBack(ctx, s, n, wait)
	}()
	if err := s.requests.do(ctx, func() error { return ch.Qos(browsePrefetch, 0, false) }); err != nil {
		return 0, err
	}
	seen := make(map[string]int)
	idle := time.NewTimer(browseIdle)
	defer idle.Stop()
	for round := 0; n > 0; round++ {
		tag := fmt.Sprintf("headrace-browse-%08d", round)
		var deliveries <-chan amqp.Delivery
		err := s.requests.do(ctx, func() (err error) {
			deliveries, err = ch.Consume(queue, tag, false, false, false, false, nil)
			return err
		})
		if err != nil {
			return removed, err
		}
		for range min(n, browsePrefetch) {
			idle.Reset(browseIdle)
			var d amqp.Delivery
			var ok bool
			select {
			case <-ctx.Done():
				return removed, ctx.Err()
			case <-idle.C:
				return removed, nil
			case d, ok = <-deliveries:
			}
			if !ok {
				return removed, errBrowse
			}
			n--
			print := fingerprint(&d)
			place := position(queue, print, seen[print])
			seen[print]++
			s.mu.Lock()
			s.tags[place], s.last = d.DeliveryTag, d.DeliveryTag
			s.mu.Unlock()
			keep, more := fn(s, place, &d)
			if !keep {
				k, err := s.remove(ctx, []string{place})
				if removed += k; err != nil {
					return removed, err
				}
			}
			if !more {
				return removed, nil
			}
		}
		// More than the prefetch can be out with one consumer after the other.
		if err := s.requests.do(ctx, func() error { return ch.Cancel(tag, false) }); err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// remove settles messages that the scan has in hand, and returns once RabbitMQ
// has read that.
func (s *scan) remove(ctx context.Context, places []string) (int, error) {
	n := 0
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.requests.do(ctx, func() error {
		for _, place := range places {
			tag, ok := s.tags[place]
			if !ok {
				continue
			}
			if err := s.ch.Ack(tag, false); err != nil {
				return err
			}
			delete(s.tags, place)
			n++
		}
		_, err := s.ch.QueueDeclarePassive(s.queue, true, false, false, false, nil)
		return err
	})
	return n, err
}

// giveBack puts back what the scan has in hand, and what else came for it, and
// waits until it is in the queue again.
func (a admin) giveBack(ctx context.Context, s *scan, rest int, wait time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.b.cfg.Timeout)
	defer cancel()
	s.mu.Lock()
	left := len(s.tags) + rest
	s.mu.Unlock()
	// Closing the channel returns all at once and in order.
	if err := s.requests.do(ctx, s.ch.Close); err != nil {
		a.b.cfg.Logger.WarnContext(ctx, "closing a channel failed; what was browsed is back once the connection has ended", "queue", s.queue, "error", err)
		return
	}
	for start := time.Now(); time.Since(start) < wait; {
		if ready, _, err := a.ready(ctx, s.queue); err != nil || ready >= left {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// inHand knows the open subscriptions and scans of a broker. Safe for concurrent
// use.
type inHand struct {
	mu      sync.Mutex
	sources map[*source]struct{}
	scans   map[*scan]struct{}
}

func (h *inHand) addSource(s *source) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sources == nil {
		h.sources = make(map[*source]struct{})
	}
	h.sources[s] = struct{}{}
}

func (h *inHand) removeSource(s *source) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.sources, s)
}

func (h *inHand) addScan(s *scan) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.scans == nil {
		h.scans = make(map[*scan]struct{})
	}
	h.scans[s] = struct{}{}
}

func (h *inHand) removeScan(s *scan) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.scans, s)
}

// pending is what the subscriptions to a queue hold.
func (h *inHand) pending(queue string) (n int, oldest time.Time) {
	h.mu.Lock()
	var of []*source
	for s := range h.sources {
		if s.queue == queue {
			of = append(of, s)
		}
	}
	h.mu.Unlock()
	for _, s := range of {
		k, t := s.pending()
		if n += k; !t.IsZero() && (oldest.IsZero() || t.Before(oldest)) {
			oldest = t
		}
	}
	return n, oldest
}

// browsed is how many messages of a queue scans have in hand.
func (h *inHand) browsed(queue string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.scans {
		if s.queue == queue {
			s.mu.Lock()
			n += len(s.tags)
			s.mu.Unlock()
		}
	}
	return n
}

// browsing is the scan that has the message in hand; nil for none.
func (h *inHand) browsing(place string) *scan {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.scans {
		s.mu.Lock()
		_, ok := s.tags[place]
		s.mu.Unlock()
		if ok {
			return s
		}
	}
	return nil
}
