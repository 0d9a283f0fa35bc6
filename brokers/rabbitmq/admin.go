package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/framework/broker"
)

const (
	// browsePrefetch is how many messages a scan takes at a time.
	browsePrefetch = 2000
	// browseIdle ends a scan: what was there when it began was taken by others.
	browseIdle = 2 * time.Second
	// browseReturn is how long a scan waits until what it gave back is in the
	// queue again.
	browseReturn = 5 * time.Second
)

type admin struct{ b *Broker }

// Stats tells how many messages are ready in the group's queue, and how many this
// process holds: AMQP tells neither what other processes hold nor any age, so
// Pending and OldestAge are this process's own.
func (a admin) Stats(ctx context.Context, sub broker.Subscription) (broker.Stats, error) {
	queue := a.b.names.queue(sub.Topic, sub.Group)
	ready, _, err := a.ready(ctx, queue)
	if err != nil {
		return broker.Stats{}, fmt.Errorf("rabbitmq: stats of group %q on topic %q: %w", sub.Group, sub.Topic, err)
	}
	pending, oldest := a.b.held.pending(queue)
	stats := broker.Stats{Lag: int64(ready), Pending: int64(pending)}
	if !oldest.IsZero() {
		stats.OldestAge = max(time.Since(oldest), time.Nanosecond)
	}
	return stats, nil
}

// ready is how many messages of a queue nobody has fetched, and how many consume
// it. Of a queue that is not there both are 0.
func (a admin) ready(ctx context.Context, queue string) (messages, consumers int, err error) {
	var q amqp.Queue
	err = a.b.main.with(ctx, func(ch *amqp.Channel) (err error) {
		q, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	})
	if code(err) == amqp.NotFound {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	return q.Messages, q.Consumers, nil
}

// queues are the topic's own queue and those of the groups that this process
// knows: AMQP does not tell the others.
func (a admin) queues(topic string) []string {
	queues := []string{a.b.names.own(topic)}
	if ownOnly(topic) {
		return queues
	}
	for _, g := range a.b.topo.groupsOf(topic) {
		queues = append(queues, a.b.names.queue(topic, g))
	}
	return queues
}

// Depth is how many messages the topic's own queue and those of its groups hold,
// as far as this process knows the groups, and with what this process holds.
func (a admin) Depth(ctx context.Context, topic string) (int64, error) {
	total := int64(0)
	for _, queue := range a.queues(topic) {
		ready, _, err := a.ready(ctx, queue)
		if err != nil {
			return 0, fmt.Errorf("rabbitmq: depth of topic %q: %w", topic, err)
		}
		pending, _ := a.b.held.pending(queue)
		total += int64(ready + pending + a.b.held.browsed(queue))
	}
	return total, nil
}

// Browse takes the messages of the topic's queues without settling them and puts
// them back in order when it ends: to the head of their queue, each counted as
// delivered once more. Consumers miss them meanwhile; what they hold is not seen.
// It is made for dead letters, which have no consumers and whose count means
// nothing. Of a queue with a single active consumer it sees nothing.
func (a admin) Browse(ctx context.Context, topic string, since time.Time) iter.Seq2[broker.Stored, error] {
	return func(yield func(broker.Stored, error) bool) {
		for _, queue := range a.queues(topic) {
			goOn := true
			_, err := a.scan(ctx, queue, func(_ *scan, place string, d *amqp.Delivery) (keep, more bool) {
				stored := broker.Stored{Position: place, PublishedAt: publishedAt(d)}
				if stored.PublishedAt.Before(since) {
					return true, true
				}
				var err error
				if stored.Message, err = decode(d); err != nil {
					stored.Message = rawMessage(d, place)
					stored.Message.Metadata.Set(broker.MalformedReasonKey, err.Error())
				}
				goOn = yield(stored, nil)
				return true, goOn
			})
			if err != nil && goOn {
				yield(broker.Stored{}, fmt.Errorf("rabbitmq: browse topic %q: %w", topic, err))
				return
			}
			if !goOn {
				return
			}
		}
	}
}

// Delete removes messages. What a running Browse of this process has in hand goes
// at once; the rest is looked for as Browse does, with the same effect on what is
// not removed.
func (a admin) Delete(ctx context.Context, topic string, positions ...string) (int, error) {
	removed := 0
	fail := func(err error) (int, error) {
		return removed, fmt.Errorf("rabbitmq: delete %d messages of topic %q: %w", len(positions), topic, err)
	}
	known := make(map[string]bool)
	for _, queue := range a.queues(topic) {
		known[queue] = true
	}
	missing := make(map[string]map[string]bool) // queue → positions
	browsing := make(map[*scan][]string)
	for _, place := range positions {
		_, queue, ok := strings.Cut(place, placeMark)
		if !ok || !known[queue] {
			continue // another topic's
		}
		if s := a.b.held.browsing(place); s != nil {
			browsing[s] = append(browsing[s], place)
			continue
		}
		if missing[queue] == nil {
			missing[queue] = make(map[string]bool)
		}
		missing[queue][place] = true
	}
	for s, places := range browsing {
		n, err := s.remove(ctx, places)
		if removed += n; err != nil {
			return fail(err)
		}
	}
	for queue, wanted := range missing {
		n, err := a.scan(ctx, queue, func(_ *scan, place string, _ *amqp.Delivery) (keep, more bool) {
			keep = !wanted[place]
			delete(wanted, place)
			return keep, len(wanted) > 0
		})
		if removed += n; err != nil {
			return fail(err)
		}
	}
	return removed, nil
}

// errBrowse is the error of a scan whose channel was closed under it.
var errBrowse = errors.New("the channel was closed; what was looked at is in the queue again")
