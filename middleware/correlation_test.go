package middleware_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

const (
	parentTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceparent0 = "00-" + parentTrace + "-00f067aa0ba902b7-01"
)

// tracing gives a provider and the spans that ended.
func tracing(t testing.TB) (trace.TracerProvider, *tracetest.SpanRecorder) {
	t.Helper()
	rec := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec))
	t.Cleanup(func() { require.NoError(t, tp.Shutdown(context.Background())) })
	return tp, rec
}

func TestCorrelateStampsReturnedMessages(t *testing.T) {
	t.Parallel()
	tp, spans := tracing(t)
	in := newMessage("e1")
	in.Metadata[events.KeyCorrelation] = "c1"
	in.Metadata[events.KeyCausation] = "e0"
	in.Metadata[events.KeyTraceParent] = traceparent0
	in.Metadata[events.KeyTraceState] = "v=1"
	before := in.Context()

	var inside middleware.Correlation
	var insideTrace string
	out := []*message.Message{{UUID: "o1"}, message.NewMessage("o2", nil), nil, in.Copy()}
	out[1].Metadata[events.KeyCorrelation] = "mine"
	h := middleware.Correlate(middleware.CorrelationConfig{TracerProvider: tp})(
		func(msg *message.Message) ([]*message.Message, error) {
			inside = middleware.CorrelationFrom(msg.Context())
			insideTrace, _ = middleware.TraceFrom(msg.Context())
			return out, nil
		})
	produced, err := h(in)
	require.NoError(t, err)
	require.Equal(t, middleware.Correlation{
		CorrelationID: "c1", CausationID: "e1", EventID: "e1", EventType: "order.placed",
	}, inside)
	require.Equal(t, "c1", produced[0].Metadata[events.KeyCorrelation])
	require.Equal(t, "e1", produced[0].Metadata[events.KeyCausation])
	require.Equal(t, insideTrace, produced[0].Metadata[events.KeyTraceParent])
	require.Equal(t, "v=1", produced[0].Metadata[events.KeyTraceState])
	require.Equal(t, "mine", produced[1].Metadata[events.KeyCorrelation], "what is there stays")
	require.Equal(t, "e0", produced[3].Metadata[events.KeyCausation], "a message passed on has its own cause")
	require.Equal(t, before, in.Context())
	require.Equal(t, "e0", in.Metadata[events.KeyCausation])

	require.Contains(t, insideTrace, parentTrace, "the trace is continued")
	require.NotEqual(t, traceparent0, insideTrace)
	span := spans.Ended()[0]
	require.Equal(t, "00f067aa0ba902b7", span.Parent().SpanID().String())
	require.Equal(t, trace.SpanKindConsumer, span.SpanKind())
}

// Watermill fault 9: an id is made where it is missing, the same for each
// redelivery; no empty value is ever written; published messages carry it too.
func TestFault9CorrelationIDIsMade(t *testing.T) {
	t.Parallel()
	correlate := middleware.Correlate(middleware.CorrelationConfig{})
	run := func(in *message.Message) (middleware.Correlation, *message.Message) {
		var c middleware.Correlation
		produced, err := correlate(func(msg *message.Message) ([]*message.Message, error) {
			c = middleware.CorrelationFrom(msg.Context())
			return []*message.Message{message.NewMessage("o", nil)}, nil
		})(in)
		require.NoError(t, err)
		for k, v := range produced[0].Metadata {
			require.NotEmpty(t, v, k)
		}
		return c, produced[0]
	}
	for name, c := range map[string]struct {
		msg  *message.Message
		want string
	}{
		"event id":           {newMessage("e1"), "e1"},
		"uuid":               {message.NewMessage("u1", nil), "u1"},
		"empty value":        {withMetadata("u1", events.KeyCorrelation, ""), "u1"},
		"empty event id":     {withMetadata("u1", events.KeyID, ""), "u1"},
		"no id, no metadata": {&message.Message{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			first, out := run(c.msg)
			require.NotEmpty(t, first.CorrelationID)
			require.Equal(t, first.CorrelationID, out.Metadata[events.KeyCorrelation])
			if c.want == "" {
				require.NotContains(t, out.Metadata, events.KeyCausation)
				return
			}
			require.Equal(t, c.want, first.CorrelationID)
			again, _ := run(c.msg)
			require.Equal(t, first, again)
		})
	}
}

func withMetadata(uuid, key, value string) *message.Message {
	msg := message.NewMessage(uuid, nil)
	msg.Metadata[key] = value
	return msg
}

func TestCorrelatePublisher(t *testing.T) {
	t.Parallel()
	tp, _ := tracing(t)
	s := newSink()
	pub := middleware.CorrelatePublisher(s)
	_, batches := pub.(middleware.BatchPublisher)
	require.False(t, batches)
	h := middleware.Correlate(middleware.CorrelationConfig{TracerProvider: tp})(
		func(msg *message.Message) ([]*message.Message, error) {
			out := message.NewMessage("o1", nil)
			out.SetContext(msg.Context())
			return nil, pub.Publish("out", out, message.NewMessage("o2", nil))
		})
	_, err := h(newMessage("e1"))
	require.NoError(t, err)
	got := s.messages()
	require.Equal(t, "e1", got[0].Metadata[events.KeyCorrelation])
	require.Equal(t, "e1", got[0].Metadata[events.KeyCausation])
	require.NotEmpty(t, got[0].Metadata[events.KeyTraceParent])
	require.Empty(t, got[1].Metadata, "a message without a handler's context is left alone")

	batch := &batchSink{sink: newSink()}
	b, ok := middleware.CorrelatePublisher(batch).(middleware.BatchPublisher)
	require.True(t, ok)
	ctx := middleware.WithCorrelation(t.Context(), middleware.Correlation{CorrelationID: "http-1"})
	require.NoError(t, b.PublishBatch(ctx, "out", []*message.Message{message.NewMessage("o3", nil)}))
	require.Equal(t, message.Metadata{events.KeyCorrelation: "http-1"}, batch.only(t).Metadata)
}

type batchSink struct{ *sink }

func (s *batchSink) PublishBatch(_ context.Context, topic string, msgs []*message.Message) error {
	return s.Publish(topic, msgs...)
}

// B29, the half that the middleware can hold: ids of returned messages are the
// same for each attempt.
func TestB29ProducedIDsAreStable(t *testing.T) {
	t.Parallel()
	h := middleware.Correlate(middleware.CorrelationConfig{})(
		func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{{}, {}, {UUID: "own"}}, nil
		})
	first, err := h(newMessage("e1"))
	require.NoError(t, err)
	second, err := h(newMessage("e1"))
	require.NoError(t, err)
	other, err := h(newMessage("e2"))
	require.NoError(t, err)
	for i := range 2 {
		require.NotEmpty(t, first[i].UUID)
		require.Equal(t, first[i].UUID, second[i].UUID)
		require.NotEqual(t, first[i].UUID, other[i].UUID)
	}
	require.NotEqual(t, first[0].UUID, first[1].UUID)
	require.Equal(t, "own", first[2].UUID)
}

func TestCorrelateSpanStatus(t *testing.T) {
	t.Parallel()
	tp, spans := tracing(t)
	correlate := middleware.Correlate(middleware.CorrelationConfig{TracerProvider: tp, Group: "g"})
	for _, c := range []struct {
		err  error
		want codes.Code
	}{
		{nil, codes.Unset},
		{errBoom, codes.Error},
		{middleware.Skip(errBoom), codes.Unset},
		{middleware.Defer(errBoom, 0), codes.Unset},
	} {
		_, err := correlate(func(*message.Message) ([]*message.Message, error) { return nil, c.err })(newMessage("1"))
		require.Equal(t, c.err, err)
		ended := spans.Ended()
		require.Equal(t, c.want, ended[len(ended)-1].Status().Code)
	}
	require.Panics(t, func() {
		_, _ = correlate(func(*message.Message) ([]*message.Message, error) { panic("x") })(newMessage("1"))
	})
	ended := spans.Ended()
	require.Len(t, ended, 5, "a span ends also with a panic")
	require.Equal(t, codes.Error, ended[4].Status().Code)
}

func ExampleCorrelate() {
	correlate := middleware.Correlate(middleware.CorrelationConfig{})
	h := correlate(func(msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("event-2", nil)}, nil
	})
	in := message.NewMessage("event-1", nil)
	in.Metadata[events.KeyCorrelation] = "request-1"
	out, _ := h(in)
	fmt.Println(out[0].Metadata[events.KeyCorrelation], out[0].Metadata[events.KeyCausation])
	// Output: request-1 event-1
}

func ExampleCorrelatePublisher() {
	s := newSink()
	pub := middleware.CorrelatePublisher(s)
	ctx := middleware.WithCorrelation(context.Background(), middleware.Correlation{CorrelationID: "request-1"})
	msg := message.NewMessage("event-1", nil)
	msg.SetContext(ctx)
	_ = pub.Publish("orders", msg)
	fmt.Println(s.messages()[0].Metadata[events.KeyCorrelation])
	// Output: request-1
}

func TestTraceFromNothing(t *testing.T) {
	t.Parallel()
	parent, state := middleware.TraceFrom(t.Context())
	require.Empty(t, parent+state)
	require.Zero(t, middleware.CorrelationFrom(t.Context()))
	require.Zero(t, middleware.AttemptFrom(t.Context()))
}
