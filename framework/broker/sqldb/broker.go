package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// Name is the adapter's name in configuration.
const Name = "sql"

// Defaults of Config.
const (
	DefaultPollInterval  = 100 * time.Millisecond
	DefaultListenedPoll  = 500 * time.Millisecond
	DefaultRetention     = 24 * time.Hour
	DefaultMaxHeld       = 10_000
	DefaultMaintainEvery = time.Minute
	DefaultCleanupBatch  = 1000
)

// maxConsumer bounds a consumer's name in the claims' column owner.
const maxConsumer = 200

// Config configures a Broker. DB and Dialect are required.
type Config struct {
	// DB is the database. Close leaves it open. Each subscription uses up to
	// four of its connections at a time, each for a short statement or
	// transaction. For MySQL open it with interpolateParams=true, which halves the
	// round trips; for SQLite with a busy timeout and journal_mode=WAL.
	DB *sql.DB
	// Dialect is the database's.
	Dialect sqltx.Dialect
	// Prefix stands before each topic, so that systems can share a database: the
	// table is that of MessagesTable(Dialect, Prefix+topic). Default none.
	Prefix string
	// PollInterval is how often an idle subscription looks for messages that no
	// wake-up announced: those of another process, or of a transaction. Default
	// 100 ms; on Postgres with the pgx driver, where NOTIFY announces them,
	// 500 ms.
	PollInterval time.Duration
	// NoListen switches LISTEN and NOTIFY off on Postgres, for a server behind a
	// pooler in transaction mode. Default false.
	NoListen bool
	// Retention is how long a message that every group has settled stays in its
	// table, for groups that come later. Default 24 h; negative: for ever. A topic
	// that no group reads is never cleaned.
	Retention time.Duration
	// MaxHeld bounds how many messages one subscription holds back beyond
	// MaxInFlight, by number alone, and how many a group sets aside because
	// another member has their key. At the bound nothing more is fetched. Default
	// 10,000.
	MaxHeld int
	// MaintainEvery is how often a subscription cleans its topic's table. Default
	// 1 min.
	MaintainEvery time.Duration
	// CleanupBatch is how many rows one statement of the cleaning deletes.
	// Default 1,000.
	CleanupBatch int
	// Logger receives the broker's own events. Default slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns c with its defaults filled in. It leaves PollInterval
// alone: that default depends on the database.
func (c Config) WithDefaults() Config {
	if c.Retention == 0 {
		c.Retention = DefaultRetention
	}
	if c.MaxHeld == 0 {
		c.MaxHeld = DefaultMaxHeld
	}
	if c.MaintainEvery == 0 {
		c.MaintainEvery = DefaultMaintainEvery
	}
	if c.CleanupBatch == 0 {
		c.CleanupBatch = DefaultCleanupBatch
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that can't work, by name, value and remedy.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("sqldb: "+format, args...)) }
	if c.DB == nil {
		bad("DB is nil: open the database first")
	}
	switch c.Dialect {
	case sqltx.Postgres, sqltx.MySQL, sqltx.SQLite:
	default:
		bad("Dialect is %q: use %q, %q or %q", string(c.Dialect), sqltx.Postgres, sqltx.MySQL, sqltx.SQLite)
	}
	if c.PollInterval < 0 || c.PollInterval > 0 && c.PollInterval < time.Millisecond {
		bad("PollInterval is %s: it must be 1ms or more", c.PollInterval)
	}
	if c.MaxHeld < 0 {
		bad("MaxHeld is %d: it must not be negative", c.MaxHeld)
	}
	if c.MaintainEvery < 0 {
		bad("MaintainEvery is %s: it must be positive", c.MaintainEvery)
	}
	if c.CleanupBatch < 0 {
		bad("CleanupBatch is %d: it must be positive", c.CleanupBatch)
	}
	return errors.Join(errs...)
}

// Broker is a broker.Broker on a SQL database. It is safe for concurrent use.
type Broker struct {
	cfg  Config
	d    *dialect
	db   *sql.DB
	pub  *publisher
	wake *waker

	// one lets the writes of this process queue in memory where the database has
	// one writer, instead of polling for its lock.
	one sync.Mutex
	// gapAge replaces what closeByAge works out; for tests.
	gapAge time.Duration

	mu     sync.Mutex
	known  map[string]table // topics whose tables exist
	state  bool             // the state tables exist
	closed bool
}

var _ broker.Broker = (*Broker)(nil)

// Open makes a Broker on a database that is open, and returns once it answers.
// It fails when the config is wrong, the server too old, or no answer comes
// before ctx ends. It creates nothing: EnsureTopology, Subscribe and Publish
// create what they need.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := cfg.DB.PingContext(ctx); err != nil {
		return nil, fmt.Errorf("sqldb: the database does not answer: %w", err)
	}
	d, err := newDialect(ctx, cfg.DB, cfg.Dialect)
	if err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, d: d, db: cfg.DB, known: make(map[string]table)}
	b.wake = newWaker(b)
	announced := b.wake.remote(ctx)
	if b.cfg.PollInterval == 0 {
		b.cfg.PollInterval = DefaultPollInterval
		if announced {
			b.cfg.PollInterval = DefaultListenedPoll
		}
	}
	b.pub = &publisher{b: b, db: cfg.DB}
	return b, nil
}

// Name returns "sql".
func (b *Broker) Name() string { return Name }

// Features states what this broker can do.
func (b *Broker) Features() broker.Features {
	return broker.Features{
		OrderPerKey:         true,
		OrderAcrossReplicas: true,
		Delay:               true,
		MaxMessageBytes:     b.d.maxMessage,
		DeliveryCount:       true,
		CompetingConsumers:  true,
		ReplayForNewGroup:   true,
		Durable:             true,
	}
}

// Publisher returns the broker's publisher. It creates a topic's table where it
// is missing.
func (b *Broker) Publisher() broker.Publisher { return b.pub }

// Subscriber makes a subscriber.
func (b *Broker) Subscriber(cfg broker.SubscriberConfig) (message.Subscriber, error) {
	cfg, err := cfg.Complete(b.cfg.Logger)
	if err != nil {
		return nil, err
	}
	if len(cfg.Consumer) > maxConsumer {
		return nil, fmt.Errorf("sqldb: Consumer has %d bytes: give it %d at most, or leave it empty", len(cfg.Consumer), maxConsumer)
	}
	ensure := func(ctx context.Context, topic string) error {
		return b.EnsureTopology(ctx, broker.Subscription{Topic: topic, Group: cfg.Group})
	}
	return lanes.NewSubscriber(lanes.Config{
		SubscriberConfig: cfg,
		MaxHeld:          b.cfg.MaxHeld,
		ReclaimEvery:     cfg.Lease, // Fetch takes over what others left
		Heartbeat:        cfg.Lease / 3,
		DeadLetters:      b.pub,
	}, ensure, b.join), nil
}

// Admin returns the operators' view.
func (b *Broker) Admin() broker.Admin { return admin{b} }

// Ping returns nil when the database answers.
func (b *Broker) Ping(ctx context.Context) error {
	if b.isClosed() {
		return fmt.Errorf("sqldb: %w", broker.ErrClosed)
	}
	if err := b.db.PingContext(ctx); err != nil {
		return fmt.Errorf("sqldb: ping: %w", err)
	}
	return nil
}

// Close ends the listening for wake-ups. The database stays open. It may be
// called twice.
func (b *Broker) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.wake.close()
	return nil
}

// writer takes the place of the one writer and returns how to leave it.
func (b *Broker) writer() (done func()) {
	if !b.d.oneWriter {
		return func() {}
	}
	b.one.Lock()
	return b.one.Unlock
}

func (b *Broker) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}
