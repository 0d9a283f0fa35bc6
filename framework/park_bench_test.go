package framework_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/pkg/events"
)

// BenchmarkParkKey measures what ParkKey costs while nothing is parked: events of
// a hundred keys through HandleTx, which writes a row for each, on Postgres and
// Redis.
func BenchmarkParkKey(b *testing.B) {
	for name, opts := range map[string][]framework.HandlerOption{
		"without": {framework.OrderByKey()}, "with": {framework.OrderByKey(), framework.ParkKey()},
	} {
		b.Run(name, func(b *testing.B) {
			p := frameworktest.Profile()
			p.Database.Driver, p.Database.DSN = "postgres", config.Secret(testenv.PostgresDSN(b))
			p.Broker.Kind, p.Broker.URL = "redisstream", config.Secret(testenv.Redis(b).URL())
			p.Log.Level = "error"
			conn, err := connect.Open(b.Context(), p, quiet)
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, conn.Close()) })
			_, err = conn.DB.ExecContext(b.Context(), "CREATE TABLE effects (event_id TEXT NOT NULL, n BIGINT NOT NULL)")
			require.NoError(b, err)
			app, err := framework.New(framework.Config{
				Service: "things", Profile: p, DB: conn.DB, Dialect: conn.Dialect, Broker: conn.Broker, OutboxWaker: conn.Waker, Logger: quiet,
			})
			require.NoError(b, err)
			var handled atomic.Int64
			done := make(chan struct{})
			framework.HandleTx(app, made, "count", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
				if err := write(ctx, tx, e); err != nil {
					return err
				}
				if handled.Add(1) == int64(b.N) {
					close(done)
				}
				return nil
			}, opts...)
			var batch []*message.Message
			for i := range b.N {
				env, err := made.New(fmt.Sprint(i%100), thing{Name: "a", N: i}).Seal(events.Stamp{ID: events.NewID(), Source: "bench", Now: time.Now()})
				require.NoError(b, err)
				payload, err := env.Encode()
				require.NoError(b, err)
				m := message.NewMessage(env.ID, payload)
				for k, v := range env.Headers() {
					m.Metadata.Set(k, v)
				}
				if batch = append(batch, m); len(batch) == 1000 || i == b.N-1 {
					require.NoError(b, conn.Broker.Publisher().PublishBatch(b.Context(), made.Topic(), batch))
					batch = nil
				}
			}
			s := frameworktest.On(b, conn.Broker)
			b.ResetTimer()
			s.Start(app)
			select {
			case <-done:
			case <-time.After(5 * time.Minute):
				b.Fatalf("%d of %d handled", handled.Load(), b.N)
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
