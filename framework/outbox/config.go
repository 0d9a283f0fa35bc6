package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// Waker tells a relay that another process has committed outbox rows.
type Waker interface {
	// Wait returns nil when rows may have been committed since the last call, an
	// error when it can't tell for now (a lost connection, say), and ctx's error
	// when ctx ends. After an error the relay polls and calls Wait again later.
	Wait(ctx context.Context) error
}

// RelayConfig configures a Relay. The zero value of a field means its default.
type RelayConfig struct {
	// DB is the database. On Postgres and MySQL its pool must allow 3 connections
	// or more.
	// Required.
	DB *sql.DB
	// Dialect is the database's. Required.
	Dialect sqltx.Dialect
	// Publisher takes the messages. It must return once the context of
	// PublishBatch is over. Required.
	Publisher broker.Publisher
	// Table holds the rows. Default schema.OutboxTable.
	Table string
	// BatchSize is how many rows are claimed and published at once. Default 500.
	BatchSize int
	// Parallelism is how many batches are under way at once, each on a database
	// connection of its own while it is; it is cut to half of the pool. On SQLite
	// it is 1. Default 4.
	Parallelism int
	// PublishTimeout bounds the publishing of one batch. Default 10 s.
	PublishTimeout time.Duration
	// PollInterval is how often the table is looked at when nothing wakes the
	// relay. Default 1 s.
	PollInterval time.Duration
	// Waker wakes the relay for rows of other processes. Default: only Wake and
	// PollInterval.
	Waker Waker
	// BackoffBase and BackoffCap shape how long a failed row is held back: a
	// random time between half and all of min(cap, base x 2^(attempts-1)).
	// Defaults 1 s and 5 min.
	BackoffBase time.Duration
	BackoffCap  time.Duration
	// OutageCap bounds the pause, shared by all relays, between attempts on a
	// broker that takes nothing. Default 30 s.
	OutageCap time.Duration
	// MaxAttempts is how often a row may fail, while the broker takes others,
	// until it is parked. Default 10. Negative: it is never parked for that. A
	// failure counts when the broker has taken another message since the row's
	// last one, so an outage parks nothing. With Probe it counts also when there
	// are no others; see there.
	MaxAttempts int
	// Probe tells whether the broker is up: broker.Broker's Ping. It is asked when
	// nothing of a batch was published, no row of it failed for the first time,
	// each failure was an answer (not a timeout or a lost connection), and no more
	// than 20 rows wait in all. When it returns nil then, these failures count for
	// MaxAttempts, so that bad rows without traffic beside them are parked in the
	// end. A broker that answers pings and refuses every message can so park the
	// rows of a quiet service, 20 at most at a time and after the whole backoff.
	// Default: not asked, and such rows are tried on until there is traffic.
	Probe func(ctx context.Context) error
	// StrictOrder parks the later rows of a parked row's ordering key too, until
	// an operator retries or discards it, and publishes the rows of a key one by
	// one instead of in one batch. Default false: they go on without it.
	StrictOrder bool
	// Retention is how long a published row is kept. Default 0: it is deleted at
	// once.
	Retention time.Duration
	// StuckAfter is the age of the oldest unsent row from which Health fails.
	// Default 5 min. Negative: never.
	StuckAfter time.Duration
	// StatsInterval is how often the backlog is counted for metrics and Health.
	// Default 15 s.
	StatsInterval time.Duration
	// Metrics, when set, gets the relay's collectors.
	Metrics prometheus.Registerer
	// Logger receives what is parked, held back and wrong. Default
	// slog.Default().
	Logger *slog.Logger
}

// Defaults of RelayConfig.
const (
	DefaultBatchSize      = 500
	DefaultParallelism    = 4
	DefaultPublishTimeout = 10 * time.Second
	DefaultPollInterval   = time.Second
	DefaultBackoffBase    = time.Second
	DefaultBackoffCap     = 5 * time.Minute
	DefaultOutageCap      = 30 * time.Second
	DefaultMaxAttempts    = 10
	DefaultStuckAfter     = 5 * time.Minute
	DefaultStatsInterval  = 15 * time.Second
)

// WithDefaults returns c with its defaults filled in.
func (c RelayConfig) WithDefaults() RelayConfig {
	set(&c.Table, schema.OutboxTable)
	set(&c.BatchSize, DefaultBatchSize)
	set(&c.Parallelism, DefaultParallelism)
	set(&c.PublishTimeout, DefaultPublishTimeout)
	set(&c.PollInterval, DefaultPollInterval)
	set(&c.BackoffBase, DefaultBackoffBase)
	set(&c.BackoffCap, max(DefaultBackoffCap, c.BackoffBase))
	set(&c.OutageCap, DefaultOutageCap)
	set(&c.MaxAttempts, DefaultMaxAttempts)
	set(&c.StuckAfter, DefaultStuckAfter)
	set(&c.StatsInterval, DefaultStatsInterval)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func set[T comparable](field *T, def T) {
	var zero T
	if *field == zero {
		*field = def
	}
}

// Validate reports every field that can't work, by name, value and remedy.
func (c RelayConfig) Validate() error {
	errs := []error{c.Dialect.Validate()}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.DB == nil {
		bad("outbox: DB is nil: hand in the service's database")
	} else if n := c.DB.Stats().MaxOpenConnections; c.Dialect != sqltx.SQLite && n > 0 && n < 3 {
		bad("outbox: the pool of DB has %d connections: the relay holds one while it publishes, so allow 3 or more", n)
	}
	if c.Publisher == nil {
		bad("outbox: Publisher is nil: hand in the broker's")
	}
	if !tableName.MatchString(c.Table) {
		bad("outbox: Table is %q: use letters, digits and underscores, 63 at most", c.Table)
	}
	if c.BatchSize < 1 || c.BatchSize > 10_000 {
		bad("outbox: BatchSize is %d: use 1 to 10,000", c.BatchSize)
	}
	if c.Parallelism < 1 || c.Parallelism > shards {
		bad("outbox: Parallelism is %d: use 1 to %d", c.Parallelism, shards)
	}
	for name, d := range map[string]time.Duration{"PublishTimeout": c.PublishTimeout, "PollInterval": c.PollInterval,
		"BackoffBase": c.BackoffBase, "OutageCap": c.OutageCap, "StatsInterval": c.StatsInterval} {
		if d < 0 {
			bad("outbox: %s is %s: it must be positive", name, d)
		}
	}
	if c.BackoffCap < c.BackoffBase {
		bad("outbox: BackoffCap is %s, below BackoffBase %s: raise it or leave it 0", c.BackoffCap, c.BackoffBase)
	}
	if c.Retention < 0 {
		bad("outbox: Retention is %s: it must not be negative; 0 deletes at once", c.Retention)
	}
	return errors.Join(errs...)
}
