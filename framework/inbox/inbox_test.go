package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework/inbox/inboxtest"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func eachDialect(t *testing.T, fn func(t *testing.T, db *sql.DB, d sqltx.Dialect)) {
	for d, open := range map[sqltx.Dialect]func(testing.TB) *sql.DB{sqltx.Postgres: testenv.Postgres, sqltx.MySQL: testenv.MySQL, sqltx.SQLite: testenv.SQLite} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			db := open(t)
			require.NoError(t, schema.Ensure(t.Context(), db, d, quiet()))
			fn(t, db, d)
		})
	}
}

// While one transaction holds an event's row, a second waits for it: a
// duplicate when the first committed, fresh when it rolled back.
func TestConcurrentDuplicateWaits(t *testing.T) {
	for _, commit := range []bool{true, false} {
		t.Run(fmt.Sprintf("commit=%t", commit), func(t *testing.T) {
			eachDialect(t, func(t *testing.T, db *sql.DB, d sqltx.Dialect) {
				held, release := make(chan struct{}), make(chan struct{})
				first := make(chan error, 1)
				boom := errors.New("no")
				go func() {
					first <- sqltx.Run(t.Context(), db, sqltx.Options{Dialect: d}, func(ctx context.Context, tx *sql.Tx) error {
						fresh, err := Insert(ctx, tx, d, "h", "e", time.Now())
						if err != nil || !fresh {
							return fmt.Errorf("fresh %t: %w", fresh, err)
						}
						close(held)
						<-release
						if !commit {
							return boom
						}
						return nil
					})
				}()
				<-held
				var over atomic.Bool // set before the first transaction may end
				type answer struct {
					fresh, early bool
					err          error
				}
				second := make(chan answer, 1)
				entered := make(chan struct{})
				go func() {
					var a answer
					var once sync.Once
					a.err = sqltx.Run(t.Context(), db, sqltx.Options{Dialect: d}, func(ctx context.Context, tx *sql.Tx) (err error) {
						once.Do(func() { close(entered) })
						a.fresh, err = Insert(ctx, tx, d, "h", "e", time.Now())
						a.early = !over.Load()
						return err
					})
					second <- a
				}()
				if waiting := waits[d]; waiting != "" { // SQLite waits already in BEGIN
					<-entered
					require.Eventually(t, func() bool {
						var n int
						require.NoError(t, db.QueryRow(waiting).Scan(&n))
						return n == 1
					}, 10*time.Second, 5*time.Millisecond, "the second waits for the first")
				}
				over.Store(true)
				close(release)
				if commit {
					require.NoError(t, <-first)
				} else {
					require.ErrorIs(t, <-first, boom)
				}
				a := <-second
				require.NoError(t, a.err)
				require.False(t, a.early)
				require.Equal(t, !commit, a.fresh)
			})
		})
	}
}

// waits counts the transactions of the database that wait for a row.
var waits = map[sqltx.Dialect]string{
	sqltx.Postgres: `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid'`,
	sqltx.MySQL:    `SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'INSERT%' AND time_ms > 20`,
}

// keyColumn is the column key, quoted where it must be.
func keyColumn(d sqltx.Dialect) string {
	if d == sqltx.MySQL {
		return "`key`"
	}
	return "key"
}

// Of many copies at once, on every isolation level, exactly one runs.
func TestOneOfManyRuns(t *testing.T) {
	eachDialect(t, func(t *testing.T, db *sql.DB, d sqltx.Dialect) {
		levels := []sql.IsolationLevel{sql.LevelDefault}
		if d != sqltx.SQLite {
			db.SetMaxOpenConns(10)
			levels = append(levels, sql.LevelRepeatableRead, sql.LevelSerializable)
		}
		for _, level := range levels {
			var ran atomic.Int64
			var wg sync.WaitGroup
			for i := range 40 {
				wg.Go(func() {
					fresh := false
					err := sqltx.Run(t.Context(), db, sqltx.Options{Dialect: d, Isolation: level}, func(ctx context.Context, tx *sql.Tx) (err error) {
						fresh, err = Insert(ctx, tx, d, "h", fmt.Sprint(level, "-", i%4), time.Now())
						return err
					})
					if err != nil {
						t.Error(err)
					}
					if fresh {
						ran.Add(1)
					}
				})
			}
			wg.Wait()
			require.Equal(t, int64(4), ran.Load(), level)
		}
	})
}

func TestInsertKeys(t *testing.T) {
	eachDialect(t, func(t *testing.T, db *sql.DB, d sqltx.Dialect) {
		insert := func(handler, id string) bool {
			fresh, err := Insert(t.Context(), db, d, handler, id, time.Now())
			require.NoError(t, err)
			return fresh
		}
		require.True(t, insert("a", "1"))
		require.False(t, insert("a", "1"))
		require.True(t, insert("b", "1"), "each handler has its own")
		require.True(t, insert("a", "1 "), "no trimming")
		done, err := Handled(t.Context(), db, d, "a", "1")
		require.NoError(t, err)
		require.True(t, done)
		done, err = Handled(t.Context(), db, d, "c", "1")
		require.NoError(t, err)
		require.False(t, done)
		for _, bad := range []string{"", strings.Repeat("x", 256), "a\x00b"} {
			_, err := Insert(t.Context(), db, d, "a", bad, time.Now())
			require.Error(t, err)
			_, err = Insert(t.Context(), db, d, bad, "1", time.Now())
			require.Error(t, err)
		}
		_, err = Insert(t.Context(), db, "oracle", "a", "1", time.Now())
		require.ErrorContains(t, err, "unknown dialect")
	})
}

func storeHarness(t *testing.T, db *sql.DB, d sqltx.Dialect) inboxtest.Harness {
	db.SetMaxOpenConns(10)
	if d == sqltx.SQLite { // its connections poll for the one write lock
		db.SetMaxOpenConns(4)
	}
	first, err := NewSQLStore(db, d)
	require.NoError(t, err)
	second, err := NewSQLStore(db, d)
	require.NoError(t, err)
	c, err := NewCleaner(CleanerConfig{DB: db, Dialect: d, Logger: quiet()})
	require.NoError(t, err)
	return inboxtest.Harness{
		First: first, Second: second,
		Holds: func(ctx context.Context, key string) (bool, error) {
			var n int
			err := db.QueryRowContext(ctx, d.Rebind(`SELECT count(*) FROM headrace_dedup WHERE `+keyColumn(d)+` = $1`), key).Scan(&n)
			return n > 0, err
		},
		Clean: func(ctx context.Context) error {
			_, err := c.Clean(ctx)
			return err
		},
	}
}

func TestStoreConformance(t *testing.T) {
	eachDialect(t, func(t *testing.T, db *sql.DB, d sqltx.Dialect) { inboxtest.Run(t, storeHarness(t, db, d)) })
}

func TestNewSQLStore(t *testing.T) {
	t.Parallel()
	_, err := NewSQLStore(nil, sqltx.SQLite)
	require.ErrorContains(t, err, "db is nil")
	_, err = NewSQLStore(testenv.SQLite(t), "oracle")
	require.ErrorContains(t, err, "unknown dialect")
}

// B46: what is past its retention goes, in batches, and nothing else.
func TestCleaner(t *testing.T) {
	eachDialect(t, func(t *testing.T, db *sql.DB, d sqltx.Dialect) {
		ctx := t.Context()
		now := time.Now()
		for i := range 57 {
			at := now.Add(-48 * time.Hour)
			if i >= 50 {
				at = now
			}
			_, err := Insert(ctx, db, d, "h", fmt.Sprint(i), at)
			require.NoError(t, err)
			_, err = db.Exec(d.Rebind(`INSERT INTO headrace_dedup (`+keyColumn(d)+`, token, done, expires_at) VALUES ($1, 't', TRUE, $2)`), fmt.Sprint(i), at.Add(time.Hour).UnixMicro())
			require.NoError(t, err)
		}
		c, err := NewCleaner(CleanerConfig{DB: db, Dialect: d, Retention: 24 * time.Hour, RedeliveryWindow: time.Hour, BatchSize: 10, Logger: quiet()})
		require.NoError(t, err)
		res, err := db.Exec(c.q.purgeInbox, c.cfg.Retention.Microseconds(), 10)
		require.NoError(t, err)
		n, err := res.RowsAffected()
		require.NoError(t, err)
		require.Equal(t, int64(10), n, "one batch, no more")
		n, err = c.Clean(ctx)
		require.NoError(t, err)
		require.Equal(t, int64(90), n)
		var left int
		require.NoError(t, db.QueryRow(`SELECT (SELECT count(*) FROM headrace_inbox) + (SELECT count(*) FROM headrace_dedup)`).Scan(&left))
		require.Equal(t, 14, left)
	})
}

func TestCleanerRun(t *testing.T) {
	t.Parallel()
	db := testenv.SQLite(t)
	require.NoError(t, schema.Ensure(t.Context(), db, sqltx.SQLite, quiet()))
	_, err := Insert(t.Context(), db, sqltx.SQLite, "h", "old", time.Unix(0, 0))
	require.NoError(t, err)
	c, err := NewCleaner(CleanerConfig{DB: db, Dialect: sqltx.SQLite, Interval: time.Millisecond, Logger: quiet()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	require.Eventually(t, func() bool {
		was, err := Handled(t.Context(), db, sqltx.SQLite, "h", "old")
		require.NoError(t, err)
		return !was
	}, 10*time.Second, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

// B46: a retention within the redelivery window is refused.
func TestCleanerValidate(t *testing.T) {
	t.Parallel()
	_, err := NewCleaner(CleanerConfig{Dialect: sqltx.SQLite, Retention: time.Hour, RedeliveryWindow: time.Hour, BatchSize: -1, Interval: -1})
	for _, want := range []string{"Retention is 1h0m0s", "DB is nil", "BatchSize", "Interval"} {
		require.ErrorContains(t, err, want)
	}
}
