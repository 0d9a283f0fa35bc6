package redisstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
)

// Name is the adapter's name in configuration.
const Name = "redisstream"

// Defaults of Config.
const (
	DefaultRetention       = 24 * time.Hour
	DefaultClaimInterval   = 500 * time.Millisecond
	DefaultBlockTime       = 500 * time.Millisecond
	DefaultMaxHeld         = 10_000
	DefaultMaintainEvery   = time.Minute
	DefaultConsumerTimeout = 10 * time.Minute
)

// poolSize is the size of the broker's own pool. Connections are opened as they
// are needed; each subscription keeps one in a blocking read.
const poolSize = 1024

// Config configures a Broker. One of URL and Client is required.
type Config struct {
	// URL is the server's address as redis.ParseURL takes it, such as
	// "redis://127.0.0.1:6379/0", "rediss://…" or "unix:///run/redis.sock". The
	// broker opens a client of its own and closes it.
	URL string
	// Client is used instead of URL. Close leaves it open. It may be a cluster's.
	// A client that retries by itself may send a batch twice when a connection
	// breaks in the middle.
	Client redis.UniversalClient
	// Prefix stands before each topic in the key of its stream. Default none.
	Prefix string
	// Retention is how long a message that every group has acked stays in its
	// stream, for groups that come later. Default 24 h; negative: for ever.
	Retention time.Duration
	// ClaimInterval is how often a subscription looks for messages that another
	// one gave back. Default 500 ms.
	ClaimInterval time.Duration
	// BlockTime bounds one blocking read. Close ends a read at once, except on a
	// cluster or without the right to CLIENT UNBLOCK, where it waits for it.
	// Default 500 ms.
	BlockTime time.Duration
	// MaxHeld bounds how many messages one subscription holds back beyond
	// MaxInFlight, by id alone: nacked ones, and those behind a busy key. At the
	// bound it fetches no more. Default 10,000.
	MaxHeld int
	// MaintainEvery is how often a subscription trims its stream and removes
	// stale consumers. Default 1 min.
	MaintainEvery time.Duration
	// ConsumerTimeout is how long a consumer without pending entries may be
	// silent before it is removed from the group. Default 10 min.
	ConsumerTimeout time.Duration
	// Logger receives the broker's own events. Default slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns c with its defaults filled in.
func (c Config) WithDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Retention, DefaultRetention)
	def(&c.ClaimInterval, DefaultClaimInterval)
	def(&c.BlockTime, DefaultBlockTime)
	def(&c.MaintainEvery, DefaultMaintainEvery)
	def(&c.ConsumerTimeout, DefaultConsumerTimeout)
	if c.MaxHeld == 0 {
		c.MaxHeld = DefaultMaxHeld
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that can't work, by name, value and remedy.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("redisstream: "+format, args...)) }
	if c.URL == "" && c.Client == nil {
		bad("URL and Client are empty: set one of them, such as URL \"redis://127.0.0.1:6379/0\"")
	}
	if c.URL != "" && c.Client != nil {
		bad("URL and Client are both set: leave one of them out")
	}
	if c.ClaimInterval < 0 {
		bad("ClaimInterval is %s: it must be positive", c.ClaimInterval)
	}
	if c.BlockTime < time.Millisecond || c.BlockTime > time.Minute {
		bad("BlockTime is %s: it must be between 1ms and 1m", c.BlockTime)
	}
	if c.MaxHeld < 0 {
		bad("MaxHeld is %d: it must not be negative", c.MaxHeld)
	}
	if c.MaintainEvery < 0 {
		bad("MaintainEvery is %s: it must be positive", c.MaintainEvery)
	}
	if c.ConsumerTimeout < 0 {
		bad("ConsumerTimeout is %s: it must be positive", c.ConsumerTimeout)
	}
	return errors.Join(errs...)
}

// Broker is a broker.Broker on Redis Streams. It is safe for concurrent use.
type Broker struct {
	cfg    Config
	client redis.UniversalClient
	own    bool
	pub    *publisher
	closed atomic.Bool
	joined atomic.Int64 // subscriptions now
}

var _ broker.Broker = (*Broker)(nil)

// Open connects to Redis and returns once it answers. It fails when the config
// is wrong or the server does not answer before ctx ends; an error never prints
// the URL's password.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, client: cfg.Client}
	where := "the client that was handed in"
	if b.client == nil {
		opts, err := redis.ParseURL(cfg.URL)
		if err != nil {
			return nil, fmt.Errorf("redisstream: URL is not one that Redis clients know (redis://host:port/db): %w", redactURL(cfg.URL, err))
		}
		where = opts.Addr
		if opts.PoolSize == 0 {
			opts.PoolSize = poolSize
		}
		// A retry by the client would send confirmed entries of a batch again.
		opts.MaxRetries = -1
		opts.ContextTimeoutEnabled = true
		opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		b.client, b.own = redis.NewClient(opts), true
	}
	b.pub = &publisher{b: b}
	if err := b.client.Ping(ctx).Err(); err != nil {
		_ = b.Close()
		return nil, fmt.Errorf("redisstream: no Redis answers at %s: start one or correct the URL: %w", where, err)
	}
	return b, nil
}

// redactURL keeps a URL's secret out of the error that names it.
func redactURL(raw string, err error) error {
	var parse *url.Error
	if errors.As(err, &parse) {
		return parse.Err
	}
	if raw != "" && strings.Contains(err.Error(), raw) {
		return errors.New("malformed URL")
	}
	return err
}

// Name returns "redisstream".
func (b *Broker) Name() string { return Name }

// Features states what this broker can do.
func (b *Broker) Features() broker.Features {
	return broker.Features{
		OrderPerKey:        true,
		Delay:              true,
		MaxDelay:           broker.DefaultLease,
		HoldsDelay:         true,
		MaxMessageBytes:    maxMessageBytes,
		DeliveryCount:      true,
		CompetingConsumers: true,
		ReplayForNewGroup:  true,
		Durable:            true,
	}
}

// Publisher returns the broker's publisher.
func (b *Broker) Publisher() broker.Publisher { return b.pub }

// Subscriber makes a subscriber.
func (b *Broker) Subscriber(cfg broker.SubscriberConfig) (message.Subscriber, error) {
	cfg, err := cfg.Complete(b.cfg.Logger)
	if err != nil {
		return nil, err
	}
	if cfg.Consumer == ReleasedConsumer || cfg.Consumer == delayedConsumer {
		return nil, fmt.Errorf("redisstream: Consumer is %q, which is reserved: choose another or leave it empty", cfg.Consumer)
	}
	ensure := func(ctx context.Context, topic string) error {
		return b.EnsureTopology(ctx, broker.Subscription{Topic: topic, Group: cfg.Group})
	}
	return lanes.NewSubscriber(lanes.Config{
		SubscriberConfig: cfg,
		MaxHeld:          b.cfg.MaxHeld,
		ReclaimEvery:     b.cfg.ClaimInterval,
		Heartbeat:        cfg.Lease / 3,
		DeadLetters:      b.pub,
	}, ensure, b.join), nil
}

// EnsureTopology creates streams and groups where they are missing. A new group
// starts at the oldest entry.
func (b *Broker) EnsureTopology(ctx context.Context, subs ...broker.Subscription) error {
	for _, sub := range subs {
		if sub.Topic == "" || sub.Group == "" {
			return fmt.Errorf("redisstream: topic %q, group %q: name both", sub.Topic, sub.Group)
		}
		if err := b.ensureGroup(ctx, b.key(sub.Topic), sub.Group); err != nil {
			return err
		}
	}
	return nil
}

func (b *Broker) ensureGroup(ctx context.Context, key, group string) error {
	err := b.client.XGroupCreateMkStream(ctx, key, group, "0").Err()
	if err == nil || redis.HasErrorPrefix(err, "BUSYGROUP") {
		return nil
	}
	return fmt.Errorf("redisstream: create group %q on stream %q: %w", group, key, err)
}

// Admin returns the operators' view.
func (b *Broker) Admin() broker.Admin { return admin{b} }

// Ping returns nil when the server answers.
func (b *Broker) Ping(ctx context.Context) error {
	if b.closed.Load() {
		return fmt.Errorf("redisstream: %w", broker.ErrClosed)
	}
	if err := b.client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redisstream: ping: %w", err)
	}
	return nil
}

// Close closes the broker's own client. It may be called twice.
func (b *Broker) Close() error {
	if b.closed.Swap(true) || !b.own {
		return nil
	}
	if err := b.client.Close(); err != nil {
		return fmt.Errorf("redisstream: close: %w", err)
	}
	return nil
}

// key is the key of topic's stream.
func (b *Broker) key(topic string) string { return b.cfg.Prefix + topic }
