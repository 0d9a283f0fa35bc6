package migrate_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework/migrate"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func files(sql ...string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for i, q := range sql {
		fsys[fmt.Sprintf("%05d_step.sql", i+1)] = &fstest.MapFile{Data: []byte("-- +goose Up\n" + q + "\n")}
	}
	return fsys
}

// B41: five replicas, each with a pool of its own, start at once on an empty
// database. All succeed, and each migration was applied once: the second would
// double the row's value if it ran twice.
func TestFiveReplicasAtOnce(t *testing.T) {
	for d, driver := range map[sqltx.Dialect]string{sqltx.Postgres: "pgx", sqltx.MySQL: "mysql", sqltx.SQLite: "sqlite"} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			dsn := testenv.SQLiteDSN
			switch d {
			case sqltx.Postgres:
				dsn = testenv.PostgresDSN
			case sqltx.MySQL:
				dsn = testenv.MySQLDSN
			}
			at := dsn(t)
			first := testenv.Open(t, driver, at)
			own := files(
				`CREATE TABLE things (id INTEGER PRIMARY KEY, n INTEGER NOT NULL);
INSERT INTO things VALUES (1, 1);`,
				`UPDATE things SET n = n * 2;`,
				`ALTER TABLE things ADD COLUMN name TEXT;`)
			var wg sync.WaitGroup
			start := make(chan struct{})
			for range 5 {
				db := testenv.Open(t, driver, at)
				if d == sqltx.SQLite {
					db.SetMaxOpenConns(1)
				}
				wg.Go(func() {
					<-start
					if err := schema.Ensure(context.Background(), db, d, quiet()); err != nil {
						t.Error(err)
					}
					if err := migrate.Up(context.Background(), db, d, own, migrate.Options{Logger: quiet()}); err != nil {
						t.Error(err)
					}
				})
			}
			close(start)
			wg.Wait()
			var n, versions int
			require.NoError(t, first.QueryRow(`SELECT n FROM things`).Scan(&n))
			require.Equal(t, 2, n)
			require.NoError(t, first.QueryRow(`SELECT count(*) FROM schema_version`).Scan(&versions))
			require.Equal(t, 4, versions, "zero and three")
			require.NoError(t, schema.Check(t.Context(), first, d))
			require.NoError(t, migrate.Check(t.Context(), first, d, own, migrate.Options{}))
		})
	}
}

// B41: a role that may not change the schema starts when that is current, and
// says so plainly when it is not.
func TestRoleWithoutDDL(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	owner := testenv.Open(t, "pgx", dsn)
	role := "headrace_test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	_, err := owner.Exec(`CREATE ROLE ` + role + ` LOGIN`)
	require.NoError(t, err)
	_, err = owner.Exec(`REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	require.NoError(t, err)
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	u.User = url.User(role)
	app, err := sql.Open("pgx", u.String())
	require.NoError(t, err)
	t.Cleanup(func() {
		app.Close()
		_, err := owner.Exec(`DROP OWNED BY ` + role)
		require.NoError(t, err)
		_, err = owner.Exec(`DROP ROLE ` + role)
		require.NoError(t, err)
	})
	if err := app.Ping(); err != nil {
		t.Fatalf("the server lets no new role in without a password: %v", err)
	}

	err = schema.Ensure(t.Context(), app, sqltx.Postgres, quiet())
	require.ErrorIs(t, err, migrate.ErrNoDDL)
	require.ErrorContains(t, err, "versions [1 2 3")
	require.ErrorContains(t, err, "grant this one CREATE")
	require.ErrorIs(t, schema.Check(t.Context(), app, sqltx.Postgres), migrate.ErrPending)

	require.NoError(t, schema.Ensure(t.Context(), owner, sqltx.Postgres, quiet()))
	_, err = owner.Exec(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO ` + role)
	require.NoError(t, err)
	require.NoError(t, schema.Ensure(t.Context(), app, sqltx.Postgres, quiet()))
}

// A migration that fails leaves the ones before it, names itself, and is applied
// once it is mended; a newer schema than the program's is taken as current.
func TestFailedMigration(t *testing.T) {
	t.Parallel()
	for d, open := range map[sqltx.Dialect]func(testing.TB) *sql.DB{sqltx.Postgres: testenv.Postgres, sqltx.MySQL: testenv.MySQL, sqltx.SQLite: testenv.SQLite} {
		db := open(t)
		o := migrate.Options{Table: "my_versions", Logger: quiet()}
		err := migrate.Up(t.Context(), db, d, files(`CREATE TABLE a (id INTEGER);`, `CREATE TABLE IF NOT EXISTS b (id INTEGER);
SELECT nonsense;`), o)
		require.ErrorContains(t, err, "my_versions")
		require.ErrorContains(t, err, "00002_step.sql")
		whole := files(`CREATE TABLE a (id INTEGER);`, `CREATE TABLE IF NOT EXISTS b (id INTEGER);`)
		require.ErrorIs(t, migrate.Check(t.Context(), db, d, whole, o), migrate.ErrPending)
		require.NoError(t, migrate.Up(t.Context(), db, d, whole, o))
		require.NoError(t, migrate.Up(t.Context(), db, d, files(`CREATE TABLE a (id INTEGER);`), o))
		_, err = db.Exec(`INSERT INTO b VALUES (1)`)
		require.NoError(t, err)
	}
}

// B41 on MySQL: a user who may not change the schema.
func TestUserWithoutDDL(t *testing.T) {
	t.Parallel()
	dsn := testenv.MySQLDSN(t)
	owner := testenv.Open(t, "mysql", dsn)
	user := "hr_" + strings.ReplaceAll(uuid.NewString(), "-", "")[:20]
	_, err := owner.Exec(`CREATE USER ` + user + ` IDENTIFIED BY 'pw'`)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := owner.Exec(`DROP USER ` + user)
		require.NoError(t, err)
	})
	cfg, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	_, err = owner.Exec("GRANT SELECT, INSERT, UPDATE, DELETE ON `" + cfg.DBName + "`.* TO " + user)
	require.NoError(t, err)
	cfg.User, cfg.Passwd = user, "pw"
	app := testenv.Open(t, "mysql", cfg.FormatDSN())
	err = schema.Ensure(t.Context(), app, sqltx.MySQL, quiet())
	require.ErrorIs(t, err, migrate.ErrNoDDL)
	require.ErrorContains(t, err, "versions [1 2 3")
	require.NoError(t, schema.Ensure(t.Context(), owner, sqltx.MySQL, quiet()))
	require.NoError(t, schema.Ensure(t.Context(), app, sqltx.MySQL, quiet()))
}

func TestLockIsLeftBySQLite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "a b%3f#.db") // nothing in a path is special
	db := testenv.Open(t, "sqlite", "file:"+url.PathEscape(file))
	require.NoError(t, schema.Ensure(t.Context(), db, sqltx.SQLite, quiet()))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Contains(t, names, "a b%3f#.db-headrace_schema_version.lock")

	memory := testenv.Open(t, "sqlite", ":memory:")
	memory.SetMaxOpenConns(1)
	require.NoError(t, schema.Ensure(t.Context(), memory, sqltx.SQLite, quiet()))
	require.NoError(t, schema.Check(t.Context(), memory, sqltx.SQLite))
}

func TestValidate(t *testing.T) {
	t.Parallel()
	err := migrate.Up(t.Context(), nil, "oracle", files(), migrate.Options{Table: "a; DROP TABLE b", LockTimeout: -1})
	require.ErrorContains(t, err, "unknown dialect")
	require.ErrorContains(t, err, "Table is")
	require.ErrorContains(t, err, "LockTimeout")
	require.Error(t, migrate.Up(t.Context(), testenv.SQLite(t), sqltx.SQLite, files(), migrate.Options{}), "no migrations are a mistake")
	one := testenv.Postgres(t)
	one.SetMaxOpenConns(1)
	require.ErrorContains(t, schema.Ensure(t.Context(), one, sqltx.Postgres, quiet()), "raise MaxOpenConns")
}
