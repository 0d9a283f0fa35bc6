package framework_test

import (
	"context"
	"database/sql"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/outbox/pgnotify"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// onServers is a fixture on a Postgres database and a Redis of the test's own.
func onServers(t *testing.T) (*fixture, *redis.Client) {
	t.Helper()
	server := testenv.Redis(t)
	p := frameworktest.Profile()
	p.Database.Driver, p.Database.DSN = "postgres", config.Secret(testenv.PostgresDSN(t))
	p.Broker.Kind, p.Broker.URL = "redisstream", config.Secret(server.URL())
	conn, err := connect.Open(t.Context(), p, frameworktest.Logger(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	_, err = conn.DB.ExecContext(t.Context(), "CREATE TABLE effects (event_id TEXT NOT NULL, n BIGINT NOT NULL)")
	require.NoError(t, err)
	s := frameworktest.On(t, conn.Broker)
	return &fixture{System: s, t: t, conn: conn, app: onConnections(t, conn, nil)}, server.Client()
}

// onConnections is one process of the service.
func onConnections(t *testing.T, conn *connect.Connections, set func(*config.Profile)) *framework.App {
	t.Helper()
	p := frameworktest.Profile()
	if set != nil {
		set(&p)
	}
	app, err := framework.New(framework.Config{
		Service: "things", Profile: p, DB: conn.DB, Dialect: conn.Dialect, Broker: conn.Broker, OutboxWaker: conn.Waker, Logger: frameworktest.Logger(t),
	})
	require.NoError(t, err)
	return app
}

// B08, B14, B19, B29 on Redis and Postgres: what runs when the stop comes is acked
// and flushed, a second process runs none of it again, and what is no event goes
// to the dead letters raw.
func TestOnRedisAndPostgres_B08_B14_B19(t *testing.T) {
	t.Parallel()
	f, rdb := onServers(t)
	entered, release := make(chan struct{}, 1), make(chan struct{})
	register := func(app *framework.App) {
		app.Emits(counted.Descriptor())
		framework.HandleTx(app, made, "count", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
			if e.Data.Name == "slow" {
				entered <- struct{}{}
				<-release
			}
			if err := write(ctx, tx, e); err != nil {
				return err
			}
			return framework.Emit(ctx, tx, counted.New("k", e.Data))
		})
	}
	register(f.app)
	run := f.start()
	sent := f.Publish(made.New("k", thing{Name: "quick"}))[0]
	require.Equal(t, sent.ID, frameworktest.Await(f.System, counted, nil).Metadata.CausationID)
	f.SendRaw(made.Topic(), message.NewMessage("u", []byte("[]")))
	require.NoError(t, rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: made.Topic(), Values: map[string]any{"stranger": "\x00\xff"}}).Err())
	dead := f.AwaitDeadLetter("things.count", func(d frameworktest.DeadLetter) bool { return d.Reason == middleware.ReasonDecode })
	require.Equal(t, "[]", string(dead.Message.Payload))
	f.AwaitDeadLetter("things.count", func(d frameworktest.DeadLetter) bool { return d.Reason == middleware.ReasonMalformed })

	f.Publish(made.New("s", thing{Name: "slow"}))
	await(t, entered, "the slow handler")
	ended := f.stopping(run)
	close(release)
	require.NoError(t, await(t, ended, "the drain's end"))
	require.Equal(t, 2, f.effects())
	require.Len(t, frameworktest.Published(f.System, counted), 2)

	next := onConnections(t, f.conn, nil)
	register(next)
	f.Start(next)
	f.Send(made.Topic(), sent)
	f.Publish(made.New("l", thing{Name: "last"}))
	f.Idle()
	require.Equal(t, 3, f.effects(), "nothing ran again: neither the slow one nor the copy")
	require.Len(t, frameworktest.Published(f.System, counted), 3)
}

// B40 on Postgres: transactions that lock two rows in opposite orders are broken
// up by the server, replayed, and consume no attempt.
func TestDeadlocksOnPostgres_B40(t *testing.T) {
	t.Parallel()
	f, _ := onServers(t)
	_, err := f.conn.DB.ExecContext(t.Context(), "INSERT INTO effects VALUES ('even', 0), ('odd', 0)")
	require.NoError(t, err)
	var runs atomic.Int32
	framework.HandleTx(f.app, made, "sum", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
		runs.Add(1)
		if _, err := tx.ExecContext(ctx, "SET LOCAL deadlock_timeout = '10ms'"); err != nil {
			return framework.Permanent(err)
		}
		order := []string{"even", "odd"}
		if e.Data.N%2 == 1 {
			order = []string{"odd", "even"}
		}
		for _, id := range order {
			if _, err := tx.ExecContext(ctx, "UPDATE effects SET n = n + 1 WHERE event_id = $1", id); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "SELECT pg_sleep(0.02)"); err != nil {
				return err
			}
		}
		return nil
	}, framework.MaxAttempts(1), framework.Concurrency(4))
	f.start()
	const n = 12
	for i := range n {
		f.Publish(made.New("k", thing{Name: "x", N: i}))
	}
	f.Idle()
	require.Empty(t, f.DeadLetters("things.sum"))
	require.Equal(t, 2*n, f.count("SELECT sum(n) FROM effects"))
	require.Greater(t, int(runs.Load()), n, "the server did break deadlocks")
}

// A handler that hangs past the drain is taken over by another process once its
// lease has ended (B14), and its own late commit changes nothing.
func TestAHungHandlersMessageComesAgain_B14(t *testing.T) {
	t.Parallel()
	f, _ := onServers(t)
	f.app = onConnections(t, f.conn, func(p *config.Profile) { p.Drain.Timeout = time.Second })
	release, entered := make(chan struct{}), make(chan struct{}, 1)
	framework.HandleTx(f.app, made, "count", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
		entered <- struct{}{}
		<-release
		return write(ctx, tx, e)
	}, framework.Lease(time.Second))
	run := f.start()
	f.Publish(made.New("k", thing{Name: "a"}))
	await(t, entered, "the handler")
	require.ErrorContains(t, run.Stop(), `"count" (1)`)

	next := onConnections(t, f.conn, nil)
	done := make(chan struct{}, 1)
	framework.Handle(next, made, "count", func(context.Context, events.Event[thing]) error {
		done <- struct{}{}
		return nil
	}, framework.Lease(time.Second))
	f.Start(next)
	await(t, done, "the redelivery")
	close(release)
	f.Idle()
	require.Zero(t, f.effects(), "the hung transaction's context had ended")
}

// The App tells other processes' relays of its commits, where the waker can.
func TestCommitsAreToldToOtherProcesses(t *testing.T) {
	t.Parallel()
	dsn := testenv.PostgresDSN(t)
	p := frameworktest.Profile()
	p.Database.Driver, p.Database.DSN = "postgres", config.Secret(dsn)
	conn, err := connect.Open(t.Context(), p, frameworktest.Logger(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	other, err := pgnotify.NewWaker(pgnotify.Config{DSN: dsn})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), frameworktest.Timeout)
	defer cancel()
	require.NoError(t, other.Wait(ctx), "connected")

	app := onConnections(t, conn, nil)
	app.Emits(made.Descriptor())
	frameworktest.On(t, conn.Broker).Start(app)
	require.NoError(t, framework.Publish(app.Context(ctx), made.New("k", thing{Name: "a"})))
	require.NoError(t, other.Wait(ctx), "told")
}
