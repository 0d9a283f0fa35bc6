package middleware_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/headrace-go/headrace/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func succeed(*message.Message) ([]*message.Message, error) { return nil, nil }

// BenchmarkStack measures what the layers add to a message that is handled at
// the first attempt: each alone, the whole stack, and four stock middlewares.
func BenchmarkStack(b *testing.B) {
	metrics, err := middleware.NewMetrics(prometheus.NewRegistry(), middleware.MetricsConfig{
		Service: "payments", KnownTypes: func(string) bool { return true },
	})
	require.NoError(b, err)
	mw := must(b)
	dedup := middleware.DedupConfig{Store: middleware.NewMemoryDedup(middleware.MemoryDedupConfig{MaxKeys: 10_000})}
	stack, err := middleware.NewStack(middleware.StackConfig{
		Handler: "charge-order", Group: "payments.charge-order", Service: "payments", Metrics: metrics, Logger: quiet,
		Poison:  middleware.PoisonConfig{Publisher: newSink(), Topic: "dlq"},
		Timeout: 10 * time.Second,
		Dedup:   &dedup,
	})
	require.NoError(b, err)
	stock, err := wmiddleware.PoisonQueue(newSink(), "dlq")
	require.NoError(b, err)
	cases := []struct {
		name string
		mw   message.HandlerMiddleware
	}{
		{"none", middleware.Chain()},
		{"recover", middleware.Recover(middleware.RecoverConfig{})},
		{"recover-same-goroutine", middleware.Recover(middleware.RecoverConfig{SameGoroutine: true})},
		{"correlate", middleware.Correlate(middleware.CorrelationConfig{})},
		{"metrics", metrics.Middleware("charge-order", "payments.charge-order")},
		{"poison", mw(middleware.Poison(middleware.PoisonConfig{Publisher: newSink(), Topic: "dlq"}))},
		{"retry", mw(middleware.Retry(middleware.RetryConfig{}))},
		{"timeout", mw(middleware.Timeout(middleware.TimeoutConfig{Timeout: 10 * time.Second}))},
		{"dedup", mw(middleware.Dedup(dedup))},
		{"whole-stack", stack.Middleware},
		{"stock-recoverer-poison-retry-timeout-correlation", middleware.Chain(wmiddleware.Recoverer, wmiddleware.CorrelationID,
			stock, wmiddleware.Retry{MaxRetries: 5}.Middleware, wmiddleware.Timeout(10*time.Second))},
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			h := c.mw(succeed)
			b.ReportAllocs()
			msg := newMessage("x")
			ctx := msg.Context()
			for i := 0; b.Loop(); i++ {
				msg.SetContext(ctx) // the stock Timeout leaves a cancelled one behind
				msg.Metadata["event_id"] = "0199c5a0-0000-7000-8000-" + strconv.Itoa(1_000_000+i)
				if _, err := h(msg); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
