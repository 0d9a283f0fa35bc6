package sqldb_test

import (
	"context"
	"database/sql"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/sqldb"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
)

// A transaction that drew the lowest numbers commits last: its rows turn up
// below the position of the group and are handed out all the same.
func TestOpenTransactionIsNotSkipped(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		if d.dialect == sqltx.SQLite {
			return // it hands numbers out under its one write lock: TestSQLiteNumbersFollowCommits
		}
		b := d.open(t, db, sqldb.Config{})
		b.SetGapAge(500 * time.Millisecond)
		ctx := context.Background()
		topic := unique("late")
		ensure(t, b, topic, "g")
		ch, _ := subscribe(t, b, topic, broker.SubscriberConfig{Group: "g"})

		begin := func(batch ...*message.Message) *sql.Tx {
			tx, err := db.BeginTx(ctx, nil)
			require.NoError(t, err)
			t.Cleanup(func() { _ = tx.Rollback() })
			require.NoError(t, b.PublisherFor(tx).PublishBatch(ctx, topic, batch))
			return tx
		}
		late := begin(msgs(0, 3, nil)...)
		dead := begin(msgs(3, 5, nil)...)
		publish(t, b, topic, msgs(5, 10, nil)...)
		later := begin(msgs(10, 11, nil)...)
		publish(t, b, topic, msgs(11, 20, nil)...)

		// Nobody waits for the open transactions.
		want := append(uuids(msgs(5, 10, nil)), uuids(msgs(11, 20, nil))...)
		require.ElementsMatch(t, want, ackAll(t, ch, len(want)))
		settles(t, b, topic, "g")
		// Longer than it takes to look at gaps twice, and than SetGapAge.
		receiveNone(t, ch, 2500*time.Millisecond)
		require.NotZero(t, count(t, db, `SELECT count(*) FROM headrace_sql_gaps`), "what may still come is remembered")
		floor, err := b.Floor(ctx, topic)
		require.NoError(t, err)
		require.EqualValues(t, 1, floor, "cleaning stays below what may still come")

		require.NoError(t, later.Commit())
		require.Equal(t, []string{"m00010"}, ackAll(t, ch, 1))
		require.NoError(t, dead.Rollback())
		require.NoError(t, late.Commit())
		require.ElementsMatch(t, uuids(msgs(0, 3, nil)), ackAll(t, ch, 3))
		settles(t, b, topic, "g")
		require.Eventually(t, func() bool { return count(t, db, `SELECT count(*) FROM headrace_sql_gaps`) == 0 },
			patience, 20*time.Millisecond, "what can't come any more is forgotten")
		floor, err = b.Floor(ctx, topic)
		require.NoError(t, err)
		require.EqualValues(t, 21, floor)
	})
}

func TestSQLiteNumbersFollowCommits(t *testing.T) {
	t.Parallel()
	d := dialects["sqlite"]
	dsn := d.dsn(t)
	b := d.open(t, openDB(t, d, dsn), sqldb.Config{})
	ctx := context.Background()
	ensure(t, b, "t", "g")
	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g"})
	other := openDB(t, d, dsn)
	tx, err := other.BeginTx(ctx, nil)
	require.NoError(t, err)
	require.NoError(t, b.PublisherFor(tx).PublishBatch(ctx, "t", msgs(0, 2, nil)))
	second := make(chan error, 1)
	go func() { second <- b.Publisher().PublishBatch(ctx, "t", msgs(2, 4, nil)) }()
	receiveNone(t, ch, 200*time.Millisecond)
	require.NoError(t, tx.Commit())
	require.NoError(t, <-second)
	require.Equal(t, uuids(msgs(0, 4, nil)), ackAll(t, ch, 4))
}

// Publishers and members side by side, with rollbacks: each message once.
func TestConcurrentPublishersAreNotSkipped(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		b := d.open(t, db, sqldb.Config{})
		ctx := context.Background()
		topic := unique("concurrent")
		ensure(t, b, topic, "g")
		const publishers, each = 6, 40
		var mu sync.Mutex
		got := make(map[string]int)
		done := make(chan struct{})
		for range 2 {
			ch, _ := subscribe(t, b, topic, broker.SubscriberConfig{Group: "g", Concurrency: 4})
			go func() {
				for m := range ch {
					mu.Lock()
					got[m.UUID]++
					if len(got) == publishers*each*3 {
						select {
						case <-done:
						default:
							close(done)
						}
					}
					mu.Unlock()
					m.Ack()
				}
			}()
		}
		var wg sync.WaitGroup
		for p := range publishers {
			wg.Go(func() {
				for i := range each {
					err := sqltx.Run(ctx, db, sqltx.Options{Dialect: d.dialect}, func(ctx context.Context, tx *sql.Tx) error {
						for n := range 3 {
							m := message.NewMessage(fmt.Sprintf("p%d-%d-%d", p, i, n), nil)
							if err := b.PublisherFor(tx).PublishBatch(ctx, topic, []*message.Message{m}); err != nil {
								return err
							}
						}
						return nil
					})
					if err != nil {
						t.Error(err)
					}
					if i%5 == 0 {
						tx, err := db.BeginTx(ctx, nil)
						if err != nil {
							t.Error(err)
							continue
						}
						_ = b.PublisherFor(tx).PublishBatch(ctx, topic, msgs(0, 2, nil))
						_ = tx.Rollback()
					}
				}
			})
		}
		wg.Wait()
		select {
		case <-done:
		case <-time.After(patience):
			mu.Lock()
			require.Len(t, got, publishers*each*3)
		}
		settles(t, b, topic, "g")
		mu.Lock()
		defer mu.Unlock()
		for id, n := range got {
			require.Equal(t, 1, n, id)
		}
	})
}

// Order holds across members: a key is never with two of them, and a hot key
// stops no other.
func TestOrderAcrossMembers(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		b := d.open(t, db, sqldb.Config{PollInterval: 20 * time.Millisecond})
		topic := unique("members")
		key := func(i int) string {
			if i%3 == 0 {
				return "hot"
			}
			return fmt.Sprint("key-", i%11)
		}
		const total, members = 300, 3
		sent := msgs(0, total, key)
		want := make(map[string][]string)
		for _, m := range sent {
			k := m.Metadata[events.KeyOrdering]
			want[k] = append(want[k], m.UUID)
		}
		var mu sync.Mutex
		got := make(map[string][]string)
		busy := make(map[string]bool)
		perMember := make([]int, members)
		left := total
		done := make(chan struct{})
		fault := make(chan string, 1)
		publish(t, b, topic, sent[:total/2]...)
		var subs []message.Subscriber
		for i := range members {
			ch, sub := subscribe(t, b, topic, broker.SubscriberConfig{
				Group: "g", Order: true, Concurrency: 3, MaxInFlight: 10, NackDelay: 10 * time.Millisecond,
			})
			subs = append(subs, sub)
			go func() {
				for m := range ch {
					go func() {
						k := m.Metadata[events.KeyOrdering]
						mu.Lock()
						if busy[k] {
							select {
							case fault <- "two of " + k + " at once":
							default:
							}
						}
						busy[k] = true
						mu.Unlock()
						time.Sleep(time.Millisecond) // a handler that takes a while
						mu.Lock()
						defer mu.Unlock()
						busy[k] = false
						if nth := slices.Index(want[k], m.UUID); nth%7 == 3 && delivery(m).Count() == 1 {
							m.Nack()
							return
						}
						got[k] = append(got[k], m.UUID)
						perMember[i]++
						m.Ack()
						if left--; left == 0 {
							close(done)
						}
					}()
				}
			}()
		}
		publish(t, b, topic, sent[total/2:total*3/4]...)
		require.NoError(t, subs[0].Close(), "a member leaves, and gives back what it has not begun")
		publish(t, b, topic, sent[total*3/4:]...)
		select {
		case <-done:
		case f := <-fault:
			require.FailNow(t, f)
		case <-time.After(patience):
			mu.Lock()
			n := left
			mu.Unlock()
			require.FailNow(t, "not everything arrived", "%d left", n)
		}
		mu.Lock()
		require.Equal(t, want, got)
		require.NotZero(t, perMember[1]+perMember[2])
		mu.Unlock()
		settles(t, b, topic, "g")
	})
}

// While one member has a key, another gets the keys beside it and nothing of it;
// what was set aside is bounded.
func TestKeyStaysWithItsMember(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		b := d.open(t, db, sqldb.Config{PollInterval: 10 * time.Millisecond, MaxHeld: 50})
		topic := unique("key")
		cfg := broker.SubscriberConfig{Group: "g", Order: true, Concurrency: 2, MaxInFlight: 4}
		publish(t, b, topic, msgs(0, 1, func(int) string { return "k" })...)
		first, _ := subscribe(t, b, topic, cfg)
		held := receive(t, first)
		second, _ := subscribe(t, b, topic, cfg)
		publish(t, b, topic, msgs(1, 40, func(int) string { return "k" })...)
		publish(t, b, topic, msgs(40, 60, func(i int) string { return fmt.Sprint("other-", i) })...)
		publish(t, b, topic, msgs(60, 300, func(int) string { return "k" })...)
		// Both members meet k's messages; only the holder's may be claimed, and it is busy.
		seen := 0
		for seen < 20 {
			select {
			case m := <-first:
				require.NotEqual(t, "k", m.Metadata[events.KeyOrdering])
				m.Ack()
			case m := <-second:
				require.NotEqual(t, "k", m.Metadata[events.KeyOrdering])
				m.Ack()
			case <-time.After(patience):
				require.FailNow(t, "other keys wait", "%d seen", seen)
			}
			seen++
		}
		receiveNone(t, second, 100*time.Millisecond)
		require.LessOrEqual(t, count(t, db, `SELECT COALESCE(sum(n), 0) FROM headrace_sql_claims WHERE owner = ''`), 60)
		held.Ack()
		var got []string
		for len(got) < 279 {
			select {
			case m := <-first:
				got = append(got, m.UUID)
				m.Ack()
			case m := <-second:
				got = append(got, m.UUID)
				m.Ack()
			case <-time.After(patience):
				require.FailNow(t, "the key does not go on", "%d seen", len(got))
			}
		}
		require.True(t, slices.IsSorted(got))
		settles(t, b, topic, "g")
	})
}

// B30: message 5 of 100 always fails, budget 3, with a restart midway.
func TestPoisonMessage_B30(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		b := d.open(t, db, sqldb.Config{})
		topic := unique("poison")
		publish(t, b, topic, msgs(0, 100, nil)...)
		got := make(map[string]int)
		dead := 0
		restarted := false
		for len(got) < 99 || dead == 0 {
			ch, sub := subscribe(t, b, topic, broker.SubscriberConfig{Group: "g", Concurrency: 2, NackDelay: 5 * time.Millisecond})
			for len(got) < 99 || dead == 0 {
				m := receive(t, ch)
				if m.UUID == "m00005" {
					n := delivery(m).Count()
					require.LessOrEqual(t, n, 4)
					if n > 3 {
						publish(t, b, broker.DeadLetterTopic("g"), m.Copy())
						dead++
						m.Ack()
						continue
					}
					m.Nack()
				} else {
					got[m.UUID]++
					m.Ack()
				}
				if len(got) > 50 && !restarted {
					restarted = true
					break
				}
			}
			require.NoError(t, sub.Close())
		}
		require.Equal(t, 1, dead)
		require.Len(t, got, 99)
		for id, n := range got {
			require.Equal(t, 1, n, "%s: the position survives", id)
		}
		settles(t, b, topic, "g")
		require.EqualValues(t, 1, depth(t, b, broker.DeadLetterTopic("g")))
	})
}

// A delay outlives its consumer and is obeyed to the millisecond.
func TestDelayOutlivesItsConsumer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		b := d.open(t, db, sqldb.Config{PollInterval: 10 * time.Second, NoListen: true})
		topic := unique("delay")
		publish(t, b, topic, msgs(0, 1, nil)...)
		ch, sub := subscribe(t, b, topic, broker.SubscriberConfig{Group: "g"})
		m := receive(t, ch)
		delivery(m).RedeliverAfter(700 * time.Millisecond)
		start := time.Now()
		m.Nack()
		require.NoError(t, sub.Close())
		next, _ := subscribe(t, b, topic, broker.SubscriberConfig{Group: "g"})
		m = receive(t, next)
		took := time.Since(start)
		require.GreaterOrEqual(t, took, 690*time.Millisecond)
		require.Less(t, took, 5*time.Second, "the wait is for the delay, not for the next poll")
		require.Equal(t, 2, delivery(m).Count())
		m.Ack()
		settles(t, b, topic, "g")
	})
}

// A claim that another member has taken over cancels the handler, and a late ack
// changes nothing.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		b := d.open(t, db, sqldb.Config{})
		topic := unique("lost")
		publish(t, b, topic, msgs(0, 1, nil)...)
		ch, _ := subscribe(t, b, topic, broker.SubscriberConfig{Group: "g", Lease: broker.MinLease})
		m := receive(t, ch)
		_, err := db.Exec(`UPDATE headrace_sql_claims SET owner = 'somebody else'`)
		require.NoError(t, err)
		select {
		case <-m.Context().Done():
		case <-time.After(patience):
			require.FailNow(t, "the handler goes on")
		}
		require.ErrorIs(t, context.Cause(m.Context()), broker.ErrLeaseLost)
		m.Ack()
		m = receive(t, ch) // the other never renews
		require.Equal(t, 2, delivery(m).Count())
		m.Ack()
		settles(t, b, topic, "g")
	})
}

// Messages that were deleted while they are held or waiting are cleared.
func TestDeletedMessages(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		b := d.open(t, db, sqldb.Config{})
		topic := unique("deleted")
		publish(t, b, topic, msgs(0, 10, nil)...)
		ch, sub := subscribe(t, b, topic, broker.SubscriberConfig{Group: "g", Concurrency: 1, NackDelay: 50 * time.Millisecond})
		m := receive(t, ch)
		_, err := db.Exec(`DELETE FROM ` + d.table(topic))
		require.NoError(t, err)
		m.Nack()
		require.NoError(t, sub.Close())
		next, _ := subscribe(t, b, topic, broker.SubscriberConfig{Group: "g"})
		settles(t, b, topic, "g")
		publish(t, b, topic, msgs(10, 11, nil)...)
		require.Equal(t, []string{"m00010"}, ackAll(t, next, 1))
		settles(t, b, topic, "g")
	})
}

// B46: cleaning removes what is old and settled by every group, a batch at a time,
// and nothing that a group, also a stock one, has yet to read.
func TestCleaning_B46(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		b := d.open(t, db, sqldb.Config{Retention: time.Millisecond, MaintainEvery: 50 * time.Millisecond, CleanupBatch: 7})
		b.SetGapAge(time.Millisecond)
		topic := unique("clean")
		ensure(t, b, topic, "slow", "fast")
		publish(t, b, topic, msgs(0, 100, nil)...)
		fast, _ := subscribe(t, b, topic, broker.SubscriberConfig{Group: "fast"})
		ackAll(t, fast, 100)
		settles(t, b, topic, "fast")
		slow, sub := subscribe(t, b, topic, broker.SubscriberConfig{Group: "slow", Concurrency: 1, MaxInFlight: 1})
		ackAll(t, slow, 40)
		held := receive(t, slow) // the 41st
		require.Eventually(t, func() bool { return depth(t, b, topic) == 60 }, patience, 10*time.Millisecond)
		receiveNone(t, fast, 200*time.Millisecond)
		require.EqualValues(t, 60, depth(t, b, topic), "the slow group's messages stay")
		held.Ack()
		ackAll(t, slow, 59)
		require.Eventually(t, func() bool { return depth(t, b, topic) == 0 }, patience, 10*time.Millisecond)

		publish(t, b, topic, msgs(100, 102, nil)...)
		require.Equal(t, uuids(msgs(100, 102, nil)), ackAll(t, slow, 2))
		require.NoError(t, sub.Close())
		if d.schema == nil {
			return
		}
		other := unique("clean")
		ensure(t, b, other, "g")
		_, stockSub := d.stock(t, db, "stock")
		theirs, err := stockSub.Subscribe(context.Background(), other)
		require.NoError(t, err)
		ours, _ := subscribe(t, b, other, broker.SubscriberConfig{Group: "g"})
		publish(t, b, other, msgs(0, 20, nil)...)
		ackAll(t, ours, 20)
		settles(t, b, other, "g")
		receiveNone(t, ours, 200*time.Millisecond)
		require.EqualValues(t, 20, depth(t, b, other), "the stock group has read nothing yet")
		ackAll(t, theirs, 20)
		require.Eventually(t, func() bool { return depth(t, b, other) == 0 }, patience, 10*time.Millisecond)
	})
}

// A topic without a group, such as that of dead letters, is never cleaned.
func TestNoGroupNoCleaning(t *testing.T) {
	t.Parallel()
	d := dialects["sqlite"]
	b := d.open(t, openDB(t, d, d.dsn(t)), sqldb.Config{Retention: time.Millisecond})
	publish(t, b, "dlq", msgs(0, 3, nil)...)
	_, err := b.Floor(context.Background(), "other")
	require.Error(t, err, "no state tables yet")
	ensure(t, b, "other", "g")
	floor, err := b.Floor(context.Background(), "dlq")
	require.NoError(t, err)
	require.Zero(t, floor)
}

// B09: a backlog of 100,000 stays in the database.
func TestBacklog_B09(t *testing.T) {
	// One after the other, since they measure memory.
	for name, d := range dialects {
		t.Run(name, func(t *testing.T) { testBacklog(t, d, openDB(t, d, d.dsn(t))) })
	}
}

func testBacklog(t *testing.T, d dialect, db *sql.DB) {
	b := d.open(t, db, sqldb.Config{})
	topic := unique("backlog")
	const inFlight = 40
	total := 100_000
	if d.dialect == sqltx.SQLite && raced {
		total = 10_000
	}
	for i := 0; i < total; i += 5_000 {
		publish(t, b, topic, msgs(i, i+5_000, nil)...)
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	ch, _ := subscribe(t, b, topic, broker.SubscriberConfig{Group: "g", Order: true, Concurrency: 4, MaxInFlight: inFlight})
	ackAll(t, ch, 500)
	held := receive(t, ch)
	s := stats(t, b, topic, "g")
	require.LessOrEqual(t, s.Pending, int64(2*inFlight), "and acks on their way")
	require.GreaterOrEqual(t, s.Lag, int64(total)-501-2*inFlight)
	require.Less(t, heap(), before+8<<20)
	held.Ack()
}

// Two systems share a database by a prefix.
func TestPrefix(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		a, b := d.open(t, db, sqldb.Config{Prefix: "a."}), d.open(t, db, sqldb.Config{Prefix: "b."})
		publish(t, a, "t", msgs(0, 1, nil)...)
		publish(t, b, "t", msgs(1, 2, nil)...)
		ofA, _ := subscribe(t, a, "t", broker.SubscriberConfig{Group: "g"})
		ofB, _ := subscribe(t, b, "t", broker.SubscriberConfig{Group: "g"})
		require.Equal(t, []string{"m00000"}, ackAll(t, ofA, 1))
		require.Equal(t, []string{"m00001"}, ackAll(t, ofB, 1))
		settles(t, a, "t", "g")
		require.Equal(t, 1, count(t, db, `SELECT count(*) FROM `+d.table("a.t")))
	})
}

// Numbers that were set back would leave a group above every row for ever.
func TestNumbersSetBack_B38(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		b := d.open(t, db, sqldb.Config{MaintainEvery: 100 * time.Millisecond})
		topic := unique("back")
		publish(t, b, topic, msgs(0, 50, nil)...)
		ch, _ := subscribe(t, b, topic, broker.SubscriberConfig{Group: "g"})
		ackAll(t, ch, 50)
		settles(t, b, topic, "g")
		var empty []string
		switch d.dialect {
		case sqltx.Postgres:
			empty = []string{`TRUNCATE ` + d.table(topic) + ` RESTART IDENTITY`}
		case sqltx.MySQL:
			empty = []string{`TRUNCATE ` + d.table(topic)}
		default:
			empty = []string{`DELETE FROM ` + d.table(topic), `DELETE FROM sqlite_sequence WHERE name = '` + strings.Trim(d.table(topic), `"`) + `'`}
		}
		for _, q := range empty {
			_, err := db.Exec(q)
			require.NoError(t, err)
		}
		publish(t, b, topic, msgs(50, 53, nil)...)
		require.ElementsMatch(t, uuids(msgs(50, 53, nil)), ackAll(t, ch, 3), "while it runs")
		settles(t, b, topic, "g")
	})
}

// Somebody drops all tables: publishing and consuming make them again.
func TestTablesDropped(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		b := d.open(t, db, sqldb.Config{PollInterval: 20 * time.Millisecond})
		topic := unique("dropped")
		publish(t, b, topic, msgs(0, 3, nil)...)
		ch, _ := subscribe(t, b, topic, broker.SubscriberConfig{Group: "g"})
		ackAll(t, ch, 3)
		settles(t, b, topic, "g")
		for _, name := range []string{d.table(topic), "headrace_sql_groups", "headrace_sql_claims", "headrace_sql_gaps"} {
			_, err := db.Exec(`DROP TABLE ` + name)
			require.NoError(t, err)
		}
		publish(t, b, topic, msgs(3, 5, nil)...)
		require.ElementsMatch(t, uuids(msgs(3, 5, nil)), ackAll(t, ch, 2))
		settles(t, b, topic, "g")
	})
}
