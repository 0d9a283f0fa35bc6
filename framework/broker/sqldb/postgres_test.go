package sqldb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/sqldb"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
)

// Two brokers stand for two processes: only NOTIFY joins them.
func twoBrokers(t *testing.T, cfg sqldb.Config) (here, there *sqldb.Broker, db *sql.DB) {
	d := dialects["postgres"]
	dsn := d.dsn(t)
	db = openDB(t, d, dsn)
	return d.open(t, db, cfg), d.open(t, openDB(t, d, dsn), cfg), db
}

// NOTIFY wakes a subscription of another process, whatever a message's size; a
// transaction's messages are announced by its commit.
func TestNotifyWakes_B38(t *testing.T) {
	t.Parallel()
	here, there, db := twoBrokers(t, sqldb.Config{PollInterval: time.Minute})
	ensure(t, here, "t", "g")
	ch, _ := subscribe(t, here, "t", broker.SubscriberConfig{Group: "g"})
	awaitListener(t, db)
	start := time.Now()
	big := message.NewMessage("20kB", []byte(strings.Repeat("x", 20_000)))
	big.Metadata.Set("large", strings.Repeat("y", 20_000))
	publish(t, there, "t", big)
	got := receive(t, ch)
	require.True(t, big.Equals(got))
	got.Ack()

	tx, err := db.Begin()
	require.NoError(t, err)
	require.NoError(t, there.PublisherFor(tx).PublishBatch(context.Background(), "t", msgs(0, 2, nil)))
	require.NoError(t, tx.Commit())
	require.ElementsMatch(t, uuids(msgs(0, 2, nil)), ackAll(t, ch, 2))
	require.Less(t, time.Since(start), 10*time.Second, "not found by polling")
}

const listeners = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN headrace_sql'`

func awaitListener(t *testing.T, db *sql.DB) {
	t.Helper()
	require.Eventually(t, func() bool { return count(t, db, listeners) == 1 }, patience, 10*time.Millisecond)
}

// The LISTEN backend is terminated: polling covers the gap, and listening comes
// back by itself.
func TestListenerTerminated_B38(t *testing.T) {
	t.Parallel()
	for name, poll := range map[string]time.Duration{"polling covers the gap": 50 * time.Millisecond, "listening comes back": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			here, there, db := twoBrokers(t, sqldb.Config{PollInterval: poll})
			ensure(t, here, "t", "g")
			ch, _ := subscribe(t, here, "t", broker.SubscriberConfig{Group: "g"})
			awaitListener(t, db)
			require.Equal(t, 1, count(t, db, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND query = 'LISTEN headrace_sql'`))
			// Lost to NOTIFY, if it comes before listening is back.
			publish(t, there, "t", msgs(0, 1, nil)...)
			require.Equal(t, []string{"m00000"}, ackAll(t, ch, 1))
			awaitListener(t, db)
			publish(t, there, "t", msgs(1, 2, nil)...)
			require.Equal(t, []string{"m00001"}, ackAll(t, ch, 1))
		})
	}
}

// A transaction that wrote something elsewhere stays open: consuming goes on,
// though no transaction id of the new rows is below those of the open one.
func TestIdleTransactionStallsNothing_B38(t *testing.T) {
	t.Parallel()
	b, _, db := twoBrokers(t, sqldb.Config{})
	_, err := db.Exec(`CREATE TABLE elsewhere (i int)`)
	require.NoError(t, err)
	ensure(t, b, "t", "g")
	idle, err := db.Begin()
	require.NoError(t, err)
	defer func() { _ = idle.Rollback() }()
	_, err = idle.Exec(`INSERT INTO elsewhere VALUES (1)`)
	require.NoError(t, err)

	publish(t, b, "t", msgs(0, 500, nil)...)
	lag := stats(t, b, "t", "g")
	require.EqualValues(t, 500, lag.Lag, "the lag is visible")
	require.Positive(t, lag.OldestAge)
	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g"})
	require.ElementsMatch(t, uuids(msgs(0, 500, nil)), ackAll(t, ch, 500))
	settles(t, b, "t", "g")
}

// While a handler runs no transaction is open.
func TestNoTransactionWhileHandling(t *testing.T) {
	t.Parallel()
	b, _, db := twoBrokers(t, sqldb.Config{})
	publish(t, b, "t", msgs(0, 20, nil)...)
	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g", Concurrency: 2})
	m := receive(t, ch)
	// A claim may be under way at this moment; it is over soon.
	require.Eventually(t, func() bool {
		return count(t, db, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`) == 0 &&
			count(t, db, `SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND relation = '"watermill_t"'::regclass`) == 0
	}, patience, 5*time.Millisecond)
	m.Ack()
	ackAll(t, ch, 19)
}

// A dump is restored into a new cluster, whose transaction ids start anew far
// below those in the rows: groups go on where they were.
func TestDumpAndRestore_B38(t *testing.T) {
	t.Parallel()
	old, next := testenv.StartPostgres(t), testenv.StartPostgres(t)
	d := dialects["postgres"]
	db := openDB(t, d, old.DSN())
	for range 20 { // some thousands of ids ahead of the new cluster
		_, err := db.Exec(`DO $$ BEGIN FOR i IN 1..500 LOOP BEGIN PERFORM pg_current_xact_id(); EXCEPTION WHEN others THEN NULL; END; END LOOP; END $$`)
		require.NoError(t, err)
	}
	_, err := db.Exec(`CREATE TABLE burn (i int)`)
	require.NoError(t, err)
	for i := range 300 {
		_, err := db.Exec(`INSERT INTO burn VALUES ($1)`, i)
		require.NoError(t, err)
	}
	b := d.open(t, db, sqldb.Config{})
	publish(t, b, "t", msgs(0, 30, nil)...)
	ch, sub := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g", Concurrency: 1})
	ackAll(t, ch, 10)
	require.NoError(t, sub.Close())
	next.Restore(old.Dump())

	db2 := openDB(t, d, next.DSN())
	var ahead bool
	require.NoError(t, db2.QueryRow(`SELECT bool_and(transaction_id > pg_snapshot_xmax(pg_current_snapshot())) FROM watermill_t`).Scan(&ahead))
	require.True(t, ahead, "the rows' transaction ids lie in the future of the new cluster")
	b2 := d.open(t, db2, sqldb.Config{})
	ch2, _ := subscribe(t, b2, "t", broker.SubscriberConfig{Group: "g", Concurrency: 1})
	publish(t, b2, "t", msgs(30, 35, nil)...)
	require.Equal(t, uuids(msgs(10, 35, nil)), ackAll(t, ch2, 25))
	settles(t, b2, "t", "g")
}

// The server crashes with messages held and acks on their way, and comes back:
// what was acked stays acked.
func TestServerCrash(t *testing.T) {
	t.Parallel()
	server := testenv.StartPostgres(t)
	d := dialects["postgres"]
	b := d.open(t, openDB(t, d, server.DSN()), sqldb.Config{})
	publish(t, b, "t", msgs(0, 20, nil)...)
	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g", Concurrency: 2, MaxInFlight: 4})
	done := ackAll(t, ch, 10)
	held := receive(t, ch)
	server.Stop()
	require.Error(t, b.Ping(context.Background()))
	held.Ack()
	server.Start()
	seen := map[string]bool{held.UUID: true}
	for _, id := range done {
		seen[id] = true
	}
	for len(seen) < 20 {
		m := receive(t, ch)
		require.False(t, seen[m.UUID], "%s again", m.UUID)
		seen[m.UUID] = true
		m.Ack()
	}
	settles(t, b, "t", "g")
}

// What a crash of the server takes of the last claims: the rows, and the
// position that they moved. They are made again, also with a second member, and
// nothing is skipped.
func TestForgottenClaims(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"ack first", "claim first"} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			b, _, db := twoBrokers(t, sqldb.Config{PollInterval: 50 * time.Millisecond})
			publish(t, b, "t", msgs(0, 10, nil)...)
			cfg := broker.SubscriberConfig{Group: "g", Concurrency: 2, MaxInFlight: 4}
			ch, _ := subscribe(t, b, "t", cfg)
			got := ackAll(t, ch, 2)
			held := []*message.Message{receive(t, ch), receive(t, ch)}
			// Nothing of these is acked; the first two may be or not.
			require.Eventually(t, func() bool { return stats(t, b, "t", "g").Pending <= 4 }, patience, 5*time.Millisecond)
			_, err := db.Exec(`WITH c AS (DELETE FROM headrace_sql_claims) UPDATE headrace_sql_groups SET position = 2`)
			require.NoError(t, err)
			if first == "claim first" {
				publish(t, b, "t", msgs(10, 12, nil)...)
			}
			for _, m := range held {
				got = append(got, m.UUID)
				m.Ack()
			}
			if first == "ack first" {
				publish(t, b, "t", msgs(10, 12, nil)...)
			}
			other, _ := subscribe(t, b, "t", cfg)
			seen := map[string]bool{}
			for _, id := range got {
				seen[id] = true
			}
			// What the server forgot may come once more; nothing may be left out.
			for deadline := time.Now().Add(patience); len(seen) < 12; {
				select {
				case m := <-ch:
					seen[m.UUID] = true
					m.Ack()
				case m := <-other:
					seen[m.UUID] = true
					m.Ack()
				case <-time.After(20 * time.Millisecond):
					require.True(t, time.Now().Before(deadline), "skipped: %v came", seen)
				}
			}
		})
	}
}

// A role without the right to create tables works with those that are there,
// and is told plainly when one is missing.
func TestRoleWithoutDDL(t *testing.T) {
	t.Parallel()
	server := testenv.StartPostgres(t)
	d := dialects["postgres"]
	admin := openDB(t, d, server.DSN())
	b := d.open(t, admin, sqldb.Config{})
	ensure(t, b, "there", "g")
	for _, q := range []string{
		`CREATE ROLE app LOGIN`, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`,
		`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app`, `GRANT SELECT, USAGE ON ALL SEQUENCES IN SCHEMA public TO app`,
	} {
		_, err := admin.Exec(q)
		require.NoError(t, err)
	}
	app := d.open(t, openDB(t, d, strings.Replace(server.DSN(), "postgres://postgres@", "postgres://app@", 1)), sqldb.Config{})
	publish(t, app, "there", msgs(0, 3, nil)...)
	ch, _ := subscribe(t, app, "there", broker.SubscriberConfig{Group: "g"})
	ackAll(t, ch, 3)
	other, _ := subscribe(t, app, "there", broker.SubscriberConfig{Group: "another"})
	ackAll(t, other, 3)
	err := app.EnsureTopology(context.Background(), broker.Subscription{Topic: "missing", Group: "g"})
	require.True(t, sqltx.IsPermission(err), "%v", err)
	require.ErrorContains(t, err, "grant CREATE")
}

// Claims, counts and looks read by index also while the planner knows nothing
// of the table.
func TestPlansUseTheIndex(t *testing.T) {
	t.Parallel()
	b, _, db := twoBrokers(t, sqldb.Config{})
	ensure(t, b, "t", "g")
	_, err := db.Exec(`INSERT INTO watermill_t (uuid, payload, metadata, transaction_id) SELECT i, 'x', '{}', pg_current_xact_id() FROM generate_series(1, 50000) AS i`)
	require.NoError(t, err)
	_, err = db.Exec(`INSERT INTO headrace_sql_gaps SELECT 1, i, i, 0, NULL FROM generate_series(50100, 50400, 2) AS i`)
	require.NoError(t, err)
	for _, q := range b.Reads("t") {
		var plan strings.Builder
		rows, err := db.Query(`EXPLAIN (GENERIC_PLAN) ` + q)
		if err != nil { // before Postgres 16
			rows, err = db.Query(`EXPLAIN ` + literal(q))
		}
		require.NoError(t, err)
		for rows.Next() {
			var line string
			require.NoError(t, rows.Scan(&line))
			fmt.Fprintln(&plan, line)
		}
		require.NoError(t, errors.Join(rows.Err(), rows.Close()))
		require.NotContains(t, plan.String(), "Seq Scan on watermill_t", q)
	}
}

func literal(q string) string {
	return strings.NewReplacer("$1", "1", "$2", "1", "$3", "1", "$4", "1", "$5", "1").Replace(q)
}
