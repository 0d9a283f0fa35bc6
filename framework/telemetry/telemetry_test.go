package telemetry_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/telemetry"
)

func TestSpansReachTheCollector(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if len(body) > 0 {
			select {
			case got <- r.URL.Path:
			default:
			}
		}
	}))
	defer collector.Close()
	p := config.Default()
	p.Trace.Endpoint = collector.URL
	tp, err := telemetry.Open(t.Context(), "things", p)
	require.NoError(t, err)
	_, span := tp.Tracer("t").Start(t.Context(), "s")
	require.True(t, span.SpanContext().IsSampled())
	span.End()
	require.NoError(t, tp.Shutdown(t.Context()))
	require.Equal(t, "/v1/traces", <-got)
}

func TestWithoutACollectorSpansAreStillMade(t *testing.T) {
	t.Parallel()
	p := config.Default()
	p.Trace.Ratio = 0
	tp, err := telemetry.Open(t.Context(), "things", p)
	require.NoError(t, err)
	_, span := tp.Tracer("t").Start(t.Context(), "s")
	require.True(t, span.SpanContext().IsValid())
	require.False(t, span.SpanContext().IsSampled(), "ratio 0 samples nothing")
	require.NoError(t, tp.Shutdown(t.Context()))
}

func TestAnEndpointThatIsNoURLIsTold(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{"jaeger:4318", "ftp://jaeger", "://"} {
		p := config.Default()
		p.Trace.Endpoint = endpoint
		_, err := telemetry.Open(t.Context(), "things", p)
		require.ErrorContains(t, err, "trace.endpoint")
		require.ErrorContains(t, err, "HEADRACE_TRACE_ENDPOINT")
	}
}
