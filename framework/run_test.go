package framework_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/pkg/events"
)

// stopping begins a drain and returns its end. It returns once readiness is off.
func (f *fixture) stopping(r *frameworktest.Running) <-chan error {
	f.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- r.Stop() }()
	require.Eventually(f.t, func() bool { return f.app.Health(f.t.Context()).State == "draining" }, frameworktest.Timeout, time.Millisecond)
	return ended
}

// again is a second service process on the same database and broker.
func (f *fixture) again(register func(*framework.App)) *framework.App {
	f.t.Helper()
	app, err := framework.New(framework.Config{
		Service: "things", Profile: frameworktest.Profile(), DB: f.conn.DB, Dialect: f.conn.Dialect, Broker: f.Broker(), Logger: frameworktest.Logger(f.t),
	})
	require.NoError(f.t, err)
	register(app)
	f.Start(app)
	return app
}

// B14, B08: what runs when the stop comes finishes, its events are flushed, it is
// acked, and nothing of it runs again; what has not begun is left to others.
func TestDrainFinishesWhatRuns_B14_B08(t *testing.T) {
	t.Parallel()
	f := setup(t)
	entered, release := make(chan string, 2), make(chan struct{})
	f.app.Emits(counted.Descriptor())
	framework.HandleTx(f.app, made, "slow", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
		entered <- e.Data.Name
		<-release
		if err := write(ctx, tx, e); err != nil {
			return err
		}
		return framework.Emit(ctx, tx, counted.New("k", e.Data))
	}, framework.Concurrency(1), framework.OrderByKey())
	run := f.start()
	f.Publish(made.New("k", thing{Name: "first"}), made.New("k", thing{Name: "second"}))
	require.Equal(t, "first", await(t, entered, "the handler"))

	ended := f.stopping(run)
	select {
	case err := <-ended:
		require.FailNow(t, "the drain did not wait for the handler", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	require.NoError(t, await(t, ended, "the drain's end"))
	require.Empty(t, entered, "the second message was not begun")
	require.Equal(t, 1, f.effects())
	flushed := frameworktest.Published(f.System, counted)
	require.Len(t, flushed, 1, "the event is flushed before Run returns")
	require.Zero(t, f.count("SELECT count(*) FROM watermill_headrace_outbox"))

	var names []string
	f.again(func(app *framework.App) {
		app.Emits(counted.Descriptor())
		framework.HandleTx(app, made, "slow", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
			names = append(names, e.Data.Name)
			return write(ctx, tx, e)
		}, framework.Concurrency(1))
	})
	f.Idle()
	require.Equal(t, []string{"second"}, names, "the first was acked, the second came back at once")
}

// B14: a request that runs when the stop comes finishes and what it wrote is
// flushed; readiness is off; new connections are refused.
func TestDrainFinishesRequests_B14(t *testing.T) {
	t.Parallel()
	f := setup(t)
	entered, release := make(chan struct{}), make(chan struct{})
	f.app.Emits(counted.Descriptor())
	f.app.HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-release
		err := f.app.Tx(r.Context(), func(ctx context.Context, tx *sql.Tx) error {
			return framework.Emit(ctx, tx, counted.New("k", thing{Name: "late"}))
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	run := f.start()
	api, admin := "http://"+f.app.HTTPAddr(), "http://"+f.app.AdminAddr()
	require.Equal(t, http.StatusOK, get(t, admin+"/readyz"))
	status := make(chan int, 1)
	go func() { status <- get(t, api+"/") }()
	await(t, entered, "the request")

	ended := f.stopping(run)
	require.Equal(t, http.StatusServiceUnavailable, get(t, admin+"/readyz"))
	require.Equal(t, http.StatusOK, get(t, admin+"/healthz"), "alive, not ready")
	require.Eventually(t, func() bool {
		c, err := net.DialTimeout("tcp", f.app.HTTPAddr(), time.Second)
		if err == nil {
			c.Close()
		}
		return err != nil
	}, frameworktest.Timeout, time.Millisecond, "the listener is closed")
	close(release)
	require.Equal(t, http.StatusOK, await(t, status, "the answer"))
	require.NoError(t, await(t, ended, "the drain's end"))
	require.Len(t, frameworktest.Published(f.System, counted), 1)
}

var client = &http.Client{Timeout: frameworktest.Timeout, Transport: &http.Transport{DisableKeepAlives: true}}

func get(t *testing.T, url string) int {
	res, err := client.Get(url)
	if err != nil {
		t.Errorf("GET %s: %v", url, err)
		return 0
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// B14: rows that could not be flushed stay in the outbox, and the next process
// publishes them.
func TestUnflushedRowsSurvive_B14(t *testing.T) {
	t.Parallel()
	s := frameworktest.New(t)
	flaky := &flakyBroker{Broker: s.Broker(), topic: counted.Topic(), failures: 1 << 30}
	f := setupOn(t, s, func(c *framework.Config) {
		c.Broker = flaky
		c.Profile.Drain.Timeout = time.Second
	})
	f.app.Emits(counted.Descriptor())
	run := f.start()
	require.NoError(t, f.app.Tx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		return framework.Emit(ctx, tx, counted.New("k", thing{Name: "kept"}))
	}))
	require.NoError(t, run.Stop())
	require.Equal(t, 1, f.count("SELECT count(*) FROM watermill_headrace_outbox"))
	f.again(func(app *framework.App) { app.Emits(counted.Descriptor()) })
	require.Equal(t, "kept", frameworktest.Await(f.System, counted, nil).Data.Name)
}

// B14: closing what never ran is instant, also twice, and ends it.
func TestCloseOfANeverRunAppIsInstant_B14(t *testing.T) {
	t.Parallel()
	f := setup(t)
	framework.HandleTx(f.app, made, "count", write)
	start := time.Now()
	require.NoError(t, f.app.Close())
	require.NoError(t, f.app.Close())
	require.Less(t, time.Since(start), 100*time.Millisecond)
	require.ErrorIs(t, f.app.Run(t.Context()), framework.ErrRunOnce)
}

func TestAnAppRunsOnce(t *testing.T) {
	t.Parallel()
	f := setup(t)
	framework.HandleTx(f.app, made, "count", write)
	run := f.start()
	require.ErrorIs(t, f.app.Run(t.Context()), framework.ErrRunOnce)
	require.NoError(t, f.app.Close(), "Close drains a running app")
	require.NoError(t, run.Wait())
	require.ErrorIs(t, f.app.Run(t.Context()), framework.ErrRunOnce)
	require.NoError(t, f.app.Close())
}

func TestRunUnderAnEndedContext(t *testing.T) {
	t.Parallel()
	f := setup(t)
	framework.HandleTx(f.app, made, "count", write)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := f.app.Run(ctx)
	require.True(t, err == nil || errors.Is(err, context.Canceled), "%v", err)
}

// B04, B14: a handler that ignores everything does not hold the process: Run
// ends at its own bound and names it.
func TestDrainHasItsOwnBound_B14(t *testing.T) {
	t.Parallel()
	f := setup(t, func(c *framework.Config) { c.Profile.Drain.Timeout = time.Second })
	release := make(chan struct{})
	entered := make(chan struct{}, 1)
	framework.Handle(f.app, made, "stuck", func(context.Context, events.Event[thing]) error {
		entered <- struct{}{}
		<-release
		return nil
	}, framework.NoDedup())
	defer close(release) // the test leaves no goroutine behind
	run := f.start()
	f.Publish(made.New("k", thing{Name: "a"}))
	await(t, entered, "the handler")
	start := time.Now()
	err := run.Stop()
	took := time.Since(start)
	require.ErrorContains(t, err, `"stuck" (1)`)
	require.Less(t, took, 5*time.Second)
	require.GreaterOrEqual(t, took, 500*time.Millisecond)
}

// endingBroker's subscriptions can be ended by the test.
type endingBroker struct {
	broker.Broker
	subs chan message.Subscriber
}

func (b *endingBroker) Subscriber(cfg broker.SubscriberConfig) (message.Subscriber, error) {
	sub, err := b.Broker.Subscriber(cfg)
	b.subs <- sub
	return sub, err
}

func TestASubscriptionThatEndsEndsTheService(t *testing.T) {
	t.Parallel()
	s := frameworktest.New(t)
	b := &endingBroker{Broker: s.Broker(), subs: make(chan message.Subscriber, 4)}
	f := setupOn(t, s, func(c *framework.Config) { c.Broker = b })
	framework.HandleTx(f.app, made, "count", write)
	framework.HandleTx(f.app, counted, "other", write)
	run := f.start()
	require.True(t, f.app.Health(t.Context()).Ready)
	require.NoError(t, (<-b.subs).Close())
	require.ErrorContains(t, run.Wait(), "ended by itself")
}

// What holds only in part is told once, and no alarm: most brokers are so.
func TestOrderWithinOneProcessIsToldOnce(t *testing.T) {
	t.Parallel()
	s := frameworktest.New(t)
	b := featured{Broker: s.Broker(), features: s.Broker().Features()}
	b.features.Durable, b.features.OrderAcrossReplicas = true, false
	var log lockedBuffer
	f := setupOn(t, s, func(c *framework.Config) { c.Broker, c.Logger = b, slog.New(slog.NewTextHandler(&log, nil)) })
	framework.HandleTx(f.app, made, "one", write, framework.OrderByKey())
	framework.HandleTx(f.app, made, "two", write, framework.OrderByKey())
	framework.HandleTx(f.app, made, "three", write)
	f.start()
	require.Equal(t, 1, strings.Count(log.String(), "order by key holds within one process"))
	require.Contains(t, log.String(), `handlers="[one two]"`)
	require.NotContains(t, log.String(), "level=WARN")
}

// brokenPing fails the broker's ping when told to.
type brokenPing struct {
	broker.Broker
	down atomic.Bool
}

func (b *brokenPing) Ping(ctx context.Context) error {
	if b.down.Load() {
		return errBroken
	}
	return b.Broker.Ping(ctx)
}

func TestReadinessTellsTheTruth(t *testing.T) {
	t.Parallel()
	s := frameworktest.New(t)
	b := &brokenPing{Broker: s.Broker()}
	f := setupOn(t, s, func(c *framework.Config) {
		c.Broker = b
		c.Profile.Drain.Timeout = time.Second // the database is gone by then: nothing to flush to
	})
	framework.HandleTx(f.app, made, "count", write)
	require.False(t, f.app.Health(t.Context()).Ready, "before Run")
	f.start()
	url := "http://" + f.app.AdminAddr() + "/readyz"
	require.Equal(t, http.StatusOK, get(t, url))

	b.down.Store(true)
	res, err := client.Get(url)
	require.NoError(t, err)
	defer res.Body.Close()
	var h framework.Health
	require.NoError(t, json.NewDecoder(res.Body).Decode(&h))
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	require.Equal(t, "degraded", h.State)
	require.Equal(t, "broken", h.Checks["broker"])
	require.Equal(t, "ok", h.Checks["database"])
	require.Equal(t, "ok", h.Checks["subscriptions"])
	require.Equal(t, "ok", h.Checks["outbox"])

	b.down.Store(false)
	require.Equal(t, http.StatusOK, get(t, url))
	require.NoError(t, f.conn.DB.Close())
	require.Equal(t, http.StatusServiceUnavailable, get(t, url))
}

func TestAnAddressInUseIsTold(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	f := setup(t, func(c *framework.Config) { c.Profile.HTTP.Addr = ln.Addr().String() })
	framework.HandleTx(f.app, made, "count", write)
	f.app.HTTP(http.NotFoundHandler())
	err = f.app.Run(t.Context())
	require.ErrorContains(t, err, "http.addr")
	require.ErrorContains(t, err, "HEADRACE_HTTP_ADDR")
	require.ErrorContains(t, err, ln.Addr().String())
}

func TestMetricsShowBacklogAndDeadLetters(t *testing.T) {
	t.Parallel()
	f := setup(t, func(c *framework.Config) { c.Profile.Admin.StatsInterval = 5 * time.Millisecond })
	release := make(chan struct{})
	framework.Handle(f.app, made, "fail", func(ctx context.Context, e events.Event[thing]) error {
		if e.Data.Name == "slow" {
			<-release
		}
		return framework.Permanent(errBroken)
	}, framework.Concurrency(1))
	f.start()
	f.Publish(made.New("a", thing{Name: "bad"}))
	f.AwaitDeadLetter("things.fail", nil)
	f.Publish(made.New("b", thing{Name: "slow"}))
	group := map[string]string{"handler": "fail", "group": "things.fail"}
	require.Eventually(t, func() bool {
		return f.metric("headrace_dlq_depth", group) == 1 && f.metric("headrace_consumer_pending", group) == 1 && f.metric("headrace_consumer_oldest_age_seconds", group) > 0
	}, frameworktest.Timeout, 5*time.Millisecond)
	close(release)

	res, err := client.Get("http://" + f.app.AdminAddr() + "/metrics")
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	for _, name := range []string{"go_goroutines", "process_", "headrace_messages_total", "headrace_consumer_lag", "headrace_dlq_depth"} {
		require.Contains(t, string(body), "\n"+name)
	}
	require.Contains(t, string(body), `headrace_ready{service="things"} 1`)
}
