package middleware

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/pkg/events"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Correlation is where a piece of work came from: what everything that it
// publishes must carry.
type Correlation struct {
	// CorrelationID is the same for everything that one request set off.
	CorrelationID string
	// CausationID is the id of the message being handled; empty outside of a
	// handler.
	CausationID string
	// EventID and EventType are those of the message being handled: its event
	// metadata, or its UUID where it carries no event id.
	EventID   string
	EventType string
}

type correlationKey struct{}

// WithCorrelation returns a context that carries c. The HTTP side calls it; in
// a handler Correlate has done so.
func WithCorrelation(ctx context.Context, c Correlation) context.Context {
	return context.WithValue(ctx, correlationKey{}, &c)
}

// CorrelationFrom returns what ctx carries; the zero Correlation if nothing.
func CorrelationFrom(ctx context.Context) Correlation {
	if c, _ := ctx.Value(correlationKey{}).(*Correlation); c != nil {
		return *c
	}
	return Correlation{}
}

// TraceFrom returns the W3C traceparent and tracestate of ctx's span; empty
// when there is none.
func TraceFrom(ctx context.Context) (traceparent, tracestate string) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return "", ""
	}
	var c traceCarrier
	propagation.TraceContext{}.Inject(ctx, &c)
	return c.parent, c.state
}

// traceCarrier receives the two W3C headers without a map.
type traceCarrier struct{ parent, state string }

func (c *traceCarrier) Get(key string) string {
	switch key {
	case events.KeyTraceParent:
		return c.parent
	case events.KeyTraceState:
		return c.state
	}
	return ""
}

func (c *traceCarrier) Set(key, value string) {
	switch key {
	case events.KeyTraceParent:
		c.parent = value
	case events.KeyTraceState:
		c.state = value
	}
}

func (c *traceCarrier) Keys() []string { return []string{events.KeyTraceParent, events.KeyTraceState} }

// CorrelationConfig configures Correlate. Its zero value works.
type CorrelationConfig struct {
	// TracerProvider makes the consumer spans. Default: otel's global provider.
	TracerProvider trace.TracerProvider
	// Group is the consumer group, an attribute of the span. Default: the
	// Delivery's.
	Group string
}

// WithDefaults returns c with its defaults filled in.
func (c CorrelationConfig) WithDefaults() CorrelationConfig {
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	return c
}

const tracerName = "github.com/headrace-go/headrace/middleware"

// Correlate gives each message's context its Correlation and a consumer span
// that continues the message's trace, and stamps correlation id, causation id
// and trace context on the messages that the handler returns. A message that
// came without a correlation id gets its own id as one, so that all its
// redeliveries have the same. The message itself is not changed.
//
// Of a returned message only what it lacks is filled in, so one that a handler
// copies from its input keeps the input's values. A returned message without a
// UUID gets one that is the same each time the handler runs.
func Correlate(cfg CorrelationConfig) message.HandlerMiddleware {
	cfg = cfg.WithDefaults()
	tracer := cfg.TracerProvider.Tracer(tracerName)
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (produced []*message.Message, err error) {
			old := msg.Context()
			defer msg.SetContext(old)

			s := &scope{Context: old}
			if s.rec = recordFrom(old); s.rec == nil {
				s.rec = &s.ownRecord
			}
			s.ownCorrelation = correlationOf(msg)
			s.correlation = &s.ownCorrelation

			parent := context.Context(s)
			if msg.Metadata[events.KeyTraceParent] != "" {
				parent = propagation.TraceContext{}.Extract(s, propagation.MapCarrier(msg.Metadata))
			}
			topic := message.SubscribeTopicFromCtx(old)
			ctx, span := tracer.Start(parent, "process "+topic, consumerSpan)
			returned := false
			defer func() {
				if !returned {
					span.SetStatus(codes.Error, "panic")
				}
				span.End()
			}()
			if span.IsRecording() {
				span.SetAttributes(spanAttributes(cfg, msg, old, topic)...)
			}
			msg.SetContext(ctx)

			produced, err = next(msg)
			returned = true
			if err != nil {
				markSpan(span, err)
			}
			if len(produced) > 0 {
				traceparent, tracestate := TraceFrom(ctx)
				for i, p := range produced {
					if p == nil {
						continue
					}
					if p.UUID == "" {
						p.UUID = producedID(msg, p, message.HandlerNameFromCtx(old), i)
					}
					stamp(p, s.ownCorrelation, traceparent, tracestate)
				}
			}
			return produced, err
		}
	}
}

var consumerSpan = trace.WithSpanKind(trace.SpanKindConsumer)

// correlationOf reads msg's ids. Only a message without any id gets a fresh
// correlation id.
func correlationOf(msg *message.Message) Correlation {
	id := messageID(msg)
	c := Correlation{
		CorrelationID: msg.Metadata[events.KeyCorrelation],
		CausationID:   id,
		EventID:       id,
		EventType:     msg.Metadata[events.KeyType],
	}
	if c.CorrelationID == "" {
		c.CorrelationID = id
	}
	if c.CorrelationID == "" {
		c.CorrelationID = events.NewID()
	}
	return c
}

func producedID(parent, produced *message.Message, handler string, n int) string {
	id := messageID(parent)
	if id == "" {
		return events.NewID()
	}
	return events.StableID(id, handler, produced.Metadata[events.KeyType], produced.Metadata[events.KeyOrdering], n)
}

func spanAttributes(cfg CorrelationConfig, msg *message.Message, ctx context.Context, topic string) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, 8)
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, attribute.String(key, value))
		}
	}
	add("messaging.operation.type", "process")
	add("messaging.destination.name", topic)
	add("messaging.message.id", messageID(msg))
	d := DeliveryFrom(ctx)
	add("messaging.consumer.group.name", groupName(cfg.Group, d))
	add("headrace.handler", message.HandlerNameFromCtx(ctx))
	add("headrace.event_type", msg.Metadata[events.KeyType])
	add("headrace.correlation_id", msg.Metadata[events.KeyCorrelation])
	if d != nil && d.Count() > 0 {
		attrs = append(attrs, attribute.Int("headrace.delivery", d.Count()))
	}
	return attrs
}

// markSpan notes how the message ended: a skip or a deferral is no error.
func markSpan(span trace.Span, err error) {
	switch d, _ := DispositionOf(err); d {
	case DispositionSkip, DispositionDefer:
		span.AddEvent(d.String(), trace.WithAttributes(attribute.String("reason", err.Error())))
	default:
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
}

// stamp fills in what msg lacks. It never writes an empty value, which some
// brokers refuse.
func stamp(msg *message.Message, c Correlation, traceparent, tracestate string) {
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata, 4)
	}
	fill := func(key, value string) {
		if value != "" && msg.Metadata[key] == "" {
			msg.Metadata[key] = value
		}
	}
	fill(events.KeyCorrelation, c.CorrelationID)
	// A handler that passes its input on has not caused it.
	if messageID(msg) != c.CausationID {
		fill(events.KeyCausation, c.CausationID)
	}
	if msg.Metadata[events.KeyTraceParent] == "" && traceparent != "" {
		delete(msg.Metadata, events.KeyTraceState)
		fill(events.KeyTraceParent, traceparent)
		fill(events.KeyTraceState, tracestate)
	}
}

// BatchPublisher is a publisher that takes a context and a batch, as Headrace's
// brokers do.
type BatchPublisher interface {
	message.Publisher
	PublishBatch(ctx context.Context, topic string, msgs []*message.Message) error
}

// CorrelatePublisher decorates pub so that messages published with a handler's
// context (message.SetContext, or the context of PublishBatch) are stamped as
// returned ones are. Where pub is a BatchPublisher so is the result.
func CorrelatePublisher(pub message.Publisher) message.Publisher {
	if b, ok := pub.(BatchPublisher); ok {
		return correlatedBatchPublisher{correlatedPublisher{b}, b}
	}
	return correlatedPublisher{pub}
}

type correlatedPublisher struct{ message.Publisher }

func (p correlatedPublisher) Publish(topic string, msgs ...*message.Message) error {
	for _, m := range msgs {
		if m != nil {
			stampFrom(m.Context(), m)
		}
	}
	return p.Publisher.Publish(topic, msgs...)
}

type correlatedBatchPublisher struct {
	correlatedPublisher
	batch BatchPublisher
}

func (p correlatedBatchPublisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) error {
	for _, m := range msgs {
		if m == nil {
			continue
		}
		stampFrom(m.Context(), m)
		stampFrom(ctx, m)
	}
	return p.batch.PublishBatch(ctx, topic, msgs)
}

func stampFrom(ctx context.Context, msg *message.Message) {
	traceparent, tracestate := TraceFrom(ctx)
	stamp(msg, CorrelationFrom(ctx), traceparent, tracestate)
}
