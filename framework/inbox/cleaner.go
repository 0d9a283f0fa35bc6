package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/headrace-go/headrace/framework/sqltx"
)

// CleanerConfig configures a Cleaner. The zero value of a field means its
// default.
type CleanerConfig struct {
	// DB has the tables of package schema. Required.
	DB *sql.DB
	// Dialect is the database's. Required.
	Dialect sqltx.Dialect
	// Retention is how long a handled event is remembered. It must exceed
	// RedeliveryWindow. Default 30 days.
	Retention time.Duration
	// RedeliveryWindow is the longest time after which a copy of an event can
	// still arrive: the broker's retention, plus how long a dead letter may wait
	// for its replay. Default 14 days.
	RedeliveryWindow time.Duration
	// BatchSize is how many rows one transaction deletes at most. Default 1,000.
	BatchSize int
	// Interval is the pause between two passes, jittered by a quarter. Default
	// 10 min.
	Interval time.Duration
	// Logger receives what a pass removed and why one failed. Default
	// slog.Default().
	Logger *slog.Logger
}

// Defaults of CleanerConfig.
const (
	DefaultRetention        = 30 * 24 * time.Hour
	DefaultRedeliveryWindow = 14 * 24 * time.Hour
	DefaultCleanBatch       = 1000
	DefaultCleanInterval    = 10 * time.Minute
)

// WithDefaults returns c with its defaults filled in.
func (c CleanerConfig) WithDefaults() CleanerConfig {
	if c.Retention == 0 {
		c.Retention = DefaultRetention
	}
	if c.RedeliveryWindow == 0 {
		c.RedeliveryWindow = DefaultRedeliveryWindow
	}
	if c.BatchSize == 0 {
		c.BatchSize = DefaultCleanBatch
	}
	if c.Interval == 0 {
		c.Interval = DefaultCleanInterval
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that can't work, by name, value and remedy.
func (c CleanerConfig) Validate() error {
	errs := []error{c.Dialect.Validate(), ValidateRetention(c.Retention, c.RedeliveryWindow)}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.DB == nil {
		bad("inbox: DB is nil: hand in the service's database")
	}
	if c.BatchSize < 1 || c.BatchSize > 100_000 {
		bad("inbox: BatchSize is %d: use 1 to 100,000", c.BatchSize)
	}
	if c.Interval < 0 {
		bad("inbox: Interval is %s: it must be positive", c.Interval)
	}
	return errors.Join(errs...)
}

// ValidateRetention returns an error when keys would be forgotten while a copy
// of their event can still arrive.
func ValidateRetention(retention, redeliveryWindow time.Duration) error {
	if retention <= redeliveryWindow {
		return fmt.Errorf("inbox: Retention is %s, not above the redelivery window of %s: a late copy would run its handler again; raise the retention", retention, redeliveryWindow)
	}
	return nil
}

// Cleaner removes what no redelivery can meet any more, in small transactions,
// so that handlers never wait long for it. Many may run at once.
type Cleaner struct {
	cfg CleanerConfig
	q   querySet
}

// NewCleaner makes a Cleaner.
func NewCleaner(cfg CleanerConfig) (*Cleaner, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Cleaner{cfg: cfg, q: queries[cfg.Dialect]}, nil
}

// Clean makes one pass over the inbox and the dedup claims and returns how many
// rows it removed.
func (c *Cleaner) Clean(ctx context.Context) (int64, error) {
	inbox, err := c.purge(ctx, c.q.purgeInbox, c.cfg.Retention.Microseconds(), c.cfg.BatchSize)
	if err != nil {
		return inbox, fmt.Errorf("inbox: clean up the inbox: %w", err)
	}
	dedup, err := c.purge(ctx, c.q.purgeDedup, c.cfg.BatchSize)
	if err != nil {
		return inbox + dedup, fmt.Errorf("inbox: clean up the dedup claims: %w", err)
	}
	return inbox + dedup, nil
}

func (c *Cleaner) purge(ctx context.Context, query string, args ...any) (total int64, err error) {
	for {
		var n int64
		err := sqltx.Run(ctx, c.cfg.DB, sqltx.Options{Dialect: c.cfg.Dialect, Isolation: c.q.isolation}, func(ctx context.Context, tx *sql.Tx) error {
			res, err := tx.ExecContext(ctx, query, args...)
			if err != nil {
				return err
			}
			n, err = res.RowsAffected()
			return err
		})
		if err != nil {
			return total, err
		}
		total += n
		if n < int64(c.cfg.BatchSize) {
			return total, nil
		}
	}
}

// Run cleans at every interval until the context ends, and then returns nil. A
// pass that fails is logged and made again at the next interval.
func (c *Cleaner) Run(ctx context.Context) error {
	for {
		t := time.NewTimer(c.cfg.Interval*3/4 + rand.N(c.cfg.Interval/2+1))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		n, err := c.Clean(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the pass was broken off by the end of ctx
		case err != nil:
			c.cfg.Logger.WarnContext(ctx, "inbox clean-up failed", "error", err, "next", c.cfg.Interval)
		case n > 0:
			c.cfg.Logger.DebugContext(ctx, "inbox cleaned up", "rows", n)
		}
	}
}
