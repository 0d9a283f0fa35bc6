package framework_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker/memory"
	"github.com/headrace-go/headrace/framework/frameworktest"
)

// A job lives from start to drain, and what it emits on its way out is published.
func TestJobIsCancelledAtTheDrainAndItsEventsGoOut(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.app.Emits(made.Descriptor())
	up := make(chan struct{})
	f.app.Background("farewell", func(ctx context.Context) error {
		close(up)
		<-ctx.Done()
		return framework.Publish(context.WithoutCancel(ctx), made.New("k", thing{Name: "bye"}))
	})
	running := f.start()
	await(t, up, "the job's start")
	require.NoError(t, running.Stop())
	require.Equal(t, "bye", frameworktest.Await(f.System, made, nil).Data.Name)
	require.NoError(t, testutil.GatherAndCompare(f.app.Metrics(), strings.NewReader(`
# HELP headrace_job_failures_total Failures of background jobs, each followed by a new start.
# TYPE headrace_job_failures_total counter
headrace_job_failures_total{job="farewell",service="things"} 0
`), "headrace_job_failures_total"))
}

func TestJobThatOverstaysIsNamed(t *testing.T) {
	t.Parallel()
	f := setup(t, func(c *framework.Config) { c.Profile.Drain.Timeout = 100 * time.Millisecond })
	release, up, gone := make(chan struct{}), make(chan struct{}), make(chan struct{})
	f.app.Background("deaf", func(context.Context) error {
		defer close(gone)
		close(up)
		<-release
		return nil
	})
	running := f.start()
	await(t, up, "the job's start")
	require.ErrorContains(t, running.Stop(), `"deaf"`)
	close(release)
	await(t, gone, "the job's end")
}

// Errors, panics and exits bring a job back, ever later, until it is done.
func TestJobComesBackAfterAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log lockedBuffer
		b := memory.New(memory.Config{})
		p := frameworktest.Profile()
		p.HTTP.Addr, p.Admin.Addr = "", ""
		app, err := framework.New(framework.Config{Service: "things", Profile: p, Broker: b, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		var starts []time.Time
		done := make(chan struct{})
		app.Background("shaky", func(context.Context) error {
			starts = append(starts, time.Now())
			switch n := len(starts); {
			case n == 1:
				return errBroken
			case n == 2:
				panic("upside down")
			case n == 3:
				runtime.Goexit()
			case n < 20:
				return errBroken
			}
			close(done)
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- app.Run(ctx) }()
		<-done
		synctest.Wait()
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, b.Close())

		require.Len(t, starts, 20)
		bound := time.Second
		for i := 1; i < len(starts); i++ {
			require.LessOrEqual(t, starts[i].Sub(starts[i-1]), bound, "wait %d", i)
			bound = min(2*bound, time.Minute)
		}
		require.Greater(t, starts[len(starts)-1].Sub(starts[0]), 30*time.Second, "it backs off")
		for _, said := range []string{"job=shaky", "error=broken", "upside down", "background_test.go", "Goexit", `msg="job done"`} {
			require.Contains(t, log.String(), said)
		}
		families, err := app.Metrics().Gather()
		require.NoError(t, err)
		for _, family := range families {
			if family.GetName() == "headrace_job_failures_total" {
				require.InDelta(t, 19, family.GetMetric()[0].GetCounter().GetValue(), 0)
			}
		}
	})
}

func TestEveryRunsAtOnceAndThenEachInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		var at []time.Duration
		require.NoError(t, framework.Every(10*time.Minute, func(context.Context) error {
			if at = append(at, time.Since(start)); len(at) == 3 {
				cancel()
			}
			return nil
		})(ctx))
		require.Equal(t, []time.Duration{0, 10 * time.Minute, 20 * time.Minute}, at)

		calls := 0
		require.ErrorIs(t, framework.Every(0, func(context.Context) error {
			if calls++; calls == 2 {
				return errBroken
			}
			return nil
		})(t.Context()), errBroken, "a failed call is Background's to repeat")
	})
}

func TestFaultyJobsAreRefused(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.app.Background("Purge Keys", func(context.Context) error { return nil })
	f.app.Background("nothing", nil)
	f.app.Background("twice", func(context.Context) error { return nil })
	f.app.Background("twice", func(context.Context) error { return nil })
	err := f.app.Validate()
	for _, named := range []string{`"Purge Keys"`, `"nothing"`, `"twice"`} {
		require.ErrorContains(t, err, named)
	}
}

// lockedBuffer is a buffer for many goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func ExampleApp_Background() {
	b := memory.New(memory.Config{})
	defer b.Close()
	p := frameworktest.Profile()
	p.HTTP.Addr, p.Admin.Addr = "", ""
	app, err := framework.New(framework.Config{Service: "orders", Profile: p, Broker: b, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	rounds := 0
	app.Background("purge-keys", framework.Every(time.Millisecond, func(ctx context.Context) error {
		if rounds++; rounds == 3 {
			stop() // as SIGTERM does
		}
		return nil
	}))
	if err := app.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Println(err)
	}
	fmt.Println("purged", rounds, "times")
	// Output: purged 3 times
}
