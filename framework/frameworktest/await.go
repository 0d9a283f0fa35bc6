package frameworktest

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// recorder keeps every message of one topic, in a group of its own.
type recorder struct {
	mu      sync.Mutex
	seen    []*message.Message
	changed chan struct{} // closed and replaced at each message
}

// record returns the topic's recorder, which sees what the topic holds already
// and all that comes.
func (s *System) record(topic string) *recorder {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.topics[topic]; ok {
		return r
	}
	r := &recorder{changed: make(chan struct{})}
	sub, err := s.broker.Subscriber(broker.SubscriberConfig{
		Group: "frameworktest." + strconv.Itoa(len(s.topics)) + "." + events.NewID(), Concurrency: 1, Logger: Logger(s.t),
		OnMalformed: func(context.Context, *message.Message, error) error { return nil },
	})
	if err != nil {
		s.t.Fatalf("frameworktest: watch %q: %v", topic, err)
	}
	ch, err := sub.Subscribe(context.Background(), topic)
	if err != nil {
		s.t.Fatalf("frameworktest: watch %q: %v", topic, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range ch {
			r.add(m.Copy())
			m.Ack()
		}
	}()
	s.t.Cleanup(func() {
		if err := sub.Close(); err != nil {
			s.t.Errorf("frameworktest: stop watching %q: %v", topic, err)
		}
		<-done
	})
	s.topics[topic] = r
	return r
}

func (r *recorder) add(m *message.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, m)
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recorder) snapshot() ([]*message.Message, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*message.Message(nil), r.seen...), r.changed
}

// AwaitMessage returns the first message of the topic, past or to come, that
// match takes; nil takes any.
func (s *System) AwaitMessage(topic string, match func(*message.Message) bool) *message.Message {
	s.t.Helper()
	r := s.record(topic)
	deadline := time.After(Timeout)
	for looked := 0; ; {
		seen, changed := r.snapshot()
		for _, m := range seen[looked:] {
			if match == nil || match(m) {
				return m
			}
		}
		looked = len(seen)
		select {
		case <-changed:
		case <-deadline:
			s.t.Fatalf("frameworktest: no such message on %q after %s; %d others came", topic, Timeout, looked)
		}
	}
}

// AwaitN returns the first n messages of the topic once there are so many.
func (s *System) AwaitN(topic string, n int) []*message.Message {
	s.t.Helper()
	r := s.record(topic)
	deadline := time.After(Timeout)
	for {
		seen, changed := r.snapshot()
		if len(seen) >= n {
			return seen[:n]
		}
		select {
		case <-changed:
		case <-deadline:
			s.t.Fatalf("frameworktest: %d of %d messages on %q after %s", len(seen), n, topic, Timeout)
		}
	}
}

// Await returns the first event of the type, past or to come, that match takes;
// nil takes any.
func Await[T any](s *System, t events.Type[T], match func(events.Event[T]) bool) events.Event[T] {
	s.t.Helper()
	var found events.Event[T]
	s.AwaitMessage(t.Topic(), func(m *message.Message) bool {
		env, err := events.Decode(m.Payload)
		if err != nil || !t.Accepts(env.Type, env.Version) {
			return false
		}
		e, err := t.Decode(env)
		if err != nil || match != nil && !match(e) {
			return false
		}
		found = e
		return true
	})
	return found
}

// Published returns the events of the type that were published so far. Call
// Idle first where all of them must be there.
func Published[T any](s *System, t events.Type[T]) []events.Event[T] {
	s.t.Helper()
	var all []events.Event[T]
	for _, m := range s.Stored(t.Topic()) {
		env, err := events.Decode(m.Payload)
		if err != nil || !t.Accepts(env.Type, env.Version) {
			continue
		}
		e, err := t.Decode(env)
		if err != nil {
			s.t.Fatalf("frameworktest: %s on %q: %v", t, t.Topic(), err)
		}
		all = append(all, e)
	}
	return all
}

// Stored returns what the topic holds now, oldest first.
func (s *System) Stored(topic string) []*message.Message {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	var all []*message.Message
	for stored, err := range s.broker.Admin().Browse(ctx, topic, time.Time{}) {
		if err != nil {
			s.t.Fatalf("frameworktest: browse %q: %v", topic, err)
		}
		all = append(all, stored.Message)
	}
	return all
}

// DeadLetters returns the dead letters of a handler's group
// ("payments.charge-order") that there are now.
func (s *System) DeadLetters(group string) []DeadLetter {
	s.t.Helper()
	var all []DeadLetter
	for _, m := range s.Stored(broker.DeadLetterTopic(group)) {
		all = append(all, deadLetter(m))
	}
	return all
}

// AwaitDeadLetter returns the first dead letter of the group, past or to come,
// that match takes; nil takes any.
func (s *System) AwaitDeadLetter(group string, match func(DeadLetter) bool) DeadLetter {
	s.t.Helper()
	if !s.broker.Features().ReplayForNewGroup {
		// A group of the test's own would miss what is there, and on some brokers
		// take the letters away: this looks again and again.
		deadline := time.Now().Add(Timeout)
		for {
			all := s.DeadLetters(group)
			for _, d := range all {
				if match == nil || match(d) {
					return d
				}
			}
			if time.Now().After(deadline) {
				s.t.Fatalf("frameworktest: no such dead letter of %q after %s; %d others came", group, Timeout, len(all))
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return deadLetter(s.AwaitMessage(broker.DeadLetterTopic(group), func(m *message.Message) bool {
		return match == nil || match(deadLetter(m))
	}))
}

// DeadLetter is a dead letter, taken apart.
type DeadLetter struct {
	// Reason is the class, one of middleware's Reason constants; Error the text.
	Reason, Error string
	// Message is the whole of it.
	Message *message.Message
}

func deadLetter(m *message.Message) DeadLetter {
	return DeadLetter{Reason: m.Metadata.Get(middleware.DeadLetterReason), Error: m.Metadata.Get(middleware.DeadLetterError), Message: m}
}

// Idle returns once nothing is left to do: every outbox is empty, and every
// message is settled that is on a topic of a started app's handlers.
func (s *System) Idle() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	// No broker signals idleness, so this looks again and again. Two looks in a
	// row must find nothing and no new message in between, since a message may
	// hop from a place not yet looked at to one that was.
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	last := int64(-1)
	for {
		busy, total, err := s.look(ctx)
		switch {
		case ctx.Err() != nil:
			s.t.Fatalf("frameworktest: still busy after %s: %s", Timeout, busy)
		case err != nil:
			s.t.Fatalf("frameworktest: idle: %v", err)
		case busy == "" && total == last:
			return
		case busy == "":
			last = total
		default:
			last = -1
		}
		<-tick.C
	}
}

// look says what is busy, and how many messages the topics hold in all.
func (s *System) look(ctx context.Context) (busy string, total int64, err error) {
	s.mu.Lock()
	apps := append([]*framework.App(nil), s.apps...)
	s.mu.Unlock()
	admin := s.broker.Admin()
	for _, app := range apps {
		if relay := app.Relay(); relay != nil {
			st, err := relay.Stats(ctx)
			if err != nil {
				return "outbox", 0, err
			}
			if st.Backlog > 0 {
				return "an outbox holds " + strconv.FormatInt(st.Backlog, 10) + " rows", 0, nil
			}
		}
		for _, h := range app.Pipeline() {
			for _, topic := range []string{h.Topic, h.RedriveTopic} {
				st, err := admin.Stats(ctx, broker.Subscription{Topic: topic, Group: h.Group})
				if err != nil {
					return h.Group, 0, err
				}
				if st.Lag+st.Pending > 0 {
					return "group " + h.Group + " has work on " + topic, 0, nil
				}
				depth, err := admin.Depth(ctx, topic)
				if err != nil {
					return topic, 0, err
				}
				total += depth
			}
		}
	}
	return "", total, nil
}
