package framework

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/headrace-go/headrace/framework/broker"
)

func newMetricsRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// appMetrics are the collectors beside those of the stack and the relay.
type appMetrics struct {
	lag, pending, oldest, deadLetters *prometheus.GaugeVec
	parkedMessages, parkedKeys        *prometheus.GaugeVec
	statsErrors, malformed            *prometheus.CounterVec
	jobFailures                       *prometheus.CounterVec
	httpSeconds                       *prometheus.HistogramVec
	ready                             prometheus.Gauge
}

func newAppMetrics(reg prometheus.Registerer, service string) (*appMetrics, error) {
	constant := prometheus.Labels{"service": service}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: constant}, []string{"handler", "group"})
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: constant}, []string{"handler"})
	}
	m := &appMetrics{
		lag:            gauge("headrace_consumer_lag", "Messages that no consumer of the group has fetched."),
		pending:        gauge("headrace_consumer_pending", "Messages that were fetched and are not settled."),
		oldest:         gauge("headrace_consumer_oldest_age_seconds", "Age of the oldest message that is not settled."),
		deadLetters:    gauge("headrace_dlq_depth", "Messages in the group's dead-letter topic."),
		parkedMessages: gauge("headrace_parked_messages", "Messages that failed or wait behind one that did, by which their keys are held up; 0 without ParkKey."),
		parkedKeys:     gauge("headrace_parked_keys", "Keys that are held up; 0 without ParkKey."),
		statsErrors:    counter("headrace_stats_errors_total", "Failed reads of a group's backlog from the broker."),
		malformed:      counter("headrace_malformed_total", "Broker entries that were no message, sent to the dead letters."),
		jobFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headrace_job_failures_total", Help: "Failures of background jobs, each followed by a new start.", ConstLabels: constant,
		}, []string{"job"}),
		httpSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "headrace_http_seconds", Help: "Duration of API requests.", ConstLabels: constant,
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"method", "route", "status"}),
		ready: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "headrace_ready", Help: "1 while the service takes work.", ConstLabels: constant,
		}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.lag, m.pending, m.oldest, m.deadLetters, m.parkedMessages, m.parkedKeys, m.statsErrors, m.malformed, m.jobFailures, m.httpSeconds, m.ready} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// pollStats keeps the gauges of every group current until ctx ends. A scrape
// never waits for the broker.
func (a *App) pollStats(ctx context.Context) {
	tick := time.NewTicker(a.cfg.Profile.Admin.StatsInterval)
	defer tick.Stop()
	for {
		for _, h := range a.handlers {
			a.readStats(ctx, h)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// statsTimeout bounds one read of one group's backlog.
const statsTimeout = 5 * time.Second

func (a *App) readStats(ctx context.Context, h *handler) {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	admin := a.cfg.Broker.Admin()
	var s broker.Stats // of what is new and what is replayed together
	var err error
	for _, sub := range h.subscriptions() {
		var one broker.Stats
		if one, err = admin.Stats(ctx, sub); err != nil {
			break
		}
		s.Lag += one.Lag
		s.Pending += one.Pending
		s.OldestAge = max(s.OldestAge, one.OldestAge)
	}
	if err == nil {
		a.stats.lag.WithLabelValues(h.name, h.group).Set(float64(s.Lag))
		a.stats.pending.WithLabelValues(h.name, h.group).Set(float64(s.Pending))
		a.stats.oldest.WithLabelValues(h.name, h.group).Set(s.OldestAge.Seconds())
		var depth int64
		if depth, err = admin.Depth(ctx, broker.DeadLetterTopic(h.group)); err == nil {
			a.stats.deadLetters.WithLabelValues(h.name, h.group).Set(float64(depth))
		}
	}
	err = errors.Join(err, a.readParked(ctx, h))
	if err != nil && !errors.Is(err, context.Canceled) {
		a.stats.statsErrors.WithLabelValues(h.name).Inc()
		a.logger.WarnContext(ctx, "backlog not read", "handler", h.name, "error", err)
	}
}

func (a *App) readParked(ctx context.Context, h *handler) error {
	var messages, keys int64
	if h.parked != nil {
		var err error
		if messages, keys, err = h.parked.Count(ctx); err != nil {
			return err
		}
	}
	a.stats.parkedMessages.WithLabelValues(h.name, h.group).Set(float64(messages))
	a.stats.parkedKeys.WithLabelValues(h.name, h.group).Set(float64(keys))
	return nil
}
