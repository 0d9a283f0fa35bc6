package middleware

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/prometheus/client_golang/prometheus"
)

// MetricsConfig configures Metrics.
type MetricsConfig struct {
	// Service is the value of the label "service" on every series.
	Service string
	// KnownTypes tells whether an event type is registered. The label "type" of
	// any other is "other", so that no sender can grow the number of series. Nil
	// knows none. It must always give the same answer for the same name.
	KnownTypes func(string) bool
	// Buckets of headrace_handler_seconds. Default: DefaultBuckets.
	Buckets []float64
}

// DefaultBuckets are the buckets of headrace_handler_seconds, in seconds.
func DefaultBuckets() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
}

// Metrics are the stack's Prometheus collectors. A nil *Metrics counts nothing,
// so every middleware takes one and needs none. It is safe for concurrent use.
//
// Each series has the label service; no label ever holds an id, an error's text
// or a name that a sender made up.
//
//	headrace_messages_total{handler,type,outcome}   deliveries by their end: handled, dead_lettered, skipped,
//	                                                deferred, redelivered, duplicate, failed (nacked)
//	headrace_handler_seconds{handler,type}          time in the stack, retries and their waits included
//	headrace_in_flight{handler}                     deliveries in the stack
//	headrace_handler_info{handler,group}            1; joins a handler with its consumer group
//	headrace_retries_total{handler}                 attempts after the first
//	headrace_redeliveries_total{handler}            deliveries that failed and come again after a delay
//	headrace_dead_letters_total{handler,reason}     by the Reason constants
//	headrace_dead_letter_failures_total{handler}    dead letters that could not be published
//	headrace_dedup_hits_total{handler}              duplicates that were not run
//	headrace_dedup_without_id_total{handler}        messages that have no id and so were not deduplicated
//	headrace_handler_overruns_total{handler}        attempts that ran past their deadline
//	headrace_handlers_stuck{handler}                attempts that run past their deadline now
//	headrace_breaker_state{handler}                 0 closed, 1 half-open, 2 open
//	headrace_deferred_total{handler,reason}         shutdown, busy, breaker, rate, store, dead_letter, other
//	headrace_skipped_total{handler,reason}          by the Skip constants
type Metrics struct {
	cfg MetricsConfig

	messages      *prometheus.CounterVec
	seconds       *prometheus.HistogramVec
	inFlight      *prometheus.GaugeVec
	info          *prometheus.GaugeVec
	retries       *prometheus.CounterVec
	redeliveries  *prometheus.CounterVec
	deadLetters   *prometheus.CounterVec
	deadFailures  *prometheus.CounterVec
	dedupHits     *prometheus.CounterVec
	withoutID     *prometheus.CounterVec
	overruns      *prometheus.CounterVec
	stuck         *prometheus.GaugeVec
	breakerState  *prometheus.GaugeVec
	deferredTotal *prometheus.CounterVec
	skippedTotal  *prometheus.CounterVec
}

// NewMetrics registers the collectors with reg; nil reg leaves them
// unregistered. A second Metrics of the same service on the same registry
// shares the first one's series. An error names the collector that another
// collector of that name, with other labels, keeps out.
func NewMetrics(reg prometheus.Registerer, cfg MetricsConfig) (*Metrics, error) {
	if len(cfg.Buckets) == 0 {
		cfg.Buckets = DefaultBuckets()
	}
	m := &Metrics{cfg: cfg}
	labels := prometheus.Labels{"service": cfg.Service}
	counter := func(name, help string, labelNames ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, labelNames)
	}
	gauge := func(name, help string, labelNames ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, labelNames)
	}
	m.messages = counter("headrace_messages_total", "Deliveries by how they ended.", "handler", "type", "outcome")
	m.seconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "headrace_handler_seconds", Help: "Time of a delivery in the stack, retries and their waits included.",
		ConstLabels: labels, Buckets: cfg.Buckets,
	}, []string{"handler", "type"})
	m.inFlight = gauge("headrace_in_flight", "Deliveries in the stack now.", "handler")
	m.info = gauge("headrace_handler_info", "1 for each handler, with its consumer group.", "handler", "group")
	m.retries = counter("headrace_retries_total", "Attempts after the first.", "handler")
	m.redeliveries = counter("headrace_redeliveries_total", "Deliveries that failed and come again after a delay.", "handler")
	m.deadLetters = counter("headrace_dead_letters_total", "Messages dead-lettered, by class of reason.", "handler", "reason")
	m.deadFailures = counter("headrace_dead_letter_failures_total", "Dead letters that could not be published.", "handler")
	m.dedupHits = counter("headrace_dedup_hits_total", "Duplicates that were not run again.", "handler")
	m.withoutID = counter("headrace_dedup_without_id_total", "Messages without an id, which can't be deduplicated.", "handler")
	m.overruns = counter("headrace_handler_overruns_total", "Attempts that ran past their deadline.", "handler")
	m.stuck = gauge("headrace_handlers_stuck", "Attempts that run past their deadline now.", "handler")
	m.breakerState = gauge("headrace_breaker_state", "The handler's circuit breaker: 0 closed, 1 half-open, 2 open.", "handler")
	m.deferredTotal = counter("headrace_deferred_total", "Deliveries given back to the broker uncounted.", "handler", "reason")
	m.skippedTotal = counter("headrace_skipped_total", "Messages left unhandled on purpose.", "handler", "reason")
	if reg == nil {
		return m, nil
	}
	err := errors.Join(
		register(reg, "headrace_messages_total", &m.messages),
		register(reg, "headrace_handler_seconds", &m.seconds),
		register(reg, "headrace_in_flight", &m.inFlight),
		register(reg, "headrace_handler_info", &m.info),
		register(reg, "headrace_retries_total", &m.retries),
		register(reg, "headrace_redeliveries_total", &m.redeliveries),
		register(reg, "headrace_dead_letters_total", &m.deadLetters),
		register(reg, "headrace_dead_letter_failures_total", &m.deadFailures),
		register(reg, "headrace_dedup_hits_total", &m.dedupHits),
		register(reg, "headrace_dedup_without_id_total", &m.withoutID),
		register(reg, "headrace_handler_overruns_total", &m.overruns),
		register(reg, "headrace_handlers_stuck", &m.stuck),
		register(reg, "headrace_breaker_state", &m.breakerState),
		register(reg, "headrace_deferred_total", &m.deferredTotal),
		register(reg, "headrace_skipped_total", &m.skippedTotal),
	)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// register registers *c, or replaces it by its equal that is there already.
func register[C prometheus.Collector](reg prometheus.Registerer, name string, c *C) error {
	err := reg.Register(*c)
	if err == nil {
		return nil
	}
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if existing, ok := already.ExistingCollector.(C); ok {
			*c = existing
			return nil
		}
	}
	return fmt.Errorf("middleware: register %s: %w: give Metrics a registry of its own", name, err)
}

// otherType is the label of a type that is not registered.
const otherType = "other"

// Middleware counts and times the messages of one handler. Group is the consumer
// group, shown by headrace_handler_info for joining with the broker's metrics.
// Handler and group become label values: they must be names from code, not from
// messages.
func (m *Metrics) Middleware(handler, group string) message.HandlerMiddleware {
	if m == nil {
		return func(next message.HandlerFunc) message.HandlerFunc { return next }
	}
	m.info.WithLabelValues(handler, group).Set(1)
	m.begin(handler)
	h := &handlerMetrics{
		m: m, handler: handler,
		inFlight: m.inFlight.WithLabelValues(handler),
		other:    m.series(handler, otherType),
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (produced []*message.Message, err error) {
			rec, old := enter(msg)
			series := h.seriesOf(msg.Metadata[events.KeyType])
			start := time.Now()
			h.inFlight.Inc()
			returned := false
			defer func() {
				msg.SetContext(old)
				h.inFlight.Dec()
				series.seconds.Observe(time.Since(start).Seconds())
				series.count(endOf(rec, err, returned)).Inc()
			}()
			produced, err = next(msg)
			returned = true
			return produced, err
		}
	}
}

// begin gives a handler's failure series their zero, so that an alert's rate sees
// the first failure rise from it, and a rule finds its metric before any.
func (m *Metrics) begin(handler string) {
	for _, c := range []*prometheus.CounterVec{m.retries, m.redeliveries, m.deadFailures, m.dedupHits, m.withoutID, m.overruns} {
		c.WithLabelValues(handler)
	}
	m.stuck.WithLabelValues(handler)
	for _, reason := range deadLetterReasons {
		m.deadLetters.WithLabelValues(handler, reason)
	}
}

// endOf names a delivery's end: what an inner layer decided, else what err says.
func endOf(rec *record, err error, returned bool) outcome {
	switch {
	case rec.outcome == outcomeDuplicate && err != nil:
		// a later attempt, or the commit around it, failed
	case rec.outcome != "":
		return rec.outcome
	case !returned:
		return outcomeFailed
	case err == nil:
		return outcomeHandled
	}
	switch d, _ := DispositionOf(err); d {
	case DispositionDefer:
		return outcomeDeferred
	case DispositionRedeliver:
		return outcomeRedelivered
	default:
		return outcomeFailed
	}
}

// handlerMetrics caches one handler's series: looking them up by label costs
// more than counting.
type handlerMetrics struct {
	m        *Metrics
	handler  string
	inFlight prometheus.Gauge
	other    *typeSeries
	known    sync.Map // event type → *typeSeries, registered types only
}

func (h *handlerMetrics) seriesOf(eventType string) *typeSeries {
	if s, ok := h.known.Load(eventType); ok {
		return s.(*typeSeries)
	}
	if eventType == "" || h.m.cfg.KnownTypes == nil || !h.m.cfg.KnownTypes(eventType) {
		return h.other
	}
	s, _ := h.known.LoadOrStore(eventType, h.m.series(h.handler, eventType))
	return s.(*typeSeries)
}

type typeSeries struct {
	messages *prometheus.CounterVec
	seconds  prometheus.Observer
	handled  prometheus.Counter
}

func (m *Metrics) series(handler, eventType string) *typeSeries {
	messages := m.messages.MustCurryWith(prometheus.Labels{"handler": handler, "type": eventType})
	return &typeSeries{
		messages: messages,
		seconds:  m.seconds.WithLabelValues(handler, eventType),
		handled:  messages.WithLabelValues(string(outcomeHandled)),
	}
}

func (s *typeSeries) count(o outcome) prometheus.Counter {
	if o == outcomeHandled {
		return s.handled
	}
	return s.messages.WithLabelValues(string(o))
}

func (m *Metrics) retried(handler string) {
	if m != nil {
		m.retries.WithLabelValues(handler).Inc()
	}
}

func (m *Metrics) deadLettered(handler, reason string) {
	if m != nil {
		m.deadLetters.WithLabelValues(handler, reason).Inc()
	}
}

func (m *Metrics) deadLetterFailed(handler string) {
	if m != nil {
		m.deadFailures.WithLabelValues(handler).Inc()
	}
}

func (m *Metrics) duplicate(handler string) {
	if m != nil {
		m.dedupHits.WithLabelValues(handler).Inc()
	}
}

func (m *Metrics) noID(handler string) {
	if m != nil {
		m.withoutID.WithLabelValues(handler).Inc()
	}
}

func (m *Metrics) overran(handler string) {
	if m != nil {
		m.overruns.WithLabelValues(handler).Inc()
		m.stuck.WithLabelValues(handler).Inc()
	}
}

func (m *Metrics) unstuck(handler string) {
	if m != nil {
		m.stuck.WithLabelValues(handler).Dec()
	}
}

func (m *Metrics) breaker(handler string, s BreakerState) {
	if m != nil {
		m.breakerState.WithLabelValues(handler).Set(float64(s))
	}
}

// gaveBack counts a redelivery, or a deferral by what is in err's chain.
func (m *Metrics) gaveBack(handler string, err error) {
	if m == nil {
		return
	}
	if d, _ := DispositionOf(err); d == DispositionRedeliver {
		m.redeliveries.WithLabelValues(handler).Inc()
		return
	}
	reason := "other"
	switch {
	case errors.Is(err, ErrShuttingDown):
		reason = "shutdown"
	case errors.Is(err, ErrBusy):
		reason = "busy"
	case errors.Is(err, ErrBreakerOpen):
		reason = "breaker"
	case errors.Is(err, ErrRateLimited):
		reason = "rate"
	case errors.Is(err, ErrDedupStore), errors.Is(err, ErrParkStore):
		reason = "store"
	case errors.Is(err, ErrDeadLetterUnpublished):
		reason = "dead_letter"
	}
	m.deferredTotal.WithLabelValues(handler, reason).Inc()
}

// skipped counts a skip by the reason that SkipBecause gave.
func (m *Metrics) skipped(handler string, err error) {
	if m == nil {
		return
	}
	reason := SkipOther
	var s *skipError
	if errors.As(err, &s) && (s.reason == SkipStale || s.reason == SkipFiltered || s.reason == SkipDiscarded) {
		reason = s.reason
	}
	m.skippedTotal.WithLabelValues(handler, string(reason)).Inc()
}
