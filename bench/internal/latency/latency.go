// Package latency measures how long an event takes from the commit that writes
// it to the start of its handler.
package latency

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/headrace-go/headrace/bench/internal/measure"
	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/pkg/events"
)

// Options say what to measure and where.
type Options struct {
	Postgres, Redis string
	// Events is how many are measured, after a tenth as many to warm up.
	Events int
	// Every is the time between two of them; 0: as fast as Writers can.
	Every time.Duration
	// Writers is how many transactions may be under way at once. Default 1. An
	// event that is due while all are busy is written as soon as one is free.
	Writers int
}

// Result is what a run saw.
type Result struct {
	Options Options
	// FromEmit counts from just before the commit, so it includes the commit
	// itself; FromCommit counts from the commit's return. Both sorted.
	FromEmit, FromCommit []time.Duration
	// Rate is how many events a second were handled, from the first emission to
	// the last handling.
	Rate float64
}

type tickedData struct {
	N int `json:"n"`
}

// Run measures with one app that writes in one transaction an event and handles
// it in another: outbox, relay, broker, the whole stack and the inbox are on the
// way.
func Run(ctx context.Context, o Options) (Result, error) {
	r := Result{Options: o}
	dsn, drop, err := measure.PostgresDatabase(ctx, o.Postgres)
	if err != nil {
		return r, err
	}
	defer drop()
	p := config.Profile{Env: "bench"}
	p.HTTP.Addr, p.Admin.Addr = "127.0.0.1:0", "127.0.0.1:0"
	p.Broker.Kind, p.Broker.URL = "redisstream", config.Secret(o.Redis)
	p.Broker.Prefix = "bench-" + events.NewID() + ":"
	p.Database.Driver, p.Database.DSN = "postgres", config.Secret(dsn)
	p = p.WithDefaults()
	logger := slog.New(slog.DiscardHandler)
	c, err := connect.Open(ctx, p, logger)
	if err != nil {
		return r, err
	}
	defer c.Close()
	app, err := framework.New(framework.Config{
		Service: "bench", Profile: p, DB: c.DB, Dialect: c.Dialect, Broker: c.Broker, OutboxWaker: c.Waker, Logger: logger,
	})
	if err != nil {
		return r, err
	}
	ticked := events.Define[tickedData]("clock.ticked", "1.0")
	m := newMarks(o.Events + o.Events/10)
	framework.HandleTx(app, ticked, "measure", func(_ context.Context, _ *sql.Tx, e events.Event[tickedData]) error {
		m.started(e.Data.N)
		return nil
	})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- app.Run(ctx) }()
	select {
	case <-app.Ready():
	case err := <-ended:
		return r, fmt.Errorf("the app ended before it was ready: %w", err)
	}
	began := time.Now()
	if err := emitAll(ctx, app, o, m, func(n int) events.Draft {
		return ticked.New(fmt.Sprint("k", n%100), tickedData{N: n})
	}); err != nil {
		return r, err
	}
	select {
	case <-m.all:
	case <-time.After(30 * time.Second):
		return r, fmt.Errorf("not every event was handled within 30 s of the last")
	}
	r.Rate = float64(len(m.begun)) / time.Since(began).Seconds()
	r.FromEmit, r.FromCommit = m.since(o.Events / 10)
	cancel()
	if err := <-ended; err != nil {
		return r, fmt.Errorf("stop the app: %w", err)
	}
	return r, cleanKeys(o.Redis, p.Broker.Prefix)
}

// emitAll writes the events at their times.
func emitAll(ctx context.Context, app *framework.App, o Options, m *marks, draft func(n int) events.Draft) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	due := make(chan int)
	var writers sync.WaitGroup
	for range max(o.Writers, 1) {
		writers.Go(func() {
			for n := range due {
				err := app.Tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
					err := framework.Emit(ctx, tx, draft(n))
					m.emitted(n)
					return err
				})
				if err != nil {
					stop(fmt.Errorf("emit event %d: %w", n, err))
					continue
				}
				m.committed(n)
			}
		})
	}
	began := time.Now()
	for n := range len(m.begun) {
		// By the clock and not by a ticker, which drops what nobody waited for.
		if wait := time.Until(began.Add(time.Duration(n) * o.Every)); wait > 0 {
			time.Sleep(wait)
		}
		due <- n
	}
	close(due)
	writers.Wait()
	return context.Cause(ctx)
}

// At returns the latency from the commit's return below which the share q lies.
func (r Result) At(q float64) time.Duration { return at(r.FromCommit, q) }

// Print writes the figures as a table.
func (r Result) Print(w io.Writer) {
	fmt.Fprintf(w, "commit to handler start, Postgres outbox -> Redis Streams -> HandleTx, %d events, one every %s\n", r.Options.Events, r.Options.Every)
	fmt.Fprintf(w, "%-28s %10s %10s %10s %10s\n", "counted from", "p50", "p90", "p99", "max")
	for _, row := range []struct {
		name string
		ds   []time.Duration
	}{{"before the commit", r.FromEmit}, {"the commit's return", r.FromCommit}} {
		fmt.Fprintf(w, "%-28s %10s %10s %10s %10s\n", row.name,
			short(at(row.ds, 0.5)), short(at(row.ds, 0.9)), short(at(row.ds, 0.99)), short(at(row.ds, 1)))
	}
}

func at(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func short(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }

// marks holds the three moments of each event.
type marks struct {
	mu                  sync.Mutex
	emit, commit, begun []time.Time
	left                int
	all                 chan struct{}
}

func newMarks(n int) *marks {
	return &marks{emit: make([]time.Time, n), commit: make([]time.Time, n), begun: make([]time.Time, n), left: n, all: make(chan struct{})}
}

func (m *marks) emitted(n int)   { m.set(m.emit, n) }
func (m *marks) committed(n int) { m.set(m.commit, n) }

func (m *marks) set(at []time.Time, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at[n] = time.Now()
}

func (m *marks) started(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.begun[n].IsZero() {
		return
	}
	m.begun[n] = time.Now()
	if m.left--; m.left == 0 {
		close(m.all)
	}
}

// since returns the sorted latencies of the events after the first skip. The
// handler may begin before the writer hears of its commit: that counts as 0.
func (m *marks) since(skip int) (fromEmit, fromCommit []time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n := skip; n < len(m.begun); n++ {
		fromEmit = append(fromEmit, m.begun[n].Sub(m.emit[n]))
		fromCommit = append(fromCommit, max(m.begun[n].Sub(m.commit[n]), 0))
	}
	slices.Sort(fromEmit)
	slices.Sort(fromCommit)
	return fromEmit, fromCommit
}
