package framework_test

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/pkg/events"
)

// BenchmarkCommitToHandler measures the way of one event on an idle system on
// Postgres and Redis: from the return of the commit that wrote it to the start
// of the handler, over outbox, relay and stream.
func BenchmarkCommitToHandler(b *testing.B) {
	p := frameworktest.Profile()
	p.Database.Driver, p.Database.DSN = "postgres", config.Secret(testenv.PostgresDSN(b))
	p.Broker.Kind, p.Broker.URL = "redisstream", config.Secret(testenv.Redis(b).URL())
	p.Log.Level = "error"
	conn, err := connect.Open(b.Context(), p, quiet)
	require.NoError(b, err)
	app, err := framework.New(framework.Config{
		Service: "things", Profile: p, DB: conn.DB, Dialect: conn.Dialect, Broker: conn.Broker, OutboxWaker: conn.Waker, Logger: quiet,
	})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, conn.Close()) })
	started := make(chan time.Time, 1)
	framework.HandleTx(app, made, "measure", func(context.Context, *sql.Tx, events.Event[thing]) error {
		started <- time.Now()
		return nil
	})
	frameworktest.On(b, conn.Broker).Start(app)

	var took []time.Duration
	for b.Loop() {
		err := app.Tx(b.Context(), func(ctx context.Context, tx *sql.Tx) error {
			return framework.Emit(ctx, tx, made.New("k", thing{Name: "a"}))
		})
		require.NoError(b, err)
		committed := time.Now()
		select {
		case at := <-started:
			took = append(took, at.Sub(committed))
		case <-time.After(frameworktest.Timeout):
			b.Fatalf("event %d did not arrive in %s", len(took), frameworktest.Timeout)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1e3, "ms-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1e3, "ms-p99")
}
