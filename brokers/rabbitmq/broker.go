package rabbitmq

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
)

// Broker is a broker.Broker on RabbitMQ. It is safe for concurrent use.
type Broker struct {
	cfg   Config
	names namer
	// Publishing and consuming have a connection each: RabbitMQ blocks the first
	// when its memory or disk runs short, and acks must go on then.
	main, consume *link
	pub           *publisher
	topo          topology
	held          inHand
	closed        atomic.Bool
}

var _ broker.Broker = (*Broker)(nil)

// Open connects to RabbitMQ and returns once it answers. It fails when the
// config is wrong or when nothing answers before ctx ends, or within
// Config.Timeout.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b := &Broker{
		cfg: cfg, names: cfg.namer(),
		main: newLink(cfg, "headrace"), consume: newLink(cfg, "headrace consumers"),
	}
	b.pub = newPublisher(b)
	if err := b.Ping(ctx); err != nil {
		b.main.close()
		uri, _ := amqp.ParseURI(cfg.URL)
		return nil, fmt.Errorf("rabbitmq: no answer from %s:%d, virtual host %q: check address, user, password and host: %w",
			uri.Host, uri.Port, uri.Vhost, err)
	}
	return b, nil
}

// Name returns "rabbitmq".
func (b *Broker) Name() string { return Kind }

// Features states what this broker can do.
func (b *Broker) Features() broker.Features { return b.cfg.Features() }

// Publisher returns the broker's publisher.
func (b *Broker) Publisher() broker.Publisher { return b.pub }

// Subscriber makes a subscriber.
func (b *Broker) Subscriber(cfg broker.SubscriberConfig) (message.Subscriber, error) {
	cfg, err := cfg.Complete(b.cfg.Logger)
	if err != nil {
		return nil, err
	}
	if cfg.MaxInFlight > maxPrefetch {
		return nil, fmt.Errorf("rabbitmq: group %q: MaxInFlight is %d: RabbitMQ takes %d at most", cfg.Group, cfg.MaxInFlight, maxPrefetch)
	}
	ensure := func(ctx context.Context, topic string) error {
		return b.EnsureTopology(ctx, broker.Subscription{Topic: topic, Group: cfg.Group})
	}
	return lanes.NewSubscriber(lanes.Config{
		SubscriberConfig: cfg,
		MaxHeld:          b.cfg.MaxHeld,
		ReclaimEvery:     24 * time.Hour, // RabbitMQ itself brings back what others left
		// It costs nothing: it tells what a lost connection took away.
		Heartbeat: min(cfg.Lease/3, time.Second),
		// With order nothing may leave the process for a retry: see the package.
		BrokerCounts: !cfg.Order,
		DeadLetters:  b.pub,
	}, ensure, b.join), nil
}

// Admin returns the operators' view.
func (b *Broker) Admin() broker.Admin { return admin{b} }

// Ping returns nil when RabbitMQ answers.
func (b *Broker) Ping(ctx context.Context) error {
	if b.closed.Load() {
		return fmt.Errorf("rabbitmq: %w", broker.ErrClosed)
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	if err := b.main.with(ctx, func(*amqp.Channel) error { return nil }); err != nil {
		return fmt.Errorf("rabbitmq: ping: %w", err)
	}
	return nil
}

// Close closes the broker's connections. It may be called twice.
func (b *Broker) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	b.consume.close()
	b.main.close()
	return nil
}
