// Package testdb gives tests a fresh, migrated database of each kind that the
// service runs on.
package testdb

import (
	"context"
	"database/sql"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/headrace-go/headrace/framework/migrate"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/payments"
)

// DB is one database of a test's own.
type DB struct {
	*sql.DB
	Dialect sqltx.Dialect
}

// Each runs fn on SQLite and on Postgres. Where Postgres does not answer its
// part is skipped, or fails when HEADRACE_TEST_REQUIRE=all.
func Each(t *testing.T, fn func(t *testing.T, db DB)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		fn(t, open(t, "sqlite", sqltx.SQLite, SQLiteDSN(t)))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		fn(t, open(t, "pgx", sqltx.Postgres, PostgresDSN(t)))
	})
}

// SQLite returns a database of its own on SQLite.
func SQLite(t *testing.T) DB {
	t.Helper()
	return open(t, "sqlite", sqltx.SQLite, SQLiteDSN(t))
}

// SQLiteDSN returns the DSN of a new file.
func SQLiteDSN(t testing.TB) string {
	t.Helper()
	return "file:" + filepath.Join(t.TempDir(), "payments.db") +
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)"
}

// PostgresDSN returns the DSN of a new database, which is dropped when the test
// ends. The server is HEADRACE_TEST_POSTGRES.
func PostgresDSN(t testing.TB) string {
	t.Helper()
	dsn := os.Getenv("HEADRACE_TEST_POSTGRES")
	if dsn == "" {
		dsn = "postgres://postgres@127.0.0.1:5432/postgres?sslmode=disable"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	admin, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = admin.Close() })
	if err := admin.PingContext(ctx); err != nil {
		if os.Getenv("HEADRACE_TEST_REQUIRE") == "all" {
			t.Fatalf("Postgres is required (HEADRACE_TEST_REQUIRE=all) and not there: %v", err)
		}
		t.Skipf("did not run: no Postgres: %v", err)
	}
	name := "headrace_payments_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	_, err = admin.ExecContext(ctx, "CREATE DATABASE "+name)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := admin.ExecContext(context.Background(), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		require.NoError(t, err)
	})
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	u.Path = "/" + name
	// The tests crash no server: a commit need not wait for the disk.
	q := u.Query()
	q.Set("synchronous_commit", "off")
	u.RawQuery = q.Encode()
	return u.String()
}

func open(t *testing.T, driver string, d sqltx.Dialect, dsn string) DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	files, err := fs.Sub(payments.Files, "migrations/"+string(d))
	require.NoError(t, err)
	require.NoError(t, migrate.Up(t.Context(), db, d, files, migrate.Options{Table: "payments_schema_version", Logger: slog.New(slog.DiscardHandler)}))
	require.NoError(t, schema.Ensure(t.Context(), db, d, slog.New(slog.DiscardHandler)))
	return DB{DB: db, Dialect: d}
}
