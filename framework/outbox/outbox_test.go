package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/pkg/events"
)

func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		childMain()
		return
	}
	goleak.VerifyTestMain(m)
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// env is a database with the tables, on one dialect.
type env struct {
	db      *sql.DB
	dsn     string
	dialect sqltx.Dialect
}

// eachDialect runs fn on every dialect.
func eachDialect(t *testing.T, fn func(t *testing.T, e env)) {
	for _, d := range []sqltx.Dialect{sqltx.Postgres, sqltx.MySQL, sqltx.SQLite} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			fn(t, newEnv(t, d))
		})
	}
}

func newEnv(t testing.TB, d sqltx.Dialect) env {
	t.Helper()
	e := env{dialect: d}
	switch d {
	case sqltx.Postgres:
		e.dsn = testenv.PostgresDSN(t)
		e.db = testenv.Open(t, "pgx", e.dsn)
		e.db.SetMaxOpenConns(12)
		e.db.SetMaxIdleConns(12)
	case sqltx.MySQL:
		e.dsn = testenv.MySQLDSN(t)
		e.db = testenv.Open(t, "mysql", e.dsn)
		e.db.SetMaxOpenConns(12)
		e.db.SetMaxIdleConns(12)
	default:
		e.dsn = testenv.SQLiteDSN(t)
		e.db = testenv.Open(t, "sqlite", e.dsn)
	}
	require.NoError(t, schema.Ensure(t.Context(), e.db, d, quiet()))
	return e
}

func (e env) writer(t testing.TB, onCommit func()) *Writer {
	t.Helper()
	w, err := NewWriter(WriterConfig{Dialect: e.dialect, OnCommit: onCommit})
	require.NoError(t, err)
	return w
}

func (e env) relay(t testing.TB, pub *fakeBroker, change ...func(*RelayConfig)) *Relay {
	t.Helper()
	cfg := RelayConfig{DB: e.db, Dialect: e.dialect, Publisher: pub, Logger: quiet(),
		PollInterval: 50 * time.Millisecond, BackoffBase: 20 * time.Millisecond, BackoffCap: 80 * time.Millisecond,
		OutageCap: 100 * time.Millisecond, StatsInterval: time.Hour}
	for _, c := range change {
		c(&cfg)
	}
	r, err := NewRelay(cfg)
	require.NoError(t, err)
	return r
}

// run runs r until the test ends, or until stop is called.
func run(t testing.TB, r *Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				require.NoError(t, err)
			case <-time.After(20 * time.Second):
				t.Error("the relay did not stop")
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func (e env) write(t testing.TB, w *Writer, msgs ...Message) {
	t.Helper()
	require.NoError(t, sqltx.Run(context.Background(), e.db, sqltx.Options{Dialect: e.dialect}, func(ctx context.Context, tx *sql.Tx) error {
		return w.Write(ctx, tx, msgs...)
	}))
}

// offset is the column's name, quoted.
func (e env) offset() string {
	if e.dialect == sqltx.MySQL {
		return "`offset`"
	}
	return `"offset"`
}

func (e env) count(t testing.TB, where string) int {
	t.Helper()
	var n int
	require.NoError(t, e.db.QueryRow(`SELECT count(*) FROM `+schema.OutboxTable+` WHERE `+where).Scan(&n))
	return n
}

// msg makes a message; its payload is its number within its key.
func msg(topic, key string, n int) Message {
	m := message.NewMessage(uuid.NewString(), []byte(strconv.Itoa(n)))
	m.Metadata.Set("kind", "test")
	if key != "" {
		m.Metadata.Set(events.KeyOrdering, key)
	}
	return Message{Topic: topic, Message: m}
}

// published is one message that the fake broker took.
type published struct {
	Topic, UUID, Key, Payload string
	Metadata                  message.Metadata
}

// fakeBroker records what it takes. refuse, when set, decides on each message.
type fakeBroker struct {
	mu     sync.Mutex
	got    []published
	calls  []time.Time
	change chan struct{}
	refuse func(topic string, m *message.Message) error
	before func(ctx context.Context, topic string, msgs []*message.Message) error
	// keepsOrder stops at the first message that fails.
	keepsOrder bool
}

func (b *fakeBroker) KeepsKeyOrder() bool { return b.keepsOrder }

func newFakeBroker() *fakeBroker { return &fakeBroker{change: make(chan struct{})} }

func (b *fakeBroker) Publish(topic string, msgs ...*message.Message) error {
	return b.PublishBatch(context.Background(), topic, msgs)
}

func (b *fakeBroker) Close() error { return nil }

func (b *fakeBroker) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) error {
	b.mu.Lock()
	b.calls = append(b.calls, time.Now())
	before, refuse := b.before, b.refuse
	b.mu.Unlock()
	if before != nil {
		if err := before(ctx, topic, msgs); err != nil {
			return err
		}
	}
	failed := map[int]error{}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, m := range msgs {
		if refuse != nil {
			if err := refuse(topic, m); err != nil {
				failed[i] = err
				if b.keepsOrder && !errors.Is(err, broker.ErrRejected) {
					for ; i < len(msgs); i++ {
						failed[i] = err
					}
					break
				}
				continue
			}
		}
		b.got = append(b.got, published{topic, m.UUID, m.Metadata.Get(events.KeyOrdering), string(m.Payload), m.Metadata})
	}
	close(b.change)
	b.change = make(chan struct{})
	if len(failed) > 0 {
		return publishError(topic, failed)
	}
	return nil
}

func (b *fakeBroker) set(fn func(b *fakeBroker)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fn(b)
}

func (b *fakeBroker) all() []published {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]published(nil), b.got...)
}

func (b *fakeBroker) attempts() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.calls)
}

// await waits until the broker has taken n messages.
func (b *fakeBroker) await(t testing.TB, n int) []published {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		b.mu.Lock()
		got, change := len(b.got), b.change
		b.mu.Unlock()
		if got >= n {
			return b.all()
		}
		select {
		case <-change:
		case <-deadline:
			t.Fatalf("the broker took %d messages, not %d", got, n)
		}
	}
}

// eventually polls a condition that gives no signal.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, 5*time.Millisecond, what)
}

func requireOnce(t testing.TB, got []published, want int) {
	t.Helper()
	seen := map[string]int{}
	for _, p := range got {
		seen[p.UUID]++
	}
	for id, n := range seen {
		require.Equal(t, 1, n, "message %s", id)
	}
	require.Len(t, seen, want)
}

// requireOrder checks that each key's payloads count up. A message may come
// again, but never earlier than its first time.
func requireOrder(t testing.TB, got []published) {
	t.Helper()
	next := map[string]int{}
	seen := map[string]bool{}
	for _, p := range got {
		if p.Key == "" || seen[p.UUID] {
			continue
		}
		seen[p.UUID] = true
		n, err := strconv.Atoi(p.Payload)
		require.NoError(t, err)
		require.Equal(t, next[p.Key], n, "key %s", p.Key)
		next[p.Key]++
	}
}

var errBroker = errors.New("the broker is away")

func TestRelayPublishesWhatCommits(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		b := newFakeBroker()
		r := e.relay(t, b, func(c *RelayConfig) { c.PollInterval = time.Hour })
		w := e.writer(t, r.Wake)
		run(t, r)

		rolledBack := errors.New("no")
		require.ErrorIs(t, sqltx.Run(t.Context(), e.db, sqltx.Options{Dialect: e.dialect}, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, w.Write(ctx, tx, msg("orders", "a", 99)))
			return rolledBack
		}), rolledBack)
		for i := range 5 {
			e.write(t, w, msg("orders", "a", i), msg("payments", "", 0))
		}
		got := b.await(t, 10)
		requireOnce(t, got, 10)
		requireOrder(t, got)
		require.Equal(t, "test", got[0].Metadata.Get("kind"))
		require.NoError(t, r.Flush(t.Context()))
		require.Zero(t, e.count(t, "1=1"))
		require.NoError(t, r.Health())
		require.ErrorIs(t, r.Run(t.Context()), ErrRunning)
	})
}

func TestFlushWithoutRun(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		b := newFakeBroker()
		r := e.relay(t, b)
		w := e.writer(t, r.Wake)
		require.NoError(t, r.Flush(t.Context()))
		for i := range 30 {
			e.write(t, w, msg("orders", fmt.Sprint("k", i%3), i/3))
		}
		require.NoError(t, r.Flush(t.Context()))
		requireOnce(t, b.all(), 30)
		requireOrder(t, b.all())
		require.Error(t, r.Health(), "it does not run")

		b.set(func(b *fakeBroker) {
			b.before = func(context.Context, string, []*message.Message) error { return errBroker }
		})
		e.write(t, w, msg("orders", "x", 0))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		require.NoError(t, r.Flush(ctx), "a row held back is not waited for")
		st, err := r.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(1), st.Backlog)
		require.Equal(t, int64(1), st.Held)
	})
}
