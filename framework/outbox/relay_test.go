package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
)

// B27: three relays and writers at once; each of 1,000 rows is published once,
// in order of its key.
func TestThreeRelaysPublishOnceInOrder(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		b := newFakeBroker()
		var wake []func()
		for range 3 {
			db := testenv.Open(t, driverOf(e.dialect), e.dsn)
			db.SetMaxOpenConns(8)
			r := e.relay(t, b, func(c *RelayConfig) { c.DB, c.BatchSize = db, 20 })
			wake = append(wake, r.Wake)
			run(t, r)
		}
		w := e.writer(t, func() {
			for _, f := range wake {
				f()
			}
		})
		var wg sync.WaitGroup
		for k := range 10 {
			wg.Go(func() {
				for i := range 100 {
					e.write(t, w, msg("orders", fmt.Sprint("k", k), i))
				}
			})
		}
		wg.Wait()
		got := b.await(t, 1000)
		eventually(t, "the table is empty", func() bool { return e.count(t, "1=1") == 0 })
		requireOnce(t, b.all(), 1000)
		requireOrder(t, got)
	})
}

func driverOf(d sqltx.Dialect) string {
	switch d {
	case sqltx.Postgres:
		return "pgx"
	case sqltx.MySQL:
		return "mysql"
	default:
		return "sqlite"
	}
}

// A row whose transaction commits long after others took higher offsets is not
// skipped, and a row of its key that was written after that commit comes second.
func TestLateCommitIsNotSkipped(t *testing.T) {
	t.Parallel()
	e := newEnv(t, sqltx.Postgres)
	b := newFakeBroker()
	r := e.relay(t, b)
	w := e.writer(t, r.Wake)
	run(t, r)
	store := r.store.(*postgresStore)

	late, err := e.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(t.Context(), late, msg("orders", "late", 0)))
	for i := range 50 {
		e.write(t, w, msg("orders", "k", i))
	}
	b.await(t, 50)
	// The floor must stay at or below the late row, however often it is moved.
	for range 5 {
		require.NoError(t, store.maintain(t.Context()))
	}
	require.LessOrEqual(t, store.floor.get(shardOf("late")), int64(1))
	require.NoError(t, late.Commit())
	e.write(t, w, msg("orders", "late", 1))
	got := b.await(t, 52)
	requireOnce(t, got, 52)
	requireOrder(t, got)

	eventually(t, "the floor follows once nobody writes below it", func() bool {
		require.NoError(t, store.maintain(t.Context()))
		return store.floor.get(shardOf("late")) == 53
	})
	e.write(t, w, msg("orders", "k", 50))
	b.await(t, 53)
}

// The floor is no wall for rows held back: they are found by their own index.
func TestHeldRowBelowTheFloor(t *testing.T) {
	t.Parallel()
	e := newEnv(t, sqltx.Postgres)
	b := newFakeBroker()
	r := e.relay(t, b)
	store := r.store.(*postgresStore)
	w := e.writer(t, nil)
	e.write(t, w, msg("orders", "k", 0))
	_, err := e.db.Exec(`UPDATE ` + schema.OutboxTable + ` SET state = 1, next_attempt_at = now()`)
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, store.maintain(t.Context()))
	}
	require.Equal(t, int64(2), store.floor.get(shardOf("k")))
	e.write(t, w, msg("orders", "k", 1))
	require.NoError(t, r.Flush(t.Context()))
	requireOnce(t, b.all(), 2)
	requireOrder(t, b.all())
}

// The claim's plan reads each shard in order of its index, without a sort, when
// the planner knows nothing good about the table.
func TestClaimNeedsNoSort(t *testing.T) {
	t.Parallel()
	e := newEnv(t, sqltx.Postgres)
	_, err := e.db.Exec(`ANALYZE ` + schema.OutboxTable) // of an empty table
	require.NoError(t, err)
	w := e.writer(t, nil)
	var msgs []Message
	for i := range 3000 {
		msgs = append(msgs, msg("orders", fmt.Sprint("k", i), 0))
	}
	e.write(t, w, msgs...)
	r := e.relay(t, newFakeBroker())
	s := r.store.(*postgresStore)
	tx, err := e.db.Begin()
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	got, err := s.lock(t.Context(), tx, []int{0, 1, 2, 3})
	require.NoError(t, err)
	require.ElementsMatch(t, []int{0, 1, 2, 3}, got)
	rows, err := tx.Query(`EXPLAIN `+s.qReady, "{0,1,2,3}", "{0,0,0,0}", 100)
	require.NoError(t, err)
	defer rows.Close()
	plan := ""
	for rows.Next() {
		var line string
		require.NoError(t, rows.Scan(&line))
		plan += line + "\n"
	}
	require.Contains(t, plan, "Index Scan using "+schema.OutboxTable+"_ready")
	require.NotContains(t, plan, "Sort")
	require.NotContains(t, plan, "Seq Scan on "+schema.OutboxTable)
	require.NotContains(t, plan, "Bitmap")
}

// B46: sent rows go in small batches once their retention is over; rows that
// were not sent stay, however old.
func TestRetention(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		b := newFakeBroker()
		r := e.relay(t, b, func(c *RelayConfig) { c.Retention = time.Hour })
		w := e.writer(t, nil)
		var msgs []Message
		for i := range 2500 {
			msgs = append(msgs, msg("orders", "", i))
		}
		e.write(t, w, msgs...)
		require.NoError(t, r.Flush(t.Context()))
		requireOnce(t, b.all(), 2500)
		require.Equal(t, 2500, e.count(t, "acked = TRUE AND sent_at IS NOT NULL"))
		e.write(t, w, msg("orders", "", 0), msg("orders", "", 1), msg("orders", "", 2))
		old := `now() - interval '1 year'`
		if e.dialect != sqltx.Postgres {
			old = `1`
		}
		// Old beyond retention: all but 100 sent rows, and three rows that were
		// never sent: one ready, one held, one parked.
		_, err := e.db.Exec(`UPDATE ` + schema.OutboxTable + ` SET created_at = ` + old + `, sent_at = CASE WHEN acked THEN ` + old + ` END WHERE ` + e.offset() + ` > 100`)
		require.NoError(t, err)
		_, err = e.db.Exec(`UPDATE ` + schema.OutboxTable + ` SET state = ` + e.offset() + ` - 2501 WHERE acked = FALSE`)
		require.NoError(t, err)
		n, err := r.store.purge(t.Context(), time.Hour, 1000)
		require.NoError(t, err)
		require.Equal(t, int64(1000), n, "one batch, no more")
		require.NoError(t, r.purge(t.Context()))
		require.Equal(t, 100, e.count(t, "acked = TRUE"))
		require.Equal(t, 3, e.count(t, "acked = FALSE"))
		st, err := r.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(2), st.Backlog)
		require.Equal(t, int64(1), st.Parked)
		require.Greater(t, st.OldestAge, 24*time.Hour)
	})
}

// B11: while the database is away the relay asks for it at a bounded rate, says
// so, and goes on by itself.
func TestDatabaseAway(t *testing.T) {
	for _, d := range []sqltx.Dialect{sqltx.Postgres, sqltx.MySQL} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			direct := newEnv(t, d)
			var proxy *testenv.Proxy
			behind := env{dialect: d}
			if d == sqltx.MySQL {
				proxy = testenv.NewProxy(t, testenv.MySQLAddr(t, direct.dsn))
				behind.db = testenv.Open(t, "mysql", testenv.MySQLWithAddr(t, direct.dsn, proxy.Addr()))
			} else {
				proxy = testenv.NewProxy(t, testenv.PostgresAddr(t, direct.dsn))
				behind.db = testenv.Open(t, "pgx", testenv.WithAddr(t, direct.dsn, proxy.Addr()))
			}
			b := newFakeBroker()
			r := behind.relay(t, b)
			w := direct.writer(t, nil)
			run(t, r)
			direct.write(t, w, msg("orders", "k", 0))
			b.await(t, 1)

			proxy.Cut()
			direct.write(t, w, msg("orders", "k", 1))
			eventually(t, "the relay notices", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.trouble != nil
			})
			before := proxy.Refused()
			window := time.NewTimer(time.Second)
			<-window.C
			require.LessOrEqual(t, proxy.Refused()-before, int64(40), "attempts are spaced")
			require.Len(t, b.all(), 1)
			proxy.Restore()
			got := b.await(t, 2)
			requireOrder(t, got)
			eventually(t, "the relay is healthy", func() bool { return r.Health() == nil })
		})
	}
}

// A relay whose connection dies while it publishes gives its rows to another one
// at once, and settles nothing itself.
func TestConnectionDiesWhilePublishing(t *testing.T) {
	for d, kill := range map[sqltx.Dialect]string{
		sqltx.Postgres: `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`,
		sqltx.MySQL:    ``,
	} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, d)
			gate := make(chan struct{})
			stuck := newFakeBroker()
			stuck.before = hold(gate)
			b := newFakeBroker()
			w := e.writer(t, nil)
			e.write(t, w, msg("orders", "k", 0), msg("orders", "k", 1))
			first := testenv.Open(t, driverOf(d), e.dsn)
			run(t, e.relay(t, stuck, func(c *RelayConfig) { c.DB = first }))
			eventually(t, "the first relay publishes", func() bool { return stuck.attempts() == 1 })
			second := testenv.Open(t, driverOf(d), e.dsn)
			run(t, e.relay(t, b, func(c *RelayConfig) { c.DB = second }))
			if d == sqltx.MySQL {
				var id int64
				require.NoError(t, e.db.QueryRow(`SELECT IS_USED_LOCK(CONCAT('headrace.', MD5(CONCAT(DATABASE(), '.`+schema.OutboxTable+`')), '.`+fmt.Sprint(shardOf("k"))+`'))`).Scan(&id))
				kill = fmt.Sprint(`KILL `, id)
			}
			_, err := e.db.Exec(kill)
			require.NoError(t, err)
			requireOrder(t, b.await(t, 2))
			eventually(t, "the table is empty", func() bool { return e.count(t, "1=1") == 0 })
			close(gate)
		})
	}
}

// On SQLite one relay works at a time; another takes over when it stops.
func TestSQLiteTakeover(t *testing.T) {
	t.Parallel()
	e := newEnv(t, sqltx.SQLite)
	first, second := newFakeBroker(), newFakeBroker()
	r1 := e.relay(t, first)
	other := testenv.Open(t, "sqlite", e.dsn)
	r2 := e.relay(t, second, func(c *RelayConfig) { c.DB = other })
	w := e.writer(t, func() { r1.Wake(); r2.Wake() })
	stop := run(t, r1)
	e.write(t, w, msg("orders", "k", 0))
	first.await(t, 1)
	run(t, r2)
	for i := 1; i < 10; i++ {
		e.write(t, w, msg("orders", "k", i))
	}
	first.await(t, 10)
	require.Empty(t, second.all())
	stop()
	for i := 10; i < 20; i++ {
		e.write(t, w, msg("orders", "k", i))
	}
	requireOrder(t, append(first.all(), second.await(t, 10)...))
}

// Run stops in the middle of a backlog without losing or doubling a row.
func TestStopMidway(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		b := newFakeBroker()
		w := e.writer(t, nil)
		var msgs []Message
		for i := range 3000 {
			msgs = append(msgs, msg("orders", fmt.Sprint("k", i%50), i/50))
		}
		e.write(t, w, msgs...)
		for range 5 {
			r := e.relay(t, b, func(c *RelayConfig) { c.BatchSize = 25 })
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- r.Run(ctx) }()
			b.await(t, len(b.all())+1)
			cancel()
			require.NoError(t, <-done)
		}
		require.NoError(t, e.relay(t, b).Flush(t.Context()))
		requireOnce(t, b.all(), 3000)
		requireOrder(t, b.all())
	})
}

// Flush waits through Run, and does the work itself when Run ends.
func TestFlushWhileRunning(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		b := newFakeBroker()
		r := e.relay(t, b, func(c *RelayConfig) { c.PollInterval = time.Hour })
		w := e.writer(t, nil) // nobody wakes the relay
		run(t, r)
		eventually(t, "the relay loops", func() bool { return len(r.looping) == 1 })
		e.write(t, w, msg("orders", "k", 0))
		require.NoError(t, r.Flush(t.Context()))
		require.Len(t, b.all(), 1)

		gate := make(chan struct{})
		b.set(func(b *fakeBroker) { b.before = hold(gate) })
		e.write(t, w, msg("orders", "k", 1))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, r.Flush(ctx), context.DeadlineExceeded)
		close(gate)
		require.NoError(t, r.Flush(t.Context()))
		require.Len(t, b.all(), 2)
	})
}

// Flush makes room for Run, and Run never fails because of it.
func TestRunDuringFlush(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		b := newFakeBroker()
		gate := make(chan struct{})
		b.before = hold(gate)
		r := e.relay(t, b)
		w := e.writer(t, nil)
		e.write(t, w, msg("orders", "k", 0))
		flushed := make(chan error, 1)
		go func() { flushed <- r.Flush(t.Context()) }()
		eventually(t, "the flush publishes", func() bool { return b.attempts() == 1 })
		run(t, r)
		eventually(t, "Run has claimed the relay", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.running })
		close(gate)
		require.NoError(t, <-flushed)
		e.write(t, w, msg("orders", "k", 1))
		requireOnce(t, b.await(t, 2), 2)
	})
}

// While a batch is being published its transaction has no transaction id, so no
// other transaction waits for it.
func TestClaimHasNoTransactionID(t *testing.T) {
	t.Parallel()
	e := newEnv(t, sqltx.Postgres)
	b := newFakeBroker()
	gate := make(chan struct{})
	b.before = hold(gate)
	r := e.relay(t, b)
	w := e.writer(t, r.Wake)
	run(t, r)
	e.write(t, w, msg("orders", "k", 0))
	eventually(t, "the batch is being published", func() bool { return b.attempts() == 1 })
	var xid sql.NullString
	require.NoError(t, e.db.QueryRow(`SELECT backend_xid::text FROM pg_stat_activity
WHERE datname = current_database() AND state = 'idle in transaction'`).Scan(&xid))
	require.False(t, xid.Valid)
	close(gate)
	b.await(t, 1)
}
