package pgnotify

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework/outbox"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

type sink struct{ got chan string }

func (s *sink) Publish(topic string, msgs ...*message.Message) error {
	return s.PublishBatch(context.Background(), topic, msgs)
}
func (s *sink) Close() error { return nil }
func (s *sink) PublishBatch(_ context.Context, _ string, msgs []*message.Message) error {
	for _, m := range msgs {
		s.got <- m.UUID
	}
	return nil
}

func await(t *testing.T, got chan string, want string) {
	t.Helper()
	select {
	case id := <-got:
		require.Equal(t, want, id)
	case <-time.After(10 * time.Second):
		t.Fatal("not relayed")
	}
}

func start(t *testing.T, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

// B38: rows of another process are relayed on its NOTIFY; while the LISTEN
// backend is gone polling finds them; and then the relay listens again.
func TestWakesOtherProcessesAndSurvivesALostBackend(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	db := testenv.Open(t, "pgx", dsn)
	require.NoError(t, schema.Ensure(t.Context(), db, sqltx.Postgres, quiet()))
	proxy := testenv.NewProxy(t, testenv.PostgresAddr(t, dsn))
	waker, err := NewWaker(Config{DSN: testenv.WithAddr(t, dsn, proxy.Addr())})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, waker.Close()) })
	notifier, err := NewNotifier(Config{DSN: dsn, Logger: quiet()})
	require.NoError(t, err)
	start(t, notifier.Run)
	writer, err := outbox.NewWriter(outbox.WriterConfig{Dialect: sqltx.Postgres, OnCommit: notifier.Notify})
	require.NoError(t, err)
	write := func() string {
		m := message.NewMessage(uuid.NewString(), []byte("{}"))
		require.NoError(t, sqltx.Run(t.Context(), db, sqltx.Options{Dialect: sqltx.Postgres}, func(ctx context.Context, tx *sql.Tx) error {
			return writer.Write(ctx, tx, outbox.Message{Topic: "t", Message: m})
		}))
		return m.UUID
	}
	listening := func() bool {
		var n int
		require.NoError(t, db.QueryRow(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN headrace_outbox'`).Scan(&n))
		return n == 1
	}

	// This relay polls once an hour: only the waker can make it quick.
	out := &sink{got: make(chan string, 100)}
	relay, err := outbox.NewRelay(outbox.RelayConfig{DB: db, Dialect: sqltx.Postgres, Publisher: out, Waker: waker, PollInterval: time.Hour, Logger: quiet()})
	require.NoError(t, err)
	start(t, relay.Run)
	require.Eventually(t, listening, 10*time.Second, 5*time.Millisecond)
	for range 5 {
		await(t, out.got, write())
	}

	// A second relay polls, and stands in while nobody hears the notifications.
	_, err = db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN headrace_outbox'`)
	require.NoError(t, err)
	proxy.Cut()
	poller, err := outbox.NewRelay(outbox.RelayConfig{DB: db, Dialect: sqltx.Postgres, Publisher: out, PollInterval: 20 * time.Millisecond, Logger: quiet()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- poller.Run(ctx) }()
	await(t, out.got, write())
	cancel()
	require.NoError(t, <-done)

	unheard := write()
	proxy.Restore()
	await(t, out.got, unheard) // found when it has connected again
	require.Eventually(t, listening, 10*time.Second, 5*time.Millisecond)
	await(t, out.got, write())
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := NewWaker(Config{})
	require.ErrorContains(t, err, "DSN is empty")
	_, err = NewNotifier(Config{DSN: "postgres://u:secret@h/%zz", Channel: "a; DROP"})
	require.ErrorContains(t, err, "Channel")
	require.NotContains(t, err.Error(), "secret")
}

func TestKeepAliveKeepsAQuietConnection(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	w, err := NewWaker(Config{DSN: dsn, KeepAlive: 10 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	require.NoError(t, w.Wait(t.Context()))
	heard := make(chan error, 1)
	go func() { heard <- w.Wait(t.Context()) }()
	db := testenv.Open(t, "pgx", dsn)
	require.Eventually(t, func() bool {
		var n int
		require.NoError(t, db.QueryRow(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '-- ping'`).Scan(&n))
		return n == 1
	}, 10*time.Second, 5*time.Millisecond, "it has asked at least once")
	_, err = db.Exec(`NOTIFY headrace_outbox`)
	require.NoError(t, err)
	require.NoError(t, <-heard)
}

// BenchmarkNotify shows what a NOTIFY in each transaction costs eight writers,
// beside none and beside a Notifier after the commit.
func BenchmarkNotify(b *testing.B) {
	for _, how := range []string{"none", "in-transaction", "after-commit"} {
		b.Run(fmt.Sprintf("writers=8/%s", how), func(b *testing.B) {
			dsn := testenv.PostgresDSN(b)
			db := testenv.Open(b, "pgx", dsn)
			db.SetMaxOpenConns(10)
			db.SetMaxIdleConns(10)
			require.NoError(b, schema.Ensure(b.Context(), db, sqltx.Postgres, quiet()))
			n, err := NewNotifier(Config{DSN: dsn, Logger: quiet()})
			require.NoError(b, err)
			ctx, cancel := context.WithCancel(context.Background())
			var bg sync.WaitGroup
			bg.Go(func() { _ = n.Run(ctx) })
			onCommit := func() {}
			if how == "after-commit" {
				onCommit = n.Notify
			}
			w, err := outbox.NewWriter(outbox.WriterConfig{Dialect: sqltx.Postgres, OnCommit: onCommit})
			require.NoError(b, err)
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range 8 {
				wg.Go(func() {
					for next.Add(1) <= int64(b.N) {
						err := sqltx.Run(context.Background(), db, sqltx.Options{Dialect: sqltx.Postgres}, func(ctx context.Context, tx *sql.Tx) error {
							if how == "in-transaction" {
								if _, err := tx.ExecContext(ctx, `SELECT pg_notify('headrace_outbox', '')`); err != nil {
									return err
								}
							}
							return w.Write(ctx, tx, outbox.Message{Topic: "t", Message: message.NewMessage(uuid.NewString(), make([]byte, 500))})
						})
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tx/s")
			cancel()
			bg.Wait()
		})
	}
}
