package framework_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/middleware"
)

// Explain tells every number and where it comes from: the default, the profile,
// a source that the caller knows, the code, even where code sets what was there.
func TestExplain(t *testing.T) {
	t.Parallel()
	f := setup(t, func(c *framework.Config) {
		c.Profile = config.Default()
		c.Profile.Delivery.Lease = time.Minute
		c.Profile.Delivery.MaxAttempts = 7
		c.Sources = map[string]config.Source{"delivery.max_attempts": config.FromEnvironment}
	})
	framework.HandleTx(f.app, made, "count", write, framework.Timeout(30*time.Second), framework.Redeliver(time.Minute, time.Hour), framework.OrderByKey())
	framework.Handle(f.app, made, "plain", plain, framework.RateLimit(5, 2), framework.Breaker(middleware.BreakerConfig{}), framework.NoDedup())
	x := f.app.Explain()
	require.Empty(t, x.Findings)
	require.Equal(t, "things", x.Service)
	require.Equal(t, "memory", x.Broker)
	require.Len(t, x.Handlers, 2)
	require.Equal(t, "things.count.redrive", x.Handlers[0].RedriveTopic)
	numbers := func(i int) map[string]framework.Number {
		all := map[string]framework.Number{}
		for _, n := range x.Handlers[i].Numbers {
			require.NotContains(t, all, n.Name)
			require.NotEmpty(t, n.Value, n.Name)
			require.NotEmpty(t, n.Source, n.Name)
			all[n.Name] = n
		}
		return all
	}
	count, other := numbers(0), numbers(1)
	for name, want := range map[string]framework.Number{
		"timeout of an attempt":    {Value: "30s", Source: framework.FromCode, Key: "delivery.handler_timeout"}, // also the default
		"redeliveries after":       {Value: "[1m0s 1h0m0s]", Source: framework.FromCode, Key: "delivery.redeliver"},
		"attempts in a delivery":   {Value: "7", Source: config.FromEnvironment, Key: "delivery.max_attempts"},
		"lease":                    {Value: "1m0s, renewed while held", Source: framework.FromProfile, Key: "delivery.lease"},
		"deliveries":               {Value: "10", Source: config.FromDefault, Key: "delivery.max_deliveries"},
		"order within a key":       {Value: "true", Source: framework.FromCode},
		"attempts in all, at most": {Value: "21", Source: framework.Computed},
		"breaker":                  {Value: "none", Source: config.FromDefault},
		"handled events known for": {Value: "720h0m0s", Source: config.FromDefault, Key: "dedup.retention"},
	} {
		want.Name = name
		require.Equal(t, want, count[name])
	}
	require.Equal(t, "5, burst 2", other["attempts a second"].Value)
	require.Equal(t, framework.FromCode, other["breaker"].Source)
	require.Equal(t, "opens after 5 failures for 30s, 1 probes", other["breaker"].Value)
	require.Contains(t, other["handled events known for"].Value, "not known")
	require.Contains(t, x.Handlers[0].Stack, "retry 7 attempts, backoff 100ms to 30s, then again by the broker after [1m0s 1h0m0s]")
	require.Contains(t, x.Handlers[0].Stack, "inbox row in the handler's transaction, kept 720h0m0s")

	var text bytes.Buffer
	require.NoError(t, x.WriteText(&text))
	for _, want := range []string{"things on memory", "things.count.dlq", "→ poison", "environment  delivery.max_attempts"} {
		require.Contains(t, text.String(), want)
	}
	require.NotContains(t, text.String(), "does not start")
	b, err := json.Marshal(x)
	require.NoError(t, err)
	var back framework.Explanation
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, x.Handlers, back.Handlers)
}

// A service that would not start is explained all the same, with the reasons.
func TestExplainWhatDoesNotStart(t *testing.T) {
	t.Parallel()
	f := setup(t, withoutDB)
	framework.HandleTx(f.app, made, "count", write)
	framework.Handle(f.app, made, "plain", plain, framework.MaxAttempts(0))
	x := f.app.Explain()
	require.Len(t, x.Findings, 2)
	var text bytes.Buffer
	require.NoError(t, x.WriteText(&text))
	require.Contains(t, text.String(), "It does not start:")
	require.Contains(t, text.String(), "no database")
}
