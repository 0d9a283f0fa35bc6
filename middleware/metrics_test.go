package middleware_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func newMetrics(t testing.TB, reg prometheus.Registerer) *middleware.Metrics {
	t.Helper()
	m, err := middleware.NewMetrics(reg, middleware.MetricsConfig{
		Service:    "payments",
		KnownTypes: func(name string) bool { return name == "order.placed" },
	})
	require.NoError(t, err)
	return m
}

// value sums the series of a family whose labels include all of the given
// name, value pairs. A histogram counts its observations.
func value(t testing.TB, reg prometheus.Gatherer, family string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() != family {
			continue
		}
		for _, s := range f.GetMetric() {
			got := map[string]string{}
			for _, l := range s.GetLabel() {
				got[l.GetName()] = l.GetValue()
			}
			matches := true
			for i := 0; i+1 < len(labels); i += 2 {
				matches = matches && got[labels[i]] == labels[i+1]
			}
			if matches {
				sum += s.GetCounter().GetValue() + s.GetGauge().GetValue() + float64(s.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func series(t testing.TB, reg prometheus.Gatherer) int {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	n := 0
	for _, f := range families {
		n += len(f.GetMetric())
	}
	return n
}

func TestMetricsOutcomes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := newMetrics(t, reg)
		store := middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})
		stack, err := middleware.NewStack(middleware.StackConfig{
			Handler: "charge-order", Group: "payments.charge-order", Metrics: m, Logger: quiet,
			Poison: middleware.PoisonConfig{Publisher: newSink(), Topic: "dlq"},
			Retry:  middleware.RetryConfig{MaxAttempts: 2},
			Dedup:  &middleware.DedupConfig{Store: store},
		})
		require.NoError(t, err)
		for i, err := range []error{
			nil, errBoom, middleware.Permanent(errBoom), middleware.Skip(errBoom),
			middleware.SkipBecause(middleware.SkipStale, errBoom), middleware.SkipBecause("made up", errBoom),
			middleware.Defer(errBoom, time.Second), &events.DecodeError{}, middleware.Permanent(&events.DecodeError{}),
		} {
			msg, _ := delivered(newMessage(fmt.Sprint(i)), 1, nil)
			_, _ = stack.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, err })(msg)
		}
		again, _ := delivered(newMessage("0"), 2, nil)
		_, err = stack.Middleware(succeed)(again)
		require.NoError(t, err)

		const total = "headrace_messages_total"
		for outcome, want := range map[string]float64{
			"handled": 1, "duplicate": 1, "dead_lettered": 4, "skipped": 3, "deferred": 1, "failed": 0,
		} {
			require.Equal(t, want, value(t, reg, total, "outcome", outcome, "service", "payments",
				"handler", "charge-order", "type", "order.placed"), outcome)
		}
		require.Equal(t, 10.0, value(t, reg, "headrace_handler_seconds"))
		require.Equal(t, 2.0, value(t, reg, "headrace_retries_total"))
		require.Equal(t, 1.0, value(t, reg, "headrace_dead_letters_total", "reason", "permanent"))
		require.Equal(t, 2.0, value(t, reg, "headrace_dead_letters_total", "reason", "exhausted"))
		require.Equal(t, 1.0, value(t, reg, "headrace_dead_letters_total", "reason", "decode"))
		require.Equal(t, 1.0, value(t, reg, "headrace_dedup_hits_total"))
		require.Equal(t, 1.0, value(t, reg, "headrace_deferred_total", "reason", "other"))
		require.Equal(t, 1.0, value(t, reg, "headrace_skipped_total", "reason", "stale"))
		require.Equal(t, 2.0, value(t, reg, "headrace_skipped_total", "reason", "other"))
		require.Equal(t, 1.0, value(t, reg, "headrace_handler_info", "group", "payments.charge-order"))
		require.Zero(t, value(t, reg, "headrace_in_flight"))
	})
}

func TestMetricsAlone(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	mw := newMetrics(t, reg).Middleware("h", "g")
	_, err := mw(func(*message.Message) ([]*message.Message, error) {
		require.Equal(t, 1.0, value(t, reg, "headrace_in_flight"))
		return nil, errBoom
	})(newMessage("1"))
	require.ErrorIs(t, err, errBoom)
	_, err = middleware.Chain(middleware.Recover(middleware.RecoverConfig{}), mw)(
		func(*message.Message) ([]*message.Message, error) { panic("x") })(newMessage("2"))
	require.Error(t, err)
	require.Equal(t, 2.0, value(t, reg, "headrace_messages_total", "outcome", "failed"))
	require.Zero(t, value(t, reg, "headrace_in_flight"))

	var none *middleware.Metrics
	_, err = none.Middleware("h", "g")(succeed)(newMessage("1"))
	require.NoError(t, err, "a nil Metrics counts nothing")
}

// A second Metrics on one registry shares the series; another collector of that
// name is an error that names it.
func TestMetricsShareARegistry(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	for range 2 {
		_, err := newMetrics(t, reg).Middleware("h", "g")(succeed)(newMessage("1"))
		require.NoError(t, err)
	}
	require.Equal(t, 2.0, value(t, reg, "headrace_messages_total"))

	reg = prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "headrace_in_flight"}))
	_, err := middleware.NewMetrics(reg, middleware.MetricsConfig{})
	require.ErrorContains(t, err, "headrace_in_flight")
	_, err = middleware.NewMetrics(nil, middleware.MetricsConfig{})
	require.NoError(t, err)
}

// B49: ids, error texts and types that senders make up add no series.
func TestB49SeriesStayConstant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := newMetrics(t, reg)
		stack, err := middleware.NewStack(middleware.StackConfig{
			Handler: "charge-order", Metrics: m, Logger: quiet, Timeout: time.Minute,
			Poison: middleware.PoisonConfig{Publisher: discard{}, Topic: "dlq"},
			Retry:  middleware.RetryConfig{MaxAttempts: 1},
			Dedup:  &middleware.DedupConfig{Store: middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})},
		})
		require.NoError(t, err)
		send := func(i int) {
			msg, _ := delivered(newMessage(fmt.Sprintf("id-%d", i)), 1, nil)
			if i%2 == 0 {
				msg.Metadata[events.KeyType] = fmt.Sprintf("made.up_%d", i)
			}
			text := fmt.Errorf("error %d", i)
			err := []error{
				nil, text, middleware.Permanent(text), middleware.Skip(text), middleware.Defer(text, 0),
				middleware.SkipBecause(middleware.SkipReason(fmt.Sprint("reason ", i)), text), context.Canceled,
			}[i%7]
			_, _ = stack.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, err })(msg)
		}
		for i := range 28 {
			send(i % 14) // the second time they are duplicates
		}
		before := series(t, reg)
		for i := range 10_000 {
			send(14 + i)
		}
		require.Equal(t, before, series(t, reg))
		require.Equal(t, 5014.0, value(t, reg, "headrace_handler_seconds", "type", "other"))
		require.Equal(t, 5014.0, value(t, reg, "headrace_handler_seconds", "type", "order.placed"))
	})
}

// discard is a publisher for dead letters that nobody looks at.
type discard struct{}

func (discard) Publish(string, ...*message.Message) error { return nil }
func (discard) Close() error                              { return nil }

func ExampleMetrics_Middleware() {
	reg := prometheus.NewRegistry()
	metrics, err := middleware.NewMetrics(reg, middleware.MetricsConfig{
		Service:    "payments",
		KnownTypes: func(name string) bool { return name == "order.placed" },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	h := metrics.Middleware("charge-order", "payments.charge-order")(
		func(*message.Message) ([]*message.Message, error) { return nil, nil })
	for _, eventType := range []string{"order.placed", "nobody.knows_this"} {
		msg := message.NewMessage("1", nil)
		msg.Metadata[events.KeyType] = eventType
		_, _ = h(msg)
	}
	families, _ := reg.Gather()
	for _, f := range families {
		if f.GetName() == "headrace_messages_total" {
			for _, s := range f.GetMetric() {
				for _, l := range s.GetLabel() {
					fmt.Print(l.GetName(), "=", l.GetValue(), " ")
				}
				fmt.Println(s.GetCounter().GetValue())
			}
		}
	}
	// Output:
	// handler=charge-order outcome=handled service=payments type=order.placed 1
	// handler=charge-order outcome=handled service=payments type=other 1
}
