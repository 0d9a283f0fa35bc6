package journey

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
)

// Log is what was published, topic by topic.
type Log interface {
	// Browse yields the topic's messages that were published at or after since, the
	// oldest first.
	Browse(ctx context.Context, topic string, since time.Time) iter.Seq2[broker.Stored, error]
	// Close ends the reading.
	Close()
}

// group is what reads along where the broker keeps nothing.
const group = "headrace.journey"

// Read returns the topics' log. A broker that keeps what was read is asked each
// time; of another one, such as SQS, a group of its own takes a copy of whatever is
// published from now on, on queues that stay.
func Read(ctx context.Context, b broker.Broker, topics []string) (Log, error) {
	if b.Features().ReplayForNewGroup {
		return kept{b.Admin()}, nil
	}
	r := &recorded{seen: map[string][]broker.Stored{}}
	for _, topic := range topics {
		sub, err := b.Subscriber(broker.SubscriberConfig{
			Group: group, DrainTimeout: time.Second, Logger: slog.New(slog.DiscardHandler),
			OnMalformed: func(context.Context, *message.Message, error) error { return nil },
		})
		if err != nil {
			r.Close()
			return nil, fmt.Errorf("read topic %s: %w", topic, err)
		}
		r.subs = append(r.subs, sub)
		// The subscription outlives ctx: Close ends it.
		messages, err := sub.Subscribe(context.WithoutCancel(ctx), topic)
		if err != nil {
			r.Close()
			return nil, fmt.Errorf("read topic %s: %w", topic, err)
		}
		r.wg.Go(func() { r.record(topic, messages) })
	}
	return r, nil
}

// kept is the log of a broker that keeps what was read.
type kept struct{ broker.Admin }

func (kept) Close() {}

// recorded is what came since Read. A message's time is that of its arrival.
type recorded struct {
	subs []message.Subscriber
	wg   sync.WaitGroup

	mu   sync.Mutex
	seen map[string][]broker.Stored
}

func (r *recorded) record(topic string, messages <-chan *message.Message) {
	for m := range messages {
		r.mu.Lock()
		r.seen[topic] = append(r.seen[topic], broker.Stored{Position: m.UUID, PublishedAt: time.Now().UTC(), Message: m.Copy()})
		r.mu.Unlock()
		m.Ack()
	}
}

func (r *recorded) Browse(_ context.Context, topic string, since time.Time) iter.Seq2[broker.Stored, error] {
	r.mu.Lock()
	seen := r.seen[topic][:len(r.seen[topic]):len(r.seen[topic])]
	r.mu.Unlock()
	return func(yield func(broker.Stored, error) bool) {
		for _, s := range seen {
			if !s.PublishedAt.Before(since) && !yield(s, nil) {
				return
			}
		}
	}
}

func (r *recorded) Close() {
	var closing sync.WaitGroup
	for _, s := range r.subs {
		closing.Go(func() { _ = s.Close() })
	}
	closing.Wait()
	r.wg.Wait()
}
