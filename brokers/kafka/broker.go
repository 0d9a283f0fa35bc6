package kafka

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
)

const (
	pingTimeout = 3 * time.Second
	// refreshEvery is how often a subscription looks for messages that
	// Admin.Delete removed.
	refreshEvery = 30 * time.Second
	// batchOverhead is what a batch needs beside its largest record.
	batchOverhead = 1024
	// spreadRun is how many messages without a key go to one partition before the
	// next one's turn.
	spreadRun = 16
)

// Broker is a broker.Broker on Kafka. It is safe for concurrent use.
type Broker struct {
	cfg     Config
	client  *kgo.Client // publishes, and carries what admin asks
	admin   *kadm.Client
	pub     *publisher
	deleted *deleted
	spread  atomic.Uint32 // where the next message without a key goes
	closed  atomic.Bool

	mu     sync.Mutex
	topics map[string]bool // Kafka topics that are known to be there
}

var _ broker.Broker = (*Broker)(nil)

// Open connects to Kafka and returns once it answers. It fails when the config is
// wrong or nothing answers before ctx ends; an error never prints a password.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, topics: make(map[string]bool)}
	b.spread.Store(rand.Uint32N(1<<16) * spreadRun) // replicas don't begin together
	client, err := kgo.NewClient(b.options(
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int { return b.partition })),
		kgo.ProducerLinger(0),
		kgo.ProducerBatchMaxBytes(int32(cfg.MaxMessageBytes+batchOverhead)),
		kgo.MaxBufferedRecords(100_000),
		kgo.RecordDeliveryTimeout(cfg.RequestTimeout),
		kgo.ProduceRequestTimeout(cfg.RequestTimeout),
		kgo.UnknownTopicRetries(8),
		// A call whose context ends must not wait for a broker that is away: what it
		// sent may be there twice when it is sent again.
		kgo.AllowIdempotentProduceCancellation(),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	b.client, b.admin = client, kadm.NewClient(client)
	b.pub, b.deleted = &publisher{b}, newDeleted(b)
	pctx, cancel := b.timeout(ctx)
	defer cancel()
	if err := client.Ping(pctx); err != nil {
		client.Close()
		return nil, fmt.Errorf("kafka: no broker answers at %s: start one, or correct address, TLS and user: %w", strings.Join(cfg.Brokers, ", "), err)
	}
	return b, nil
}

// options are those of every client.
func (b *Broker) options(more ...kgo.Opt) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(b.cfg.Brokers...),
		kgo.ClientID("headrace"),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.DisableClientMetrics(),
		kgo.WithLogger(clientLog{b.cfg.Logger}),
	}
	return append(append(opts, more...), b.cfg.Options...)
}

// saramaHash chooses a key's partition like stock publishers do.
var saramaHash = kgo.SaramaCompatHasher(func(key []byte) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(key)
	return h.Sum32()
})

// partition sends messages of one key to one partition, and others to any: some to
// one, which makes larger batches, then some to the next.
func (b *Broker) partition(r *kgo.Record, n int) int {
	if r.Key == nil {
		return int(b.spread.Add(1) / spreadRun % uint32(n))
	}
	return saramaHash(r.Key, n)
}

// Name returns "kafka".
func (b *Broker) Name() string { return Name }

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
	ensure := func(ctx context.Context, topic string) error {
		return b.EnsureTopology(ctx, broker.Subscription{Topic: topic, Group: cfg.Group})
	}
	return lanes.NewSubscriber(lanes.Config{
		SubscriberConfig: cfg,
		MaxHeld:          b.cfg.MaxHeld,
		ReclaimEvery:     refreshEvery,
		Heartbeat:        min(cfg.Lease/3, 2*time.Second),
		DeadLetters:      b.pub,
	}, ensure, b.join), nil
}

// Admin returns the operators' view.
func (b *Broker) Admin() broker.Admin { return admin{b} }

// Ping returns nil when a broker answers.
func (b *Broker) Ping(ctx context.Context) error {
	if b.closed.Load() {
		return fmt.Errorf("kafka: %w", broker.ErrClosed)
	}
	ctx, cancel := context.WithTimeout(ctx, min(b.cfg.RequestTimeout, pingTimeout))
	defer cancel()
	if err := b.client.Ping(ctx); err != nil {
		return fmt.Errorf("kafka: ping: %w", err)
	}
	return nil
}

// timeout bounds a request that nothing else bounds closer.
func (b *Broker) timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, b.cfg.RequestTimeout)
}

// Close closes the broker's connections. It may be called twice.
func (b *Broker) Close() error {
	if !b.closed.Swap(true) {
		b.client.Close()
	}
	return nil
}
