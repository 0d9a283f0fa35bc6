// Package outboxbench measures the outbox beside stock Watermill and beside what
// a person would write by hand for this one purpose, in one run on the same
// servers: what an event costs its transaction, how fast relays drain a table,
// whether they slow down as they do, and how much memory that takes.
package outboxbench

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/bench/internal/measure"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
)

// Options say what to measure and where.
type Options struct {
	// Postgres is a server; the run makes databases of its own there and drops
	// them.
	Postgres string
	// Redis is a server; the run uses keys of its own and removes them.
	Redis string
	// Rows is how many rows a batched relay drains in each measurement.
	Rows int
	// StockRows is the same for one that publishes one by one.
	StockRows int
	// Runs is how often each measurement is made.
	Runs int
	// Backlog is how many rows the long drain has.
	Backlog int
	// Transactions is how many transactions each writer commits in one slice of the
	// writers' comparison, and Groups how many groups of 25 slices of each kind
	// there are.
	Transactions, Groups int
	// LatencyEvents is how many events are timed at each load.
	LatencyEvents int
	// Progress receives a line for each step.
	Progress io.Writer
}

// Report is what a run saw.
type Report struct {
	Options      Options
	Machine      measure.Machine
	Began        time.Time
	Took         time.Duration
	Transactions []TransactionResult
	Relays       []RelayResult
	Backlog      BacklogResult
	Latency      LatencyResult
}

// Run measures everything.
func Run(ctx context.Context, o Options) (*Report, error) {
	b := &bench{Options: o, prefix: "bench-" + events.NewID() + ":"}
	opts, err := redis.ParseURL(o.Redis)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	b.redis = redis.NewClient(opts)
	defer b.redis.Close()
	if err := b.redis.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("redis at %s: %w", opts.Addr, err)
	}
	r := &Report{Options: o, Began: time.Now()}
	if r.Machine, err = measure.Look(ctx, o.Postgres, b.redis); err != nil {
		return nil, err
	}
	if r.Transactions, err = b.transactions(ctx); err != nil {
		return nil, fmt.Errorf("transactions: %w", err)
	}
	if r.Relays, err = b.relays(ctx); err != nil {
		return nil, fmt.Errorf("relays: %w", err)
	}
	if r.Latency, err = b.latency(ctx); err != nil {
		return nil, fmt.Errorf("latency: %w", err)
	}
	if r.Backlog, err = b.backlog(ctx); err != nil {
		return nil, fmt.Errorf("backlog: %w", err)
	}
	r.Took, r.Machine.LoadAfter = time.Since(r.Began), measure.Load()
	return r, nil
}

type bench struct {
	Options
	prefix string // of keys in Redis
	redis  *redis.Client
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.Progress, format+"\n", args...)
}

var quiet = slog.New(slog.DiscardHandler)

// database makes an empty database with Headrace's tables.
func (b *bench) database(ctx context.Context) (dsn string, db *sql.DB, drop func(), err error) {
	dsn, remove, err := measure.PostgresDatabase(ctx, b.Postgres)
	if err != nil {
		return "", nil, nil, err
	}
	if db, err = open(dsn); err == nil {
		err = schema.Ensure(ctx, db, sqltx.Postgres, quiet)
	}
	if err != nil {
		remove()
		return "", nil, nil, fmt.Errorf("postgres: %w", err)
	}
	return dsn, db, func() { db.Close(); remove() }, nil
}

// open opens a pool as a process of its own would.
func open(dsn string) (*sql.DB, error) {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	return db, nil
}
