package framework_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/deadletter"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// parkCrashEnv names the variable that makes the test binary a process that dies
// at a dead letter: "database broker when reason".
const parkCrashEnv = "HEADRACE_TEST_PARK_CRASH_PROCESS"

func parkCrashProfile(dsn, url string) config.Profile {
	p := frameworktest.Profile()
	p.HTTP.Addr, p.Admin.Addr = "", ""
	p.Database.Driver, p.Database.DSN = "postgres", config.Secret(dsn)
	p.Broker.Kind, p.Broker.URL = "redisstream", config.Secret(url)
	p.Delivery.Lease = time.Second
	return p
}

// deadly is a broker that kills the process before or after it takes a dead
// letter of a reason.
type deadly struct {
	broker.Broker
	when, reason string
}

func (b deadly) Publisher() broker.Publisher { return deadlyPublisher{b.Broker.Publisher(), b} }

type deadlyPublisher struct {
	broker.Publisher
	b deadly
}

func (p deadlyPublisher) Publish(topic string, msgs ...*message.Message) error {
	hit := topic == broker.DeadLetterTopic(parkGroup) && msgs[0].Metadata[middleware.DeadLetterReason] == p.b.reason
	if hit && p.b.when == "before" {
		die()
	}
	err := p.Publisher.Publish(topic, msgs...)
	if hit && err == nil {
		die()
	}
	return err
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// TestParkCrashProcess is no test but the process of the next one.
func TestParkCrashProcess(t *testing.T) {
	where := os.Getenv(parkCrashEnv)
	if where == "" {
		return
	}
	var dsn, url string
	var b deadly
	_, err := fmt.Sscan(where, &dsn, &url, &b.when, &b.reason)
	require.NoError(t, err)
	p := parkCrashProfile(dsn, url)
	conn, err := connect.Open(context.Background(), p, quiet)
	require.NoError(t, err)
	defer conn.Close()
	b.Broker = conn.Broker
	app, err := framework.New(framework.Config{
		Service: "things", Profile: p, DB: conn.DB, Dialect: conn.Dialect, Broker: b, OutboxWaker: conn.Waker, Logger: quiet,
	})
	require.NoError(t, err)
	framework.HandleTx(app, made, "count", func(_ context.Context, _ *sql.Tx, e events.Event[thing]) error {
		if e.Data.Name == "a1" {
			return framework.Permanent(errBroken)
		}
		return fmt.Errorf("%s must not run here", e.Data.Name)
	}, framework.OrderByKey(), framework.ParkKey())
	require.NoError(t, app.Run(context.Background()))
}

// A process dies between the row and the dead letter, or between the dead letter
// and the ack: nothing is lost, nothing of the key runs early, no row stays.
func TestACrashWhileParking(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		when, reason  string
		rows, letters int // after the crash
		mended        []string
	}{
		{"before", middleware.ReasonPermanent, 1, 0, []string{"a1", "a2", "a3"}},
		{"after", middleware.ReasonPermanent, 1, 1, []string{"a1", "a2", "a3"}},
		{"before", middleware.ReasonParked, 2, 1, nil},
		{"after", middleware.ReasonParked, 2, 2, nil},
	} {
		for _, mendedFirst := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s the dead letter, %s, mended %t", c.when, c.reason, mendedFirst), func(t *testing.T) {
				t.Parallel()
				dsn, url := testenv.PostgresDSN(t), testenv.Redis(t).URL()
				p := parkCrashProfile(dsn, url)
				conn, err := connect.Open(t.Context(), p, frameworktest.Logger(t))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, conn.Close()) })
				_, err = conn.DB.ExecContext(t.Context(), "CREATE TABLE effects (event_id TEXT NOT NULL, n BIGINT NOT NULL)")
				require.NoError(t, err)
				f := newCounting(&fixture{System: frameworktest.On(t, conn.Broker), t: t, conn: conn, app: onConnections(t, conn, func(o *config.Profile) { o.Delivery.Lease = p.Delivery.Lease })})
				f.publish("a1", "a2", "a3")

				process := exec.Command(os.Args[0], "-test.run=^TestParkCrashProcess$")
				process.Env = append(os.Environ(), parkCrashEnv+"="+dsn+" "+url+" "+c.when+" "+c.reason)
				out := &lockedOutput{}
				process.Stdout, process.Stderr = out, out
				require.NoError(t, process.Start())
				ended := make(chan error, 1)
				go func() { ended <- process.Wait() }()
				require.Error(t, await(t, ended, "the crash"))
				status, _ := process.ProcessState.Sys().(syscall.WaitStatus)
				require.Equal(t, syscall.SIGKILL, status.Signal(), out)
				require.Equal(t, c.rows, f.parked())
				require.Len(t, f.letters(), c.letters)

				framework.HandleTx(f.app, made, "count", f.tx, framework.OrderByKey(), framework.ParkKey(), framework.MaxAttempts(1))
				if !mendedFirst {
					f.breakDown("a1")
				}
				f.start()
				f.Idle()
				if mendedFirst {
					require.Equal(t, c.mended, f.ran())
				} else {
					require.Equal(t, 3, f.parked())
					f.breakDown()
					f.ran()
				}
				f.replay(deadletter.ReplayOptions{})
				if !mendedFirst || c.mended == nil {
					require.Equal(t, []string{"a1", "a2", "a3"}, f.ran())
				} else {
					require.Empty(t, f.ran(), "what lay there was a copy")
				}
				require.Equal(t, 3, f.effects())
				require.Zero(t, f.parked())
				require.Empty(t, f.letters())
			})
		}
	}
}

// Handlers that fail now and then, replays all the while, on several replicas
// where the broker keeps order across them: each event takes effect once, those
// of a key in order, and in the end nothing is parked.
func TestOrderSurvivesFailuresAndReplays(t *testing.T) {
	t.Parallel()
	const keys, each = 5, 12
	for name, replicas := range map[string]int{"sql": 2, "redisstream": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := frameworktest.Profile()
			p.Database.Driver, p.Database.DSN = "postgres", config.Secret(testenv.PostgresDSN(t))
			p.Broker.Kind, p.Broker.URL = name, p.Database.DSN
			if name == "redisstream" {
				p.Broker.URL = config.Secret(testenv.Redis(t).URL())
			}
			conn := opened(t, &p)
			f := &fixture{System: frameworktest.On(t, conn.Broker), t: t, conn: conn}
			_, err := conn.DB.ExecContext(t.Context(), "CREATE TABLE runs (pos BIGINT GENERATED ALWAYS AS IDENTITY, name TEXT NOT NULL, n BIGINT NOT NULL)")
			require.NoError(t, err)
			var mended atomic.Bool
			c := newCounting(f)
			for i := range replicas {
				if i > 0 {
					conn = opened(t, &p)
				}
				app := onConnections(t, conn, nil)
				framework.HandleTx(app, made, "count", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
					if !mended.Load() && rand.N(4) == 0 {
						return errBroken
					}
					_, err := tx.ExecContext(ctx, "INSERT INTO runs (name, n) VALUES ($1, $2)", e.Data.Name, e.Data.N)
					return err
				}, framework.OrderByKey(), framework.ParkKey(), framework.MaxAttempts(1))
				f.Start(app)
			}
			forever := deadletter.ReplayOptions{MaxRedrives: -1}
			for n := range each {
				for k := range keys {
					name := fmt.Sprint("k", k)
					f.Publish(made.New(name, thing{Name: name, N: n}))
				}
				if n%3 == 2 {
					_, err := c.queue.Replay(t.Context(), forever)
					require.NoError(t, err)
				}
			}
			f.Idle()
			require.NotEmpty(t, c.letters(), "some were parked")
			mended.Store(true)
			for range 5 {
				c.replay(forever)
				if c.parked() == 0 {
					break
				}
			}
			require.Zero(t, c.parked())
			require.Empty(t, c.letters())
			for k := range keys {
				rows, err := f.conn.DB.QueryContext(t.Context(), "SELECT n FROM runs WHERE name = $1 ORDER BY pos", fmt.Sprint("k", k))
				require.NoError(t, err)
				var got []int
				for rows.Next() {
					var n int
					require.NoError(t, rows.Scan(&n))
					got = append(got, n)
				}
				require.NoError(t, rows.Err())
				want := make([]int, each)
				for i := range want {
					want[i] = i
				}
				require.Equal(t, want, got, "key %d", k)
			}
		})
	}
}
