package middleware_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// A handler that keeps its own keys tells of a duplicate; when it then fails
// after all, the delivery has failed.
func TestMarkDuplicate(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := newMetrics(t, reg)
	for _, err := range []error{nil, errBoom} {
		_, got := m.Middleware("charge-order", "g")(func(msg *message.Message) ([]*message.Message, error) {
			m.MarkDuplicate(msg.Context(), "charge-order")
			return nil, err
		})(newMessage("1"))
		require.Equal(t, err, got)
	}
	require.Equal(t, 2.0, value(t, reg, "headrace_dedup_hits_total"))
	require.Equal(t, 1.0, value(t, reg, "headrace_messages_total", "outcome", "duplicate"))
	require.Equal(t, 1.0, value(t, reg, "headrace_messages_total", "outcome", "failed"))
	require.NotPanics(t, func() { (*middleware.Metrics)(nil).MarkDuplicate(t.Context(), "h") })
}

// A broker's entry that is no message at all has a reason of its own.
func TestPoisonMalformed(t *testing.T) {
	t.Parallel()
	dlq := newSink()
	err := middleware.Permanent(fmt.Errorf("%w: no payload field", middleware.ErrMalformed))
	_, got := poison(t, middleware.PoisonConfig{Publisher: dlq})(fail(err))(newMessage("1"))
	require.NoError(t, got)
	require.Equal(t, middleware.ReasonMalformed, dlq.only(t).Metadata[middleware.DeadLetterReason])
}

// Filtering is the everyday of a topic with several types, so it is logged at
// debug; any other skip at info.
func TestPoisonLogsSkips(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"level=DEBUG": middleware.SkipBecause(middleware.SkipFiltered, errBoom),
		"level=INFO":  middleware.SkipBecause(middleware.SkipStale, errBoom),
	} {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		_, got := poison(t, middleware.PoisonConfig{Publisher: newSink(), Logger: logger})(fail(err))(newMessage("1"))
		require.NoError(t, got)
		require.Contains(t, log.String(), want)
	}
	require.NoError(t, middleware.SkipBecause(middleware.SkipStale, nil))
}

// The log names a dead letter as the queue does, and the event beside it.
func TestPoisonLogsBothIDs(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	cfg := middleware.PoisonConfig{Publisher: newSink(), Logger: slog.New(slog.NewTextHandler(&log, nil))}
	_, err := poison(t, cfg)(fail(middleware.Permanent(errBoom)))(newMessage("1"))
	require.NoError(t, err)
	require.Contains(t, log.String(), "message_id=uuid-1 event_id=1 ")
	log.Reset()
	_, err = poison(t, cfg)(fail(middleware.Permanent(errBoom)))(message.NewMessage("raw", nil))
	require.NoError(t, err)
	require.Contains(t, log.String(), "message_id=raw ")
	require.NotContains(t, log.String(), "event_id")
}

// An alert on a rate sees the first failure only where the series began at zero.
func TestMetricsBeginAtZero(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	newMetrics(t, reg).Middleware("charge-order", "g")
	families, err := reg.Gather()
	require.NoError(t, err)
	seen := map[string]int{}
	for _, f := range families {
		seen[f.GetName()] = len(f.GetMetric())
	}
	require.Equal(t, 8, seen["headrace_dead_letters_total"])
	for _, name := range []string{"headrace_retries_total", "headrace_handler_overruns_total", "headrace_handlers_stuck"} {
		require.Equal(t, 1, seen[name], name)
	}
}
