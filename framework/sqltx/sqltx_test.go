package sqltx_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const writers = 20

// counters makes a table with one counter and a log of commits.
func counters(t *testing.T, db *sql.DB) {
	t.Helper()
	for _, q := range []string{
		`CREATE TABLE counter (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)`,
		`INSERT INTO counter VALUES (1, 0), (2, 0)`,
	} {
		_, err := db.Exec(q)
		require.NoError(t, err)
	}
}

func value(t *testing.T, db *sql.DB, id int) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRow(fmt.Sprint(`SELECT n FROM counter WHERE id = `, id)).Scan(&n))
	return n
}

// increment reads and then writes, which loses updates unless the database
// refuses one of two that meet.
func increment(ctx context.Context, tx *sql.Tx, ids ...int) error {
	for _, id := range ids {
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT n FROM counter WHERE id = $1`, id).Scan(&n); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		runtime.Gosched()
		if _, err := tx.ExecContext(ctx, `UPDATE counter SET n = $1 WHERE id = $2`, n+1, id); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}

// contend has 20 writers do fn 5 times each, and returns how often a transaction
// was replayed and why.
func contend(t *testing.T, db *sql.DB, opts sqltx.Options, fn func(ctx context.Context, tx *sql.Tx, writer int) error) (replays int64, why error) {
	t.Helper()
	var n atomic.Int64
	var mu sync.Mutex
	opts.OnReplay = func(_ context.Context, _ int, err error) {
		n.Add(1)
		mu.Lock()
		defer mu.Unlock()
		why = err
	}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for range 5 {
				if err := sqltx.Run(t.Context(), db, opts, func(ctx context.Context, tx *sql.Tx) error { return fn(ctx, tx, w) }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return n.Load(), why
}

// B40: serialization failures (40001) and deadlocks (40P01) among 20 writers,
// also where the server speaks German: each transaction is replayed as a whole
// until it commits, and nothing is lost or doubled.
func TestPostgresConflicts(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	db.SetMaxOpenConns(writers)
	counters(t, db)
	for _, lang := range []string{"C", "de_DE.utf8"} {
		// A server without that language keeps the setting and its own messages.
		_, err := db.Exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET lc_messages = ''` + lang + `''', current_database()); EXCEPTION WHEN OTHERS THEN NULL; END $$`)
		require.NoError(t, err)
		db.SetMaxIdleConns(0) // new sessions, with the new setting
		db.SetMaxIdleConns(writers)

		before := value(t, db, 1)
		replays, why := contend(t, db, sqltx.Options{Dialect: sqltx.Postgres, Isolation: sql.LevelSerializable}, func(ctx context.Context, tx *sql.Tx, _ int) error {
			return increment(ctx, tx, 1)
		})
		require.Equal(t, before+5*writers, value(t, db, 1))
		require.Positive(t, replays, "there was something to replay")
		require.True(t, sqltx.IsTransient(why))
	}

	before1, before2 := value(t, db, 1), value(t, db, 2)
	replays, _ := contend(t, db, sqltx.Options{Dialect: sqltx.Postgres}, func(ctx context.Context, tx *sql.Tx, w int) error {
		if _, err := tx.ExecContext(ctx, `SET LOCAL deadlock_timeout = '5ms'`); err != nil {
			return err
		}
		ids := []int{1, 2}
		if w%2 == 0 {
			ids = []int{2, 1}
		}
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, `UPDATE counter SET n = n + 1 WHERE id = $1`, id); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `SELECT pg_sleep(0.001)`); err != nil {
				return err
			}
		}
		return nil
	})
	require.Equal(t, before1+5*writers, value(t, db, 1))
	require.Equal(t, before2+5*writers, value(t, db, 2))
	require.Positive(t, replays, "there was a deadlock")
}

// B40: deadlocks (1213), lock waits that time out (1205) and, where the server
// has it, stale snapshots (1020) among 20 writers on MySQL, in French too.
func TestMySQLConflicts(t *testing.T) {
	t.Parallel()
	dsn := testenv.MySQLDSN(t)
	cfg, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	// A server without that language has its own messages.
	cfg.Params = map[string]string{"innodb_lock_wait_timeout": "1", "lc_messages": "'fr_FR'"}
	db := testenv.Open(t, "mysql", cfg.FormatDSN())
	db.SetMaxOpenConns(writers)
	counters(t, db)
	replays, why := contend(t, db, sqltx.Options{Dialect: sqltx.MySQL}, func(ctx context.Context, tx *sql.Tx, w int) error {
		ids := []int{1, 2}
		if w%2 == 0 {
			ids = []int{2, 1}
		}
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, `UPDATE counter SET n = n + 1 WHERE id = ?`, id); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `DO SLEEP(0.001)`); err != nil {
				return err
			}
		}
		return nil
	})
	require.Equal(t, 5*writers, value(t, db, 1))
	require.Equal(t, 5*writers, value(t, db, 2))
	require.Positive(t, replays, "there was a deadlock")
	require.True(t, sqltx.IsTransient(why))

	// A writer that holds the row past the others' timeout.
	holder, err := db.Begin()
	require.NoError(t, err)
	_, err = holder.Exec(`UPDATE counter SET n = n + 1 WHERE id = 1`)
	require.NoError(t, err)
	require.NoError(t, sqltx.Run(t.Context(), db, sqltx.Options{Dialect: sqltx.MySQL,
		OnReplay: func(_ context.Context, _ int, err error) {
			why = err
			require.NoError(t, holder.Commit())
		}}, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE counter SET n = n + 1 WHERE id = 1`)
		return err
	}))
	var said *mysql.MySQLError
	require.ErrorAs(t, why, &said)
	require.Equal(t, uint16(1205), said.Number)
	require.Equal(t, 5*writers+2, value(t, db, 1))

	// A connection lost in the middle.
	proxy := testenv.NewProxy(t, testenv.MySQLAddr(t, dsn))
	behind := testenv.Open(t, "mysql", testenv.MySQLWithAddr(t, dsn, proxy.Addr()))
	calls := 0
	require.NoError(t, sqltx.Run(t.Context(), behind, sqltx.Options{Dialect: sqltx.MySQL,
		OnReplay: func(context.Context, int, error) { proxy.Restore() }}, func(ctx context.Context, tx *sql.Tx) error {
		if calls++; calls == 1 {
			proxy.Cut()
		}
		_, err := tx.ExecContext(ctx, `SELECT 1`)
		return err
	}))
	require.Equal(t, 2, calls)
}

// B40: SQLITE_BUSY among 20 writers without a busy timeout, and the stale
// snapshot of a read that turns into a write.
func TestSQLiteBusy(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]string{"immediate": "immediate", "deferred": "deferred"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := strings.NewReplacer("busy_timeout(10000)", "busy_timeout(0)", "_txlock=immediate", "_txlock="+lock).Replace(testenv.SQLiteDSN(t))
			db := testenv.Open(t, "sqlite", dsn)
			counters(t, db)
			replays, why := contend(t, db, sqltx.Options{Dialect: sqltx.SQLite, BackoffCap: 20 * time.Millisecond}, func(ctx context.Context, tx *sql.Tx, _ int) error {
				return increment(ctx, tx, 1)
			})
			require.Equal(t, 5*writers, value(t, db, 1))
			require.Positive(t, replays)
			require.True(t, sqltx.IsTransient(why))
		})
	}
}

func TestUniqueAndPermission(t *testing.T) {
	t.Parallel()
	for driverName, db := range map[string]*sql.DB{"pgx": testenv.Postgres(t), "mysql": testenv.MySQL(t), "sqlite": testenv.SQLite(t)} {
		_, err := db.Exec(`CREATE TABLE u (a INTEGER PRIMARY KEY, b INTEGER UNIQUE NOT NULL)`)
		require.NoError(t, err)
		_, err = db.Exec(`INSERT INTO u VALUES (1, 1)`)
		require.NoError(t, err)
		for _, q := range []string{`INSERT INTO u VALUES (1, 2)`, `INSERT INTO u VALUES (2, 1)`} {
			_, err = db.Exec(q)
			require.True(t, sqltx.IsUniqueViolation(fmt.Errorf("wrapped: %w", err)), driverName)
			require.False(t, sqltx.IsTransient(err))
		}
		_, err = db.Exec(`INSERT INTO u VALUES (3, NULL)`)
		require.Error(t, err)
		require.False(t, sqltx.IsUniqueViolation(err), driverName)
		require.False(t, sqltx.IsPermission(err), driverName)
	}
}

// state is an error of a driver that speaks SQLSTATE.
type state string

func (s state) Error() string    { return "Fehler" }
func (s state) SQLState() string { return string(s) }

// MySQLError has the shape of the MySQL driver's.
type MySQLError struct {
	Number  uint16
	Message string
}

func (e *MySQLError) Error() string { return e.Message }

// httpError has a Code as many libraries' errors do.
type httpError struct{}

func (httpError) Error() string { return "deadlock detected, database is locked" }
func (httpError) Code() int     { return 5 }

// B40: errors are told by code. Text, in any language, says nothing.
func TestIsTransient(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		state("40001"), state("40P01"), state("55P03"), state("08006"), state("57P01"), state("53300"),
		&MySQLError{Number: 1213}, &MySQLError{Number: 1205},
		driver.ErrBadConn, io.ErrUnexpectedEOF, &net.OpError{Op: "dial", Err: errors.New("refused")},
	} {
		require.True(t, sqltx.IsTransient(err), "%#v", err)
		require.True(t, sqltx.IsTransient(fmt.Errorf("a: %w", errors.Join(errors.New("b"), fmt.Errorf("c: %w", err)))), "%#v wrapped", err)
	}
	for _, err := range []error{
		nil, errors.New("ERROR: deadlock detected (SQLSTATE 40P01)"), state("23505"), state("25P02"), state("42501"),
		&MySQLError{Number: 1062}, httpError{}, context.Canceled, context.DeadlineExceeded,
		fmt.Errorf("%w: %w", context.Canceled, state("57P01")), sql.ErrNoRows, sql.ErrTxDone,
	} {
		require.False(t, sqltx.IsTransient(err), "%#v", err)
	}
	require.True(t, sqltx.IsUniqueViolation(&MySQLError{Number: 1062}))
	require.True(t, sqltx.IsPermission(state("42501")))
	require.True(t, sqltx.IsPermission(&MySQLError{Number: 1142}))
}

func TestRunGivesUp(t *testing.T) {
	t.Parallel()
	db := testenv.SQLite(t)
	calls := 0
	fail := func(context.Context, *sql.Tx) error { calls++; return state("40001") }
	err := sqltx.Run(t.Context(), db, sqltx.Options{Dialect: sqltx.SQLite, MaxElapsed: 30 * time.Millisecond}, fail)
	require.ErrorIs(t, err, state("40001"))
	require.ErrorContains(t, err, "given up after")
	require.Greater(t, calls, 1)

	calls = 0
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("shutting down")
	err = sqltx.Run(ctx, db, sqltx.Options{Dialect: sqltx.SQLite, MaxElapsed: -1, BackoffBase: time.Hour, BackoffCap: time.Hour,
		OnReplay: func(context.Context, int, error) { cancel(why) }}, fail)
	require.ErrorIs(t, err, why)
	require.ErrorIs(t, err, state("40001"))
	require.Equal(t, 1, calls)

	permanent := errors.New("no such customer")
	calls = 0
	require.Equal(t, permanent, sqltx.Run(t.Context(), db, sqltx.Options{Dialect: sqltx.SQLite}, func(context.Context, *sql.Tx) error {
		calls++
		return permanent
	}))
	require.Equal(t, 1, calls)
	require.ErrorContains(t, sqltx.Run(t.Context(), db, sqltx.Options{}, fail), "unknown dialect")
}

// Panics and Goexit roll back and go on; hooks run after the commit and only
// then, once, for the attempt that committed.
func TestRollbackAndHooks(t *testing.T) {
	t.Parallel()
	db := testenv.SQLite(t)
	db.SetMaxOpenConns(1) // a transaction left open would hang what follows
	counters(t, db)
	opts := sqltx.Options{Dialect: sqltx.SQLite}
	var ran []string
	run := func(fn func(ctx context.Context, tx *sql.Tx) error) error {
		return sqltx.Run(t.Context(), db, opts, func(ctx context.Context, tx *sql.Tx) error {
			if err := increment(ctx, tx, 1); err != nil {
				return err
			}
			return fn(ctx, tx)
		})
	}
	require.PanicsWithValue(t, "x", func() {
		_ = run(func(ctx context.Context, _ *sql.Tx) error {
			sqltx.AfterCommit(ctx, func() { ran = append(ran, "panic") })
			panic("x")
		})
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = run(func(context.Context, *sql.Tx) error { runtime.Goexit(); return nil })
	}()
	<-done
	require.Zero(t, value(t, db, 1))

	attempts := 0
	var kept context.Context
	require.NoError(t, run(func(ctx context.Context, _ *sql.Tx) error {
		attempts++
		kept = ctx
		require.True(t, sqltx.AfterCommit(ctx, func() { ran = append(ran, fmt.Sprint("attempt ", attempts)) }))
		require.True(t, sqltx.AfterCommit(ctx, func() { ran = append(ran, "second") }))
		if attempts < 3 {
			return state("40001")
		}
		require.Empty(t, ran)
		return nil
	}))
	require.Equal(t, []string{"attempt 3", "second"}, ran)
	require.Equal(t, 1, value(t, db, 1))
	require.False(t, sqltx.AfterCommit(t.Context(), func() { t.Error("called") }), "no transaction")
	require.False(t, sqltx.AfterCommit(kept, func() { t.Error("called") }), "too late")
}

// A connection lost under the commit leaves its outcome open: Run says so and
// does not replay, since the transaction may have taken effect.
func TestCommitUnknown(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	direct := testenv.Open(t, "pgx", dsn)
	// A commit that takes a while: the trigger runs in it.
	_, err := direct.Exec(`CREATE TABLE slow (id INTEGER);
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()`)
	require.NoError(t, err)
	proxy := testenv.NewProxy(t, testenv.PostgresAddr(t, dsn))
	db := testenv.Open(t, "pgx", testenv.WithAddr(t, dsn, proxy.Addr()))
	calls := 0
	result := make(chan error, 1)
	go func() {
		result <- sqltx.Run(t.Context(), db, sqltx.Options{Dialect: sqltx.Postgres}, func(ctx context.Context, tx *sql.Tx) error {
			calls++
			_, err := tx.ExecContext(ctx, `INSERT INTO slow VALUES (1)`)
			return err
		})
	}()
	require.Eventually(t, func() bool {
		var n int
		require.NoError(t, direct.QueryRow(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`).Scan(&n))
		return n == 1
	}, 10*time.Second, 5*time.Millisecond)
	proxy.Cut()
	err = <-result
	require.ErrorIs(t, err, sqltx.ErrCommitUnknown)
	require.Equal(t, 1, calls)
	require.True(t, sqltx.IsTransient(err), "a caller whose work is idempotent may try again")
}

// A connection lost before the commit is replayed on a new one.
func TestLostConnectionIsReplayed(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	proxy := testenv.NewProxy(t, testenv.PostgresAddr(t, dsn))
	db := testenv.Open(t, "pgx", testenv.WithAddr(t, dsn, proxy.Addr()))
	calls := 0
	require.NoError(t, sqltx.Run(t.Context(), db, sqltx.Options{Dialect: sqltx.Postgres,
		OnReplay: func(context.Context, int, error) { proxy.Restore() }}, func(ctx context.Context, tx *sql.Tx) error {
		if calls++; calls == 1 {
			proxy.Cut()
		}
		_, err := tx.ExecContext(ctx, `SELECT 1`)
		return err
	}))
	require.Equal(t, 2, calls)
}

func TestRebind(t *testing.T) {
	t.Parallel()
	const q = `SELECT "$1", '$2 it''s', a -- $3
FROM t WHERE b = $1 AND c = $12`
	require.Equal(t, q, sqltx.Postgres.Rebind(q))
	require.Equal(t, q, sqltx.SQLite.Rebind(q))
	require.Equal(t, `SELECT "$1", '$2 it''s', a -- $3
FROM t WHERE b = ? AND c = ?`, sqltx.Dialect("mysql").Rebind(q))
	require.Equal(t, "a $ 'open $1", sqltx.Dialect("mysql").Rebind("a $ 'open $1"))
}

func ExampleRun() {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	err = sqltx.Run(context.Background(), db, sqltx.Options{Dialect: sqltx.SQLite}, func(ctx context.Context, tx *sql.Tx) error {
		sqltx.AfterCommit(ctx, func() { fmt.Println("committed") })
		_, err := tx.ExecContext(ctx, `CREATE TABLE orders (id TEXT PRIMARY KEY)`)
		return err
	})
	fmt.Println(err)
	// Output:
	// committed
	// <nil>
}
