package logging_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/logging"
	"github.com/headrace-go/headrace/middleware"
)

func logger(t *testing.T, cfg config.Log) (*slog.Logger, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	l, err := logging.New(&out, cfg)
	require.NoError(t, err)
	return l, &out
}

func TestTheContextsIDsAreLogged(t *testing.T) {
	t.Parallel()
	l, out := logger(t, config.Log{Level: "info", Format: "json"})
	ctx := middleware.WithCorrelation(context.Background(), middleware.Correlation{CorrelationID: "c-1", EventID: "e-1", EventType: "thing.made"})
	ctx, span := sdktrace.NewTracerProvider().Tracer("t").Start(ctx, "s")
	defer span.End()

	record := func() map[string]any {
		var m map[string]any
		require.NoError(t, json.Unmarshal(out.Bytes(), &m), out.String())
		out.Reset()
		return m
	}
	l.InfoContext(ctx, "hello")
	m := record()
	require.Equal(t, "c-1", m["correlation_id"])
	require.Equal(t, "e-1", m["event_id"])
	require.Equal(t, "thing.made", m["event_type"])
	require.Equal(t, span.SpanContext().TraceID().String(), m["trace_id"])

	l.InfoContext(ctx, "hello", "event_id", "own")
	require.Equal(t, 1, strings.Count(mustJSON(t, l, ctx, out, "event_id", "own"), `"event_id"`), "no key stands twice")
	out.Reset()
	l.With("correlation_id", "own").InfoContext(ctx, "hello")
	require.Equal(t, "own", record()["correlation_id"])
	l.InfoContext(context.Background(), "hello")
	require.NotContains(t, record(), "correlation_id")
	l.DebugContext(ctx, "hidden")
	require.Empty(t, out.String())
}

func mustJSON(t *testing.T, l *slog.Logger, ctx context.Context, out *bytes.Buffer, args ...any) string {
	t.Helper()
	out.Reset()
	l.InfoContext(ctx, "again", args...)
	return out.String()
}

// longError has a stack in its long form, as the errors of some libraries do.
type longError struct{}

func (longError) Error() string { return "no payload" }
func (longError) Format(s fmt.State, verb rune) {
	fmt.Fprint(s, "no payload")
	if s.Flag('+') {
		fmt.Fprint(s, "\n/home/builder/decode.go:7")
	}
}

func TestErrorsAreLoggedWithoutAStack(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		l, out := logger(t, config.Log{Level: "info", Format: format})
		l.Info("hello", "error", longError{}, "none", error(nil))
		require.Contains(t, out.String(), "no payload")
		require.NotContains(t, out.String(), "builder")
	}
}

func TestSettingsThatCantWork(t *testing.T) {
	t.Parallel()
	_, err := logging.New(nil, config.Log{Level: "loud", Format: "json"})
	require.ErrorContains(t, err, `log.level is "loud"`)
	_, err = logging.New(nil, config.Log{Level: "info", Format: "xml"})
	require.ErrorContains(t, err, `log.format is "xml"`)
}

func TestWatermillIsQuiet(t *testing.T) {
	t.Parallel()
	l, out := logger(t, config.Log{Level: "info", Format: "text"})
	w := logging.Watermill(l).With(watermill.LogFields{"topic": "things"})
	w.Info("Starting handler", nil)
	w.Debug("Adding middleware", nil)
	w.Trace("Message acked", nil)
	w.Error("Handler returned error", middleware.Defer(errors.New("breaker open"), 0), nil)
	w.Error("Handler returned error", context.Canceled, nil)
	require.Empty(t, out.String(), "neither its life nor a message given back is news")
	w.Error("Cannot publish messages", errors.New("boom"), watermill.LogFields{"not_sent_message": "card 4111", "message_uuid": "u-1"})
	require.Contains(t, out.String(), "level=ERROR")
	require.Contains(t, out.String(), "topic=things")
	require.Contains(t, out.String(), "message_uuid=u-1")
	require.NotContains(t, out.String(), "4111", "no payload is logged")
}
