package memory

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
)

// Config configures a Broker. The zero value works.
type Config struct {
	// Retain is how many settled messages a topic keeps for groups that come
	// later. Default 100,000. Negative keeps none.
	Retain int
}

// Broker is a broker.Broker in memory.
type Broker struct{ cfg Config }

var _ broker.Broker = (*Broker)(nil)

// New makes an empty Broker.
func New(cfg Config) *Broker { return &Broker{cfg: cfg} }

// Name returns "memory".
func (b *Broker) Name() string { return "memory" }

// Features states what this broker can do.
func (b *Broker) Features() broker.Features { return broker.Features{} }

// Publisher returns the broker's publisher.
func (b *Broker) Publisher() broker.Publisher { return nil }

// Subscriber makes a subscriber.
func (b *Broker) Subscriber(cfg broker.SubscriberConfig) (message.Subscriber, error) {
	return nil, nil
}

// EnsureTopology creates topics and groups.
func (b *Broker) EnsureTopology(ctx context.Context, subs ...broker.Subscription) error { return nil }

// Admin returns the operators' view.
func (b *Broker) Admin() broker.Admin { return nil }

// Ping returns nil until Close.
func (b *Broker) Ping(ctx context.Context) error { return nil }

// Close drops everything.
func (b *Broker) Close() error { return nil }
