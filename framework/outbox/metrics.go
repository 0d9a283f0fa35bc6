package outbox

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the relay's collectors. They have no labels that messages choose.
type metrics struct {
	relayed prometheus.Counter
	failed  *prometheus.CounterVec
	seconds prometheus.Histogram
	batch   prometheus.Histogram
}

func newMetrics(r *Relay, reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		relayed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "headrace_outbox_relayed_total", Help: "Rows that the broker confirmed."}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headrace_outbox_failed_total", Help: "Rows that were not published, by reason: failed (held back), rejected or corrupt (parked)."}, []string{"reason"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "headrace_outbox_publish_seconds", Help: "Time to publish one batch.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "headrace_outbox_batch_size", Help: "Rows in one batch.",
			Buckets: []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000}}),
	}
	for _, reason := range []string{"failed", "rejected", "corrupt"} {
		m.failed.WithLabelValues(reason)
	}
	if reg == nil {
		return m, nil
	}
	gauge := func(name, help string, value func(Stats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(r.remembered()) })
	}
	for _, c := range []prometheus.Collector{m.relayed, m.failed, m.seconds, m.batch,
		gauge("headrace_outbox_backlog", "Rows that wait to be published, those held back included.", func(s Stats) float64 { return float64(s.Backlog) }),
		gauge("headrace_outbox_held", "Rows that wait because they, or an earlier row of their key, failed.", func(s Stats) float64 { return float64(s.Held) }),
		gauge("headrace_outbox_oldest_age_seconds", "Age of the oldest row that waits.", func(s Stats) float64 { return s.OldestAge.Seconds() }),
		gauge("headrace_outbox_parked", "Rows that were given up and wait for an operator.", func(s Stats) float64 { return float64(s.Parked) }),
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) published(rows int, took time.Duration) {
	m.batch.Observe(float64(rows))
	m.seconds.Observe(took.Seconds())
}

func (m *metrics) settled(sent int, s summary) {
	m.relayed.Add(float64(sent))
	m.failed.WithLabelValues("failed").Add(float64(s.failed))
	m.failed.WithLabelValues("rejected").Add(float64(s.rejected))
	m.failed.WithLabelValues("corrupt").Add(float64(s.corrupt))
}
