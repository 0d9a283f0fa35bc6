package frameworktest

import (
	"context"
	"database/sql"
	"io/fs"
	"log/slog"
	"strings"
	"testing"

	"github.com/headrace-go/headrace/framework/migrate"
	"github.com/headrace-go/headrace/framework/program"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
)

// DB is a database of a test's own, with Headrace's tables and the service's.
type DB struct {
	*sql.DB
	Dialect sqltx.Dialect
}

// EachDB runs fn on a new database of each kind that a service runs on, in
// parallel: SQLite, Postgres and MySQL (or MariaDB). Files are the service's, of
// which the migrations are applied. Where a server does not answer its part is
// skipped, or fails when HEADRACE_TEST_REQUIRE=all.
func EachDB(t *testing.T, files fs.FS, fn func(t *testing.T, db DB)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		fn(t, SQLite(t, files))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		fn(t, Postgres(t, files))
	})
	t.Run("mysql", func(t *testing.T) {
		t.Parallel()
		fn(t, MySQL(t, files))
	})
}

// SQLite returns a new database in a file, as EachDB does.
func SQLite(t testing.TB, files fs.FS) DB {
	t.Helper()
	return migrated(t, files, DB{DB: testenv.SQLite(t), Dialect: sqltx.SQLite})
}

// Postgres returns a new database on the tests' server, as EachDB does.
func Postgres(t testing.TB, files fs.FS) DB {
	t.Helper()
	dsn := testenv.PostgresDSN(t)
	separator := "?"
	if strings.Contains(dsn, "?") {
		separator = "&"
	}
	// No server is crashed here: a commit need not wait for the disk.
	db := testenv.Open(t, "pgx", dsn+separator+"synchronous_commit=off")
	db.SetMaxOpenConns(maxConns)
	return migrated(t, files, DB{DB: db, Dialect: sqltx.Postgres})
}

// MySQL returns a new database on the tests' MySQL or MariaDB server, as EachDB
// does.
func MySQL(t testing.TB, files fs.FS) DB {
	t.Helper()
	db := testenv.MySQL(t)
	db.SetMaxOpenConns(maxConns)
	return migrated(t, files, DB{DB: db, Dialect: sqltx.MySQL})
}

// maxConns leaves a server's connections to the tests beside this one.
const maxConns = 12

func migrated(t testing.TB, files fs.FS, db DB) DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	quiet := slog.New(slog.DiscardHandler)
	if err := schema.Ensure(ctx, db.DB, db.Dialect, quiet); err != nil {
		t.Fatalf("frameworktest: %v", err)
	}
	own, err := program.Migrations(files, db.Dialect)
	if err != nil {
		t.Fatalf("frameworktest: %v", err)
	}
	if own == nil {
		return db
	}
	if err := migrate.Up(ctx, db.DB, db.Dialect, own, migrate.Options{Table: "service_schema_version", Logger: quiet}); err != nil {
		t.Fatalf("frameworktest: %v", err)
	}
	return db
}
