package memory

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
)

// Name is the adapter's name in configuration.
const Name = "memory"

// DefaultRetain is the default of Config.Retain.
const DefaultRetain = 100_000

// maxHeld bounds what one subscription holds back; the messages themselves are
// in the topic's log anyway.
const maxHeld = 100_000

// Config configures a Broker. The zero value works.
type Config struct {
	// Retain is how many messages that every group has acked a topic keeps for
	// groups that come later, the newest ones. A topic without a group keeps as
	// many. Default 100,000; negative: none.
	Retain int
}

// WithDefaults returns c with its defaults filled in.
func (c Config) WithDefaults() Config {
	if c.Retain == 0 {
		c.Retain = DefaultRetain
	}
	c.Retain = max(c.Retain, 0)
	return c
}

// Broker is a broker.Broker in memory. It is safe for concurrent use.
type Broker struct {
	cfg Config
	pub *publisher

	mu     sync.Mutex
	topics map[string]*topic
	closed bool
}

var _ broker.Broker = (*Broker)(nil)

// New makes an empty Broker.
func New(cfg Config) *Broker {
	b := &Broker{cfg: cfg.WithDefaults(), topics: make(map[string]*topic)}
	b.pub = &publisher{b: b}
	return b
}

// Name returns "memory".
func (b *Broker) Name() string { return Name }

// Features states what this broker can do.
func (b *Broker) Features() broker.Features {
	return broker.Features{
		OrderPerKey:        true,
		Delay:              true,
		DeliveryCount:      true,
		CompetingConsumers: true,
		ReplayForNewGroup:  true,
	}
}

// Publisher returns the broker's publisher.
func (b *Broker) Publisher() broker.Publisher { return b.pub }

// Subscriber makes a subscriber.
func (b *Broker) Subscriber(cfg broker.SubscriberConfig) (message.Subscriber, error) {
	cfg, err := cfg.Complete(nil)
	if err != nil {
		return nil, err
	}
	ensure := func(ctx context.Context, topic string) error {
		return b.EnsureTopology(ctx, broker.Subscription{Topic: topic, Group: cfg.Group})
	}
	return lanes.NewSubscriber(lanes.Config{SubscriberConfig: cfg, MaxHeld: maxHeld}, ensure, b.join), nil
}

// EnsureTopology creates the topics and groups where they are missing.
func (b *Broker) EnsureTopology(ctx context.Context, subs ...broker.Subscription) error {
	for _, sub := range subs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if sub.Topic == "" || sub.Group == "" {
			return fmt.Errorf("memory: topic %q, group %q: name both", sub.Topic, sub.Group)
		}
		t, err := b.topic(sub.Topic)
		if err != nil {
			return err
		}
		t.group(sub.Group)
	}
	return nil
}

// Admin returns the operators' view.
func (b *Broker) Admin() broker.Admin { return admin{b} }

// Ping returns nil until Close.
func (b *Broker) Ping(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return fmt.Errorf("memory: %w", broker.ErrClosed)
	}
	return ctx.Err()
}

// Close drops every message. It may be called twice.
func (b *Broker) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.topics = nil
	return nil
}

// topic returns the topic and creates it where it is missing.
func (b *Broker) topic(name string) (*topic, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fmt.Errorf("memory: topic %q: %w", name, broker.ErrClosed)
	}
	t := b.topics[name]
	if t == nil {
		t = newTopic(b.cfg.Retain)
		b.topics[name] = t
	}
	return t, nil
}

// lookup returns the topic or nil.
func (b *Broker) lookup(name string) *topic {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.topics[name]
}
