package frameworktest

import (
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/pkg/events"
)

// Feed hears the events of some topics one by one. A topic's events of one key
// come in order; different topics keep no order among each other.
type Feed struct {
	s      *System
	topics []string
	group  string
	ch     chan events.Envelope
}

// feedSize is more events than a test leaves unread.
const feedSize = 10_000

// Listen returns a Feed of what comes on the topics from now on.
func (s *System) Listen(topics ...string) *Feed {
	s.t.Helper()
	f := &Feed{s: s, topics: topics, group: "frameworktest." + events.NewID(), ch: make(chan events.Envelope, feedSize)}
	for _, topic := range topics {
		sub, err := s.broker.Subscriber(broker.SubscriberConfig{
			Group: f.group, Order: s.broker.Features().OrderPerKey, Logger: Logger(s.t),
			OnMalformed: func(context.Context, *message.Message, error) error { return nil },
		})
		if err != nil {
			s.t.Fatalf("frameworktest: listen to %q: %v", topic, err)
		}
		msgs, err := sub.Subscribe(context.Background(), topic)
		if err != nil {
			s.t.Fatalf("frameworktest: listen to %q: %v", topic, err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for m := range msgs {
				if e, err := events.Decode(m.Payload); err == nil {
					f.ch <- e
				}
				m.Ack()
			}
		}()
		s.t.Cleanup(func() {
			if err := sub.Close(); err != nil {
				s.t.Errorf("frameworktest: stop listening to %q: %v", topic, err)
			}
			<-done
		})
	}
	return f
}

// Any returns the next event.
func (f *Feed) Any() events.Envelope {
	f.s.t.Helper()
	select {
	case e := <-f.ch:
		return e
	case <-time.After(Timeout):
		f.s.t.Fatalf("frameworktest: no event on %q in %s", f.topics, Timeout)
		return events.Envelope{}
	}
}

// Next returns the next event, which must have the type.
func (f *Feed) Next(typ string) events.Envelope {
	f.s.t.Helper()
	select {
	case e := <-f.ch:
		if e.Type != typ {
			f.s.t.Fatalf("frameworktest: %s of %q came, %s was expected", e.Type, e.Metadata.OrderingKey, typ)
		}
		return e
	case <-time.After(Timeout):
		f.s.t.Fatalf("frameworktest: no %s in %s", typ, Timeout)
		return events.Envelope{}
	}
}

// All returns the next events, which must have the types, in any order.
func (f *Feed) All(types ...string) []events.Envelope {
	f.s.t.Helper()
	var all []events.Envelope
	var got []string
	for range types {
		select {
		case e := <-f.ch:
			all, got = append(all, e), append(got, e.Type)
		case <-time.After(Timeout):
			f.s.t.Fatalf("frameworktest: %q of %q came in %s", got, types, Timeout)
		}
	}
	want := slices.Sorted(slices.Values(types))
	if slices.Sort(got); !slices.Equal(got, want) {
		f.s.t.Fatalf("frameworktest: %q came, %q were expected", got, want)
	}
	return all
}

// Rest returns the events that were not read, once the System is idle.
func (f *Feed) Rest() []events.Envelope {
	f.s.t.Helper()
	f.s.Idle()
	for _, topic := range f.topics {
		f.s.Settled(topic, f.group)
	}
	var rest []events.Envelope
	for {
		select {
		case e := <-f.ch:
			rest = append(rest, e)
		default:
			return rest
		}
	}
}

// Silent fails the test if an event is left unread once the System is idle.
func (f *Feed) Silent() {
	f.s.t.Helper()
	for _, e := range f.Rest() {
		f.s.t.Fatalf("frameworktest: unexpected %s of %q", e.Type, e.Metadata.OrderingKey)
	}
}

// Settled returns once the group has nothing left to do on the topic: also of a
// service that is no app of the System's.
func (s *System) Settled(topic, group string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond) // no broker signals this
	defer tick.Stop()
	for {
		st, err := s.broker.Admin().Stats(ctx, broker.Subscription{Topic: topic, Group: group})
		if err == nil && st.Lag+st.Pending == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.t.Fatalf("frameworktest: group %s is not done with %q after %s: %d not fetched, %d not settled, %v", group, topic, Timeout, st.Lag, st.Pending, err)
		}
	}
}
