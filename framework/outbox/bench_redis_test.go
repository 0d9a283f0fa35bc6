package outbox

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
)

// BenchmarkRelayToRedis drains a backlog on Postgres into a Redis stream.
func BenchmarkRelayToRedis(b *testing.B) {
	server := testenv.Redis(b)
	e := newEnv(b, sqltx.Postgres)
	fill(b, e, b.N)
	broker, err := redisstream.Open(b.Context(), redisstream.Config{URL: server.URL(), Logger: quiet()})
	require.NoError(b, err)
	r, err := NewRelay(RelayConfig{DB: e.db, Dialect: e.dialect, Publisher: broker.Publisher(), Logger: quiet()})
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	b.ResetTimer()
	start := time.Now()
	wg.Go(func() { _ = r.Run(ctx) })
	require.NoError(b, r.Flush(ctx))
	took := time.Since(start)
	b.StopTimer()
	cancel()
	wg.Wait()
	depth, err := broker.Admin().Depth(context.Background(), "order.placed")
	require.NoError(b, err)
	require.Equal(b, int64(b.N), depth)
	require.NoError(b, broker.Close())
	b.ReportMetric(float64(b.N)/took.Seconds(), "rows/s")
}

// BenchmarkCommitToPublish is the time from the commit of one event to its
// publish, while nothing else goes on.
func BenchmarkCommitToPublish(b *testing.B) {
	for _, d := range []sqltx.Dialect{sqltx.Postgres, sqltx.MySQL, sqltx.SQLite} {
		b.Run(string(d), func(b *testing.B) {
			e := newEnv(b, d)
			pub := newFakeBroker()
			r, err := NewRelay(RelayConfig{DB: e.db, Dialect: d, Publisher: pub, Logger: quiet()})
			require.NoError(b, err)
			w := e.writer(b, r.Wake)
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			wg.Go(func() { _ = r.Run(ctx) })
			var waited time.Duration
			b.ResetTimer()
			for i := range b.N {
				e.write(b, w, event(i))
				committed := time.Now()
				pub.await(b, i+1)
				waited += time.Since(committed)
			}
			b.StopTimer()
			cancel()
			wg.Wait()
			b.ReportMetric(float64(waited.Microseconds())/float64(b.N), "µs/commit-to-publish")
		})
	}
}
