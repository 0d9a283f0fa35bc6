// Package migrate brings a database's schema up to date from SQL files, over
// goose. Any number of replicas may do so at once: one applies, the others wait
// and find it done.
package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"regexp"
	"slices"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/headrace-go/headrace/framework/sqltx"
)

// Options says how migrations are applied. The zero value of a field means its
// default.
type Options struct {
	// Table records the applied versions. Each set of migrations in a database
	// needs its own. Letters, digits and underscores. Default "schema_version".
	Table string
	// Logger receives one line for each applied migration. Default
	// slog.Default().
	Logger *slog.Logger
	// LockTimeout bounds the wait for another replica that is migrating. Default
	// 5 min.
	LockTimeout time.Duration
}

// Defaults of Options.
const (
	DefaultTable       = "schema_version"
	DefaultLockTimeout = 5 * time.Minute
)

// ErrPending is in the chain of Check's error when migrations are not applied.
var ErrPending = errors.New("migrations are pending")

// ErrNoDDL is in the chain of Up's error when the database role may not change
// the schema and the schema is not current.
var ErrNoDDL = errors.New("the database role may not change the schema")

// WithDefaults returns o with its defaults filled in.
func (o Options) WithDefaults() Options {
	if o.Table == "" {
		o.Table = DefaultTable
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = DefaultLockTimeout
	}
	return o
}

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// Validate reports every field that can't work, by name, value and remedy.
func (o Options) Validate() error {
	var errs []error
	if !tableName.MatchString(o.Table) {
		errs = append(errs, fmt.Errorf("migrate: Table is %q: use letters, digits and underscores, 63 at most", o.Table))
	}
	if o.LockTimeout < 0 {
		errs = append(errs, fmt.Errorf("migrate: LockTimeout is %s: it must be positive", o.LockTimeout))
	}
	return errors.Join(errs...)
}

// engine is what differs between dialects.
type engine struct {
	goose database.Dialect
	// tableExists takes the table's name.
	tableExists string
	// lock keeps every other process out of the migrations of this table until
	// unlock is called or the process ends.
	lock func(ctx context.Context, db *sql.DB, table string) (unlock func() error, err error)
}

var engines = map[sqltx.Dialect]engine{
	sqltx.Postgres: {
		goose:       goose.DialectPostgres,
		tableExists: `SELECT to_regclass(quote_ident($1)) IS NOT NULL`,
		lock:        lockPostgres,
	},
	sqltx.MySQL: {
		goose:       goose.DialectMySQL,
		tableExists: `SELECT EXISTS (SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?)`,
		lock:        lockMySQL,
	},
	sqltx.SQLite: {
		goose:       goose.DialectSQLite3,
		tableExists: `SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = $1)`,
		lock:        lockSQLite,
	},
}

// Up applies the pending migrations of fsys, NNNNN_name.sql files as goose
// writes them. When none is pending it only reads, so a role without the right
// to change the schema is fine then. It never goes back: a schema newer than
// fsys, left by a newer release, is taken as current.
//
// On Postgres and MySQL the replicas queue on a session's lock, which a
// connection pooler in transaction mode does not keep: migrate over a direct
// connection. On SQLite they queue on a lock file beside the database's.
//
// A file is one transaction on Postgres and SQLite. On MySQL each statement that
// changes the schema commits by itself, so a file that fails halfway leaves its
// first half: write one such statement a file, or CREATE TABLE IF NOT EXISTS.
func Up(ctx context.Context, db *sql.DB, d sqltx.Dialect, fsys fs.FS, o Options) (err error) {
	o = o.WithDefaults()
	p, eng, err := prepare(db, d, fsys, o)
	if err != nil {
		return err
	}
	pending, err := pendingVersions(ctx, db, eng, p, o.Table)
	if err != nil || len(pending) == 0 {
		return err
	}
	lockCtx, cancel := context.WithTimeout(ctx, o.LockTimeout)
	defer cancel()
	unlock, err := eng.lock(lockCtx, db, o.Table)
	if err != nil {
		return fmt.Errorf("migrate: wait for the lock on %s: %w", o.Table, err)
	}
	defer func() {
		if e := unlock(); e != nil && err == nil {
			err = fmt.Errorf("migrate: give the lock on %s back: %w", o.Table, e)
		}
	}()
	results, err := p.Up(ctx)
	var partial *goose.PartialError
	if errors.As(err, &partial) {
		results = partial.Applied
	}
	for _, r := range results {
		o.Logger.InfoContext(ctx, "migration applied", "table", o.Table, "file", r.Source.Path, "version", r.Source.Version, "took", r.Duration)
	}
	switch {
	case err == nil:
		return nil
	case sqltx.IsPermission(err):
		return fmt.Errorf("migrate: versions %v of %s are not applied and %w: apply them with a role that owns the schema, or grant this one CREATE on it: %w", pending, o.Table, ErrNoDDL, err)
	case partial != nil:
		return fmt.Errorf("migrate: apply %s of %s: %w", partial.Failed.Source.Path, o.Table, err)
	default:
		return fmt.Errorf("migrate: apply versions %v of %s: %w", pending, o.Table, err)
	}
}

// Check returns nil when every migration of fsys is applied, and an error that
// wraps ErrPending and names the missing ones when not. It changes nothing.
func Check(ctx context.Context, db *sql.DB, d sqltx.Dialect, fsys fs.FS, o Options) error {
	o = o.WithDefaults()
	p, eng, err := prepare(db, d, fsys, o)
	if err != nil {
		return err
	}
	pending, err := pendingVersions(ctx, db, eng, p, o.Table)
	if err != nil {
		return err
	}
	if len(pending) > 0 {
		return fmt.Errorf("migrate: versions %v of %s: %w", pending, o.Table, ErrPending)
	}
	return nil
}

func prepare(db *sql.DB, d sqltx.Dialect, fsys fs.FS, o Options) (*goose.Provider, engine, error) {
	if err := errors.Join(d.Validate(), o.Validate()); err != nil {
		return nil, engine{}, err
	}
	eng, ok := engines[d]
	if !ok {
		return nil, engine{}, fmt.Errorf("migrate: no migrations on dialect %q", string(d))
	}
	p, err := goose.NewProvider(eng.goose, db, fsys, goose.WithTableName(o.Table),
		goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return nil, engine{}, fmt.Errorf("migrate: read the migrations of %s: %w", o.Table, err)
	}
	return p, eng, nil
}

// pendingVersions asks without creating the version table, as goose would.
func pendingVersions(ctx context.Context, db *sql.DB, eng engine, p *goose.Provider, table string) ([]int64, error) {
	var exists bool
	if err := db.QueryRowContext(ctx, eng.tableExists, table).Scan(&exists); err != nil {
		return nil, fmt.Errorf("migrate: look for %s: %w", table, err)
	}
	applied := map[int64]bool{}
	if exists {
		store, err := database.NewStore(eng.goose, table)
		if err != nil {
			return nil, fmt.Errorf("migrate: %w", err)
		}
		rows, err := store.ListMigrations(ctx, db)
		if err != nil {
			return nil, fmt.Errorf("migrate: read %s: %w", table, err)
		}
		// Newest first: the last word on a version is the one that counts.
		for _, r := range slices.Backward(rows) {
			applied[r.Version] = r.IsApplied
		}
	}
	var pending []int64
	for _, s := range p.ListSources() {
		if !applied[s.Version] {
			pending = append(pending, s.Version)
		}
	}
	return pending, nil
}
