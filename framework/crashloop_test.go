package framework_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// crashMaxDeliveries is the budget of a message that kills the process.
const crashMaxDeliveries = 5

// crashEnv names the variable that makes the test binary a process of the
// service: "kind database broker".
const crashEnv = "HEADRACE_TEST_CRASH_PROCESS"

// crashStages are where a message kills the process: each gives what crashEnv
// holds.
var crashStages = map[string]func(t *testing.T) string{
	"redis+postgres": func(t *testing.T) string {
		return "redisstream " + testenv.PostgresDSN(t) + " " + testenv.Redis(t).URL()
	},
	"sql+postgres": func(t *testing.T) string {
		dsn := testenv.PostgresDSN(t)
		return "sql " + dsn + " " + dsn
	},
	"sqs+postgres": func(t *testing.T) string {
		return "sqs " + testenv.PostgresDSN(t) + " " + sharedAWS(t) + "/t" + strings.ReplaceAll(events.NewID(), "-", "")[20:]
	},
}

// crashProfile is the profile of that service on the servers named.
func crashProfile(t *testing.T, where string) config.Profile {
	t.Helper()
	var kind, dsn, url string
	_, err := fmt.Sscan(where, &kind, &dsn, &url)
	require.NoError(t, err)
	p := frameworktest.Profile()
	p.HTTP.Addr, p.Admin.Addr = "", ""
	p.Database.Driver, p.Database.DSN = "postgres", config.Secret(dsn)
	p.Broker.Kind = kind
	if kind == "sqs" {
		endpoint, prefix := path.Split(url)
		p.Broker.Prefix = prefix
		p.Broker.AWS.Endpoint, p.Broker.AWS.Region, p.Broker.AWS.WaitTime = strings.TrimSuffix(endpoint, "/"), "us-east-1", time.Second
	} else {
		p.Broker.URL = config.Secret(url)
	}
	p.Delivery.Lease = time.Second
	p.Delivery.MaxDeliveries = crashMaxDeliveries
	return p
}

// TestCrashLoopProcess is no test but the process of the next one.
func TestCrashLoopProcess(t *testing.T) {
	where := os.Getenv(crashEnv)
	if where == "" {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	p := crashProfile(t, where)
	conn, err := connect.Open(ctx, p, quiet)
	require.NoError(t, err)
	defer conn.Close()
	app, err := framework.New(framework.Config{
		Service: "things", Profile: p, DB: conn.DB, Dialect: conn.Dialect, Broker: conn.Broker, OutboxWaker: conn.Waker, Logger: quiet,
	})
	require.NoError(t, err)
	framework.HandleTx(app, made, "count", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
		if e.Data.Name == "killer" {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				return err
			}
			select {}
		}
		select { // slow enough to die with its neighbour
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		return write(ctx, tx, e)
	}, framework.Concurrency(4))
	require.NoError(t, app.Run(ctx))
}

// B30, and the crash loop: one message kills the process each time that it runs.
// Attempts survive crashes, so it is dead-lettered unrun once its deliveries are
// used up; its neighbours, which die with it, are all handled and none of them is
// dead-lettered.
func TestAMessageThatKillsTheProcess_B30(t *testing.T) {
	t.Parallel()
	for name, stage := range crashStages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testAMessageThatKillsTheProcess(t, stage(t))
		})
	}
}

func testAMessageThatKillsTheProcess(t *testing.T, where string) {
	conn, err := connect.Open(t.Context(), crashProfile(t, where), frameworktest.Logger(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	_, err = conn.DB.ExecContext(t.Context(), "CREATE TABLE effects (event_id TEXT NOT NULL, n BIGINT NOT NULL)")
	require.NoError(t, err)
	f := &fixture{System: frameworktest.On(t, conn.Broker), t: t, conn: conn}
	// On SQS a group gets what is sent once its queue is there.
	require.NoError(t, conn.Broker.EnsureTopology(t.Context(), broker.Subscription{Topic: made.Topic(), Group: "things.count"}))
	const n = 40
	for i := range n {
		name := "good"
		if i == 4 {
			name = "killer"
		}
		f.Publish(made.New(fmt.Sprint(i), thing{Name: name, N: i}))
	}

	killed := 0
	for deadline := time.Now().Add(2 * time.Minute); ; {
		process := exec.Command(os.Args[0], "-test.run=^TestCrashLoopProcess$")
		process.Env = append(os.Environ(), crashEnv+"="+where)
		out := &lockedOutput{}
		process.Stdout, process.Stderr = out, out
		require.NoError(t, process.Start())
		ended := make(chan error, 1)
		go func() { ended <- process.Wait() }()
		survived := false
		for !survived {
			require.True(t, time.Now().Before(deadline), "%d of %d handled after %d crashes, %d dead letters", f.effects(), n-1, killed, len(f.DeadLetters("things.count")))
			select {
			case <-ended:
			case <-time.After(20 * time.Millisecond):
				survived = f.effects() >= n-1 && len(f.DeadLetters("things.count")) > 0
				continue
			}
			break
		}
		if survived {
			require.NoError(t, process.Process.Signal(syscall.SIGTERM))
			require.NoError(t, await(t, ended, "the drain"), out)
			break
		}
		status, _ := process.ProcessState.Sys().(syscall.WaitStatus)
		require.Equal(t, syscall.SIGKILL, status.Signal(), out)
		killed++
	}
	require.Equal(t, crashMaxDeliveries, killed, "it ran once in each of its deliveries")
	require.Equal(t, n-1, f.effects())
	require.Equal(t, n-1, f.count("SELECT count(DISTINCT event_id) FROM effects"))
	dead := f.DeadLetters("things.count")
	require.Len(t, dead, 1)
	require.Equal(t, middleware.ReasonDeliveriesExhausted, dead[0].Reason)
	e, err := events.Decode(dead[0].Message.Payload)
	require.NoError(t, err)
	require.JSONEq(t, `{"name":"killer","n":4}`, string(e.Data))
}

// lockedOutput keeps what a process writes.
type lockedOutput struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *lockedOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *lockedOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
