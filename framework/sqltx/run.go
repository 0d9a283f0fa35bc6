package sqltx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Options says how Run runs a transaction. The zero value of a field means its
// default.
type Options struct {
	// Dialect is the database's. Required.
	Dialect Dialect
	// Isolation of the transaction. Default: the database's own (read committed
	// on Postgres; SQLite is always serializable and takes no other).
	Isolation sql.IsolationLevel
	// ReadOnly says that the transaction writes nothing. Default false.
	ReadOnly bool
	// MaxElapsed bounds the time from the call to the start of the last replay.
	// Default 30 s. Negative: replay until the context ends.
	MaxElapsed time.Duration
	// BackoffBase and BackoffCap shape the pause before replay n: a random time
	// up to min(cap, base x 2^n). Defaults 5 ms and 1 s.
	BackoffBase time.Duration
	BackoffCap  time.Duration
	// OnReplay, when set, is called before each pause with the number of the
	// attempt that failed (from 1) and why.
	OnReplay func(ctx context.Context, attempt int, err error)
}

// Defaults of Options.
const (
	DefaultMaxElapsed  = 30 * time.Second
	DefaultBackoffBase = 5 * time.Millisecond
	DefaultBackoffCap  = time.Second
)

// WithDefaults returns o with its defaults filled in.
func (o Options) WithDefaults() Options {
	if o.MaxElapsed == 0 {
		o.MaxElapsed = DefaultMaxElapsed
	}
	if o.BackoffBase == 0 {
		o.BackoffBase = DefaultBackoffBase
	}
	if o.BackoffCap == 0 {
		o.BackoffCap = DefaultBackoffCap
	}
	return o
}

// Validate reports every field that can't work, by name, value and remedy.
func (o Options) Validate() error {
	errs := []error{o.Dialect.Validate()}
	if o.BackoffBase < 0 || o.BackoffCap < o.BackoffBase {
		errs = append(errs, fmt.Errorf("sqltx: BackoffBase %s and BackoffCap %s: they must be positive and the cap no less than the base", o.BackoffBase, o.BackoffCap))
	}
	return errors.Join(errs...)
}

// ErrCommitUnknown is in the chain of Run's error when the connection was lost
// while the commit was under way, so that nobody can tell whether it took
// effect. Run does not replay then; a caller whose work is idempotent may.
var ErrCommitUnknown = errors.New("the commit's outcome is unknown")

// Run runs fn in a transaction and commits it. When fn or the commit fails with
// an error that IsTransient, the transaction is rolled back and the whole of it
// replayed after a jittered pause, until the context ends or MaxElapsed has
// passed; so fn must have no effect outside tx. Any other error of fn rolls back
// and is returned as it is. A panic or runtime.Goexit in fn rolls back and goes
// on.
//
// fn's context carries the transaction's after-commit hooks: see AfterCommit.
// fn must use tx only until it returns, from one goroutine at a time, and must
// not commit or roll it back.
func Run(ctx context.Context, db *sql.DB, opts Options, fn func(ctx context.Context, tx *sql.Tx) error) error {
	opts = opts.WithDefaults()
	if err := opts.Validate(); err != nil {
		return err
	}
	start := time.Now()
	for attempt := 1; ; attempt++ {
		err := once(ctx, db, opts, fn)
		if err == nil || !IsTransient(err) || errors.Is(err, ErrCommitUnknown) || ctx.Err() != nil {
			return err
		}
		pause := backoff(attempt-1, opts.BackoffBase, opts.BackoffCap)
		if opts.MaxElapsed > 0 && time.Since(start)+pause > opts.MaxElapsed {
			return fmt.Errorf("transaction given up after %d attempts in %s: %w", attempt, time.Since(start).Round(time.Millisecond), err)
		}
		if opts.OnReplay != nil {
			opts.OnReplay(ctx, attempt, err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("transaction given up after %d attempts: %w: last failure: %w", attempt, context.Cause(ctx), err)
		}
	}
}

func once(ctx context.Context, db *sql.DB, opts Options, fn func(ctx context.Context, tx *sql.Tx) error) error {
	var txOpts *sql.TxOptions
	if opts.Isolation != sql.LevelDefault || opts.ReadOnly {
		txOpts = &sql.TxOptions{Isolation: opts.Isolation, ReadOnly: opts.ReadOnly}
	}
	tx, err := db.BeginTx(ctx, txOpts)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	finished := false
	defer func() {
		// Also on a panic and on Goexit. After a commit it does nothing.
		if !finished {
			_ = tx.Rollback()
		}
	}()
	h := &hooks{}
	if err := fn(context.WithValue(ctx, hooksKey{}, h), tx); err != nil {
		return err
	}
	err = tx.Commit()
	finished = true
	if err != nil {
		// A refused commit names its conflict. Anything else that isn't an answer
		// of the server leaves the outcome open.
		if !isConflict(err) && isConnection(err) && !notSent(err) {
			return fmt.Errorf("commit transaction: %w: %w", ErrCommitUnknown, err)
		}
		return fmt.Errorf("commit transaction: %w", err)
	}
	h.run()
	return nil
}

// backoff returns a random pause up to min(ceiling, base x 2^n).
func backoff(n int, base, ceiling time.Duration) time.Duration {
	limit := ceiling
	if n < 32 && base<<n < ceiling && base<<n > 0 {
		limit = base << n
	}
	return rand.N(limit + 1)
}
