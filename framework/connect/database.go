package connect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/sqltx"
)

const keyDSN = "database.dsn"

// sqliteConns is the most connections to an SQLite file: it has one writer, and
// those beyond a few only poll for its lock.
const sqliteConns = 4

func (c *Connections) openDatabase(ctx context.Context, p config.Profile, logger *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, p.Database.ConnectTimeout)
	defer cancel()
	switch p.Database.Driver {
	case "sqlite":
		return c.openSQLite(ctx, p.Database, logger)
	case "mysql":
		return c.openMySQL(ctx, p.Database, logger)
	default:
		return c.openPostgres(ctx, p.Database, logger)
	}
}

func (c *Connections) openSQLite(ctx context.Context, d config.Database, logger *slog.Logger) error {
	dsn, path, err := c.sqliteDSN(d)
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return fault(c.keyDSN(), path, err, "give a file's path")
	}
	c.onClose(db.Close)
	db.SetMaxOpenConns(min(d.MaxOpenConns, sqliteConns))
	db.SetMaxIdleConns(min(d.MaxIdleConns, sqliteConns))
	// First opens that switch a new file to WAL at the same time fail as busy
	// whatever the timeout: one connection goes first, and another process's is
	// waited for.
	if err := waitFor(ctx, db.PingContext); err != nil {
		return fault(c.keyDSN(), path, err, "check that the folder can be written to and that the file is an SQLite database")
	}
	c.DB, c.Dialect = db, sqltx.SQLite
	logger.DebugContext(ctx, "database open", "driver", "sqlite", "path", path)
	return nil
}

// sqliteDSN turns a path, a file: URI or ":memory:" into what the driver takes,
// and makes the file's folder.
func (c *Connections) sqliteDSN(d config.Database) (dsn, path string, err error) {
	raw := d.DSN.Reveal()
	query := url.Values{}
	synchronous := "FULL" // a message is acked once its effect outlives a power cut
	switch {
	case raw == ":memory:":
		// SQLite's own memory databases have one connection each, and the shared
		// ones lock whole tables: a file that goes with the process behaves like
		// the real thing.
		dir, err := os.MkdirTemp("", "headrace-sqlite-")
		if err != nil {
			return "", "", fault(c.keyDSN(), raw, err, "make the folder for temporary files writable")
		}
		c.onClose(func() error { return os.RemoveAll(dir) })
		path, synchronous = filepath.Join(dir, "memory.db"), "OFF"
	case strings.HasPrefix(raw, "file:"):
		name, q, _ := strings.Cut(strings.TrimPrefix(raw, "file:"), "?")
		if query, err = url.ParseQuery(q); err == nil {
			path, err = url.PathUnescape(name)
		}
		if err != nil {
			return "", "", fault(c.keyDSN(), raw, err, "write file:<path>?<name>=<value>")
		}
		if query.Get("mode") == "memory" {
			return "", "", fault(c.keyDSN(), raw, errors.New("shared memory databases lock whole tables"), "write :memory: or a file's path")
		}
	default:
		path = raw
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return "", "", fault(c.keyDSN(), path, err, "choose a folder that can be made")
	}
	has := func(name string) bool {
		for _, p := range query["_pragma"] {
			if strings.HasPrefix(strings.ToLower(p), name) {
				return true
			}
		}
		return false
	}
	pragma := func(name, value string) {
		if !has(name) {
			query.Add("_pragma", name+"("+value+")")
		}
	}
	pragma("busy_timeout", strconv.FormatInt(d.BusyTimeout.Milliseconds(), 10))
	pragma("journal_mode", "WAL")
	pragma("synchronous", synchronous)
	pragma("foreign_keys", "1")
	if !query.Has("_txlock") {
		// A transaction that reads first and writes later would fail as busy with
		// no way to wait; one that takes the lock at its start waits.
		query.Set("_txlock", "immediate")
	}
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + query.Encode(), path, nil
}

func (c *Connections) openPostgres(ctx context.Context, d config.Database, logger *slog.Logger) error {
	raw := d.DSN.Reveal()
	cfg, err := pgx.ParseConfig(raw)
	if err != nil {
		return fault(c.keyDSN(), config.Redacted, errors.New("it can't be parsed"), "write postgres://user:password@host:5432/database?sslmode=require")
	}
	where := fmt.Sprintf("postgres://%s@%s:%d/%s", cfg.User, cfg.Host, cfg.Port, cfg.Database)
	secrets := []string{raw, cfg.Password}
	db := stdlib.OpenDB(*cfg)
	c.onClose(db.Close)
	db.SetMaxOpenConns(d.MaxOpenConns)
	db.SetMaxIdleConns(d.MaxIdleConns)
	db.SetConnMaxLifetime(d.ConnMaxLifetime)
	if err := waitFor(ctx, db.PingContext); err != nil {
		return fault(c.keyDSN(), where, err, fmt.Sprintf("start the server or correct the address; it was waited for up to database.connect_timeout (%s)", d.ConnectTimeout), secrets...)
	}
	c.DB, c.Dialect = db, sqltx.Postgres
	logger.DebugContext(ctx, "database open", "driver", "postgres", "at", where)
	return c.openWaker(raw, logger)
}

// waitFor calls ping until it succeeds, fails in a way that waiting won't mend,
// or ctx ends; then it returns the last failure.
func waitFor(ctx context.Context, ping func(context.Context) error) error {
	var last error
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := ping(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return firstOf(last, err)
		case !sqltx.IsTransient(err):
			return err
		}
		last = err
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return last
		}
	}
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
