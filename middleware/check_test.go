package middleware_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	stock "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/headrace-go/headrace/middleware"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

// userMiddleware is a team's own.
func userMiddleware(next message.HandlerFunc) message.HandlerFunc { return next }

// The middlewares of this package and the stock ones are known by their code,
// whatever way they were made.
func TestLayerOf(t *testing.T) {
	t.Parallel()
	poison := must(t)(middleware.Poison(middleware.PoisonConfig{Publisher: newSink(), Topic: "dlq"}))
	stockPoison, err := stock.PoisonQueue(newSink(), "dlq")
	require.NoError(t, err)
	metrics, err := middleware.NewMetrics(nil, middleware.MetricsConfig{})
	require.NoError(t, err)
	for _, c := range []struct {
		mw   message.HandlerMiddleware
		kind middleware.Kind
	}{
		{poison, middleware.KindPoison},
		{retry(t, middleware.RetryConfig{}), middleware.KindRetry},
		{must(t)(middleware.Timeout(middleware.TimeoutConfig{Timeout: time.Second})), middleware.KindTimeout},
		{must(t)(middleware.Dedup(middleware.DedupConfig{Store: middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})})), middleware.KindDedup},
		{must(t)(middleware.Breaker(middleware.BreakerConfig{})), middleware.KindBreaker},
		{must(t)(middleware.RateLimit(middleware.RateLimitConfig{Limiter: rate.NewLimiter(1, 1)})), middleware.KindRateLimit},
		{middleware.Recover(middleware.RecoverConfig{}), middleware.KindRecover},
		{middleware.Recover(middleware.RecoverConfig{SameGoroutine: true}), middleware.KindRecover},
		{middleware.Correlate(middleware.CorrelationConfig{}), middleware.KindCorrelation},
		{metrics.Middleware("h", "g"), middleware.KindMetrics},
		{stock.Retry{}.Middleware, middleware.KindRetry},
		{stockPoison, middleware.KindPoison},
		{stock.Timeout(time.Second), middleware.KindTimeout},
		{(&stock.Deduplicator{}).Middleware, middleware.KindDedup},
		{stock.NewThrottle(1, time.Second).Middleware, middleware.KindRateLimit},
		{stock.Recoverer, middleware.KindRecover},
		{stock.CorrelationID, middleware.KindCorrelation},
		{stock.InstantAck, middleware.KindAck},
		{stock.NewIgnoreErrors(nil).Middleware, middleware.KindIgnore},
		{stock.CircuitBreaker{}.Middleware, middleware.KindBreaker},
		{(&stock.DelayOnError{}).Middleware, middleware.KindOther},
		{userMiddleware, middleware.KindOther},
		{func(next message.HandlerFunc) message.HandlerFunc { return next }, middleware.KindOther},
		{middleware.Chain(poison), middleware.KindOther},
		{nil, middleware.KindOther},
	} {
		l := middleware.LayerOf(c.mw)
		require.Equal(t, c.kind, l.Kind, "%+v", l)
	}
	require.True(t, middleware.LayerOf((&stock.Deduplicator{}).Middleware).MarksBeforeWork)
	require.True(t, middleware.LayerOf((&stock.DelayOnError{}).Middleware).Overtakes)
}

// Each unsafe chain, as one could give it to a bare router, has its finding.
func TestCheck(t *testing.T) {
	t.Parallel()
	stockPoison, err := stock.PoisonQueue(newSink(), "dlq")
	require.NoError(t, err)
	var (
		poison   = must(t)(middleware.Poison(middleware.PoisonConfig{Publisher: newSink(), Topic: "dlq"}))
		retries  = retry(t, middleware.RetryConfig{})
		dedup    = must(t)(middleware.Dedup(middleware.DedupConfig{Store: middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})}))
		timeout  = must(t)(middleware.Timeout(middleware.TimeoutConfig{Timeout: time.Second}))
		chain    = middleware.LayersOf
		attempts = func(n int, waits time.Duration) middleware.Layer {
			return middleware.Layer{Kind: middleware.KindRetry, Attempts: n, Takes: waits}
		}
		within = func(d time.Duration) middleware.Layer {
			return middleware.Layer{Kind: middleware.KindTimeout, Takes: d}
		}
		dead = middleware.Layer{Kind: middleware.KindPoison, Deliveries: 3}
	)
	for name, c := range map[string]struct {
		plan middleware.Plan
		want []middleware.Rule
	}{
		"ours, in order":           {plan: middleware.Plan{Layers: chain(poison, retries, timeout, userMiddleware, dedup), Ordered: true}},
		"poison inside retry":      {plan: middleware.Plan{Layers: chain(retries, poison)}, want: []middleware.Rule{middleware.RulePoisonInsideRetry}},
		"stock poison in retry":    {plan: middleware.Plan{Layers: chain(stock.Retry{}.Middleware, stockPoison)}, want: []middleware.Rule{middleware.RulePoisonInsideRetry}},
		"another poison inside":    {plan: middleware.Plan{Layers: chain(poison, retries, stockPoison)}, want: []middleware.Rule{middleware.RulePoisonInsideRetry}},
		"no poison":                {plan: middleware.Plan{Layers: chain(retries)}, want: []middleware.Rule{middleware.RuleNoPoison}},
		"a retry inside a retry":   {plan: middleware.Plan{Layers: chain(poison, retries, stock.Retry{}.Middleware)}, want: []middleware.Rule{middleware.RuleRetryInsideRetry}},
		"timeout around retry":     {plan: middleware.Plan{Layers: chain(poison, stock.Timeout(time.Second), retries)}, want: []middleware.Rule{middleware.RuleTimeoutAroundRetry}},
		"timeout around poison":    {plan: middleware.Plan{Layers: chain(stock.Timeout(time.Second), poison)}, want: []middleware.Rule{middleware.RuleTimeoutAroundPoison}},
		"stock dedup":              {plan: middleware.Plan{Layers: chain(poison, retries, (&stock.Deduplicator{}).Middleware)}, want: []middleware.Rule{middleware.RuleMarksBeforeWork}},
		"a declared dedup":         {plan: middleware.Plan{Layers: []middleware.Layer{dead, {Name: "mine", Kind: middleware.KindDedup, MarksBeforeWork: true}}}, want: []middleware.Rule{middleware.RuleMarksBeforeWork}},
		"dedup around poison":      {plan: middleware.Plan{Layers: chain(dedup, poison)}, want: []middleware.Rule{middleware.RuleDedupAroundPoison}},
		"ack before the work":      {plan: middleware.Plan{Layers: chain(poison, stock.InstantAck)}, want: []middleware.Rule{middleware.RuleMarksBeforeWork}},
		"ignored errors":           {plan: middleware.Plan{Layers: chain(poison, stock.NewIgnoreErrors(nil).Middleware)}, want: []middleware.Rule{middleware.RuleErrorsIgnored}},
		"order with delayed nacks": {plan: middleware.Plan{Layers: chain(poison, (&stock.DelayOnError{}).Middleware), Ordered: true}, want: []middleware.Rule{middleware.RuleOrderOvertaken}},
		"no order with them":       {plan: middleware.Plan{Layers: chain(poison, (&stock.DelayOnError{}).Middleware)}},
		"timeout above the lease": {
			plan: middleware.Plan{Layers: []middleware.Layer{dead, attempts(1, 0), within(time.Minute)}, Lease: 30 * time.Second},
			want: []middleware.Rule{middleware.RuleTimeoutAboveLease},
		},
		"with heartbeat": {plan: middleware.Plan{Layers: []middleware.Layer{dead, attempts(9, 0), within(time.Minute)}, Lease: 30 * time.Second, Renewed: true}},
		"retries above the lease": {
			plan: middleware.Plan{Layers: []middleware.Layer{dead, attempts(3, time.Second), within(10 * time.Second)}, Lease: 30 * time.Second},
			want: []middleware.Rule{middleware.RuleBudgetAboveLease},
		},
		"within the lease": {plan: middleware.Plan{Layers: []middleware.Layer{dead, attempts(3, time.Second), within(9 * time.Second)}, Lease: 30 * time.Second}},
		"no timeout and a lease": {
			plan: middleware.Plan{Layers: []middleware.Layer{dead, attempts(3, 0)}, Lease: 30 * time.Second},
			want: []middleware.Rule{middleware.RuleNoTimeout},
		},
		"keys forgotten too soon": {
			plan: middleware.Plan{Layers: []middleware.Layer{dead, {Kind: middleware.KindDedup, Keeps: time.Hour}}, Redelivery: 2 * time.Hour},
			want: []middleware.Rule{middleware.RuleDedupRetention},
		},
		"redeliveries above the limit": {
			plan: middleware.Plan{Layers: []middleware.Layer{dead, {Kind: middleware.KindRetry, Redeliveries: 3}}},
			want: []middleware.Rule{middleware.RuleRedeliveries},
		},
		"redeliveries below it": {plan: middleware.Plan{Layers: []middleware.Layer{dead, {Kind: middleware.KindRetry, Redeliveries: 2}}}},
		"all at once": {
			plan: middleware.Plan{Layers: chain((&stock.Deduplicator{}).Middleware, retries, stockPoison)},
			want: []middleware.Rule{middleware.RulePoisonInsideRetry, middleware.RuleDedupAroundPoison, middleware.RuleMarksBeforeWork},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.plan.Handler = "charge-order"
			var got []middleware.Rule
			for _, f := range middleware.Check(c.plan) {
				got = append(got, f.Rule)
				for _, part := range []string{f.Found, f.Danger, f.Fix, "charge-order", string(f.Rule)} {
					require.NotEmpty(t, part)
					require.ErrorContains(t, f, part)
				}
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestBudget(t *testing.T) {
	t.Parallel()
	stack, err := middleware.NewStack(middleware.StackConfig{
		Handler: "h", Poison: middleware.PoisonConfig{Publisher: newSink(), Topic: "dlq"}, Timeout: 10 * time.Second,
		Retry:     middleware.RetryConfig{MaxAttempts: 5, Backoff: middleware.Backoff{Base: 100 * time.Millisecond, Cap: 300 * time.Millisecond}},
		RateLimit: &middleware.RateLimitConfig{Limiter: rate.NewLimiter(1, 1), MaxWait: time.Second},
	})
	require.NoError(t, err)
	require.Equal(t, 5*11*time.Second+(100+200+300+300)*time.Millisecond, middleware.Budget(stack.Layers()))

	for _, r := range []middleware.RetryConfig{
		{MaxAttempts: math.MaxInt32, Backoff: middleware.Backoff{Base: time.Hour, Cap: math.MaxInt64}},
		{MaxAttempts: math.MaxInt, Backoff: middleware.Backoff{Base: time.Hour, Cap: time.Hour}},
	} {
		stack, err = middleware.NewStack(middleware.StackConfig{
			Handler: "h", Poison: middleware.PoisonConfig{Publisher: newSink(), Topic: "dlq"}, Timeout: time.Hour, Retry: r,
		})
		require.NoError(t, err)
		require.Positive(t, middleware.Budget(stack.Layers()), "it does not overflow")
		r.MaxElapsed = time.Minute
		stack, err = middleware.NewStack(middleware.StackConfig{
			Handler: "h", Poison: middleware.PoisonConfig{Publisher: newSink(), Topic: "dlq"}, Timeout: time.Hour, Retry: r,
		})
		require.NoError(t, err)
		require.Equal(t, time.Hour+time.Minute, middleware.Budget(stack.Layers()), "the last one begins within a minute")
	}
}

func TestFindingsOf(t *testing.T) {
	t.Parallel()
	a, b := &middleware.Finding{Handler: "a"}, &middleware.Finding{Handler: "b"}
	err := errors.Join(errBoom, fmt.Errorf("wrapped: %w", a), errors.Join(b, nil))
	require.Equal(t, []*middleware.Finding{a, b}, middleware.FindingsOf(err))
	require.Empty(t, middleware.FindingsOf(nil))
	require.Empty(t, middleware.FindingsOf(errBoom))
}
