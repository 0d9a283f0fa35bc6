package framework_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

func do(t *testing.T, method, url, body string, header map[string]string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	res, err := client.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res, string(b)
}

// B21, as far as it goes without a redrive: one correlation id and one trace from
// the request over outbox, broker and reply to the dead letter, the causation id
// is the parent's id, and the dead letter overwrites nothing.
func TestOneStoryFromRequestToDeadLetter_B21(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	f := setup(t, func(c *framework.Config) { c.Tracer = tracer })
	f.app.Emits(made.Descriptor(), counted.Descriptor())
	framework.HandleTx(f.app, made, "count", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
		return framework.Emit(ctx, tx, counted.New("k", e.Data))
	})
	framework.Handle(f.app, counted, "fail", func(ctx context.Context, e events.Event[thing]) error {
		return errBroken
	}, framework.MaxAttempts(2))
	f.app.HTTP(httpx.Handler(func(w http.ResponseWriter, r *http.Request) error {
		return f.app.Tx(r.Context(), func(ctx context.Context, tx *sql.Tx) error {
			return framework.Emit(ctx, tx, made.New("k", thing{Name: "a"}))
		})
	}))
	f.start()
	const traceID = "0af7651916cd43dd8448eb211c80319c"
	res, _ := do(t, http.MethodPost, "http://"+f.app.HTTPAddr()+"/", "", map[string]string{
		"X-Correlation-ID": "req-42", "traceparent": "00-" + traceID + "-b7ad6b7169203331-01", "tracestate": "vendor=x",
	})
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, "req-42", res.Header.Get("X-Correlation-ID"))

	first := frameworktest.Await(f.System, made, nil)
	second := frameworktest.Await(f.System, counted, nil)
	dead := f.AwaitDeadLetter("things.fail", nil).Message.Metadata
	require.Empty(t, first.Metadata.CausationID)
	require.Equal(t, first.ID, second.Metadata.CausationID)
	for _, m := range []events.Metadata{first.Metadata, second.Metadata} {
		require.Equal(t, "req-42", m.CorrelationID)
		require.Equal(t, traceID, strings.Split(m.TraceParent, "-")[1])
		require.Equal(t, "vendor=x", m.TraceState)
	}
	require.NotEqual(t, first.Metadata.TraceParent, second.Metadata.TraceParent, "each hop has its own span")

	for key, value := range second.Headers() {
		require.Equal(t, value, dead.Get(key), "the dead letter overwrites no metadata: %s", key)
	}
	for key, value := range map[string]string{
		middleware.DeadLetterReason: middleware.ReasonExhausted, middleware.DeadLetterHandler: "fail", middleware.DeadLetterTopic: counted.Topic(),
		middleware.DeadLetterGroup: "things.fail", middleware.DeadLetterService: "things", middleware.DeadLetterAttempts: "2", middleware.DeadLetterError: "broken",
	} {
		require.Equal(t, value, dead.Get(key), key)
	}
	require.NotEmpty(t, dead.Get(middleware.DeadLetterFirstFailedAt))
	require.NotEmpty(t, dead.Get(middleware.DeadLetterLastFailedAt))
	f.Idle()
	traced := 0
	for _, span := range spans.GetSpans() {
		if span.SpanContext.TraceID().String() == traceID {
			traced++
		}
	}
	require.GreaterOrEqual(t, traced, 3, "the request and both handlers are spans of one trace")
}

func TestRequestsAreGuarded(t *testing.T) {
	t.Parallel()
	f := setup(t, func(c *framework.Config) { c.Profile.HTTP.MaxBodyBytes = 64 })
	mux := http.NewServeMux()
	mux.HandleFunc("GET /panic", func(http.ResponseWriter, *http.Request) { panic("secret detail") })
	mux.Handle("POST /things/{id}", httpx.Handler(func(w http.ResponseWriter, r *http.Request) error {
		var in thing
		if err := httpx.DecodeJSON(w, r, &in, 0); err != nil {
			return err
		}
		return httpx.WriteJSON(w, http.StatusCreated, in)
	}))
	mux.Handle("GET /fail", httpx.Handler(func(http.ResponseWriter, *http.Request) error { return errBroken }))
	mux.Handle("GET /missing", httpx.Handler(func(http.ResponseWriter, *http.Request) error {
		return framework.Errorf(framework.CodeNotFound, "no thing 7")
	}))
	f.app.HTTP(mux)
	f.start()
	base := "http://" + f.app.HTTPAddr()

	problem := func(body string) map[string]any {
		var p map[string]any
		require.NoError(t, json.Unmarshal([]byte(body), &p), body)
		return p
	}
	res, body := do(t, http.MethodGet, base+"/panic", "", nil)
	require.Equal(t, http.StatusInternalServerError, res.StatusCode)
	require.Equal(t, "application/problem+json", res.Header.Get("Content-Type"))
	require.NotContains(t, body, "secret")
	require.Equal(t, res.Header.Get("X-Correlation-ID"), problem(body)["correlation_id"])

	res, body = do(t, http.MethodGet, base+"/fail", "", nil)
	require.Equal(t, http.StatusInternalServerError, res.StatusCode)
	require.NotContains(t, body, "broken", "an internal error keeps its text to itself")

	res, body = do(t, http.MethodGet, base+"/missing", "", nil)
	require.Equal(t, http.StatusNotFound, res.StatusCode)
	require.Equal(t, "no thing 7", problem(body)["detail"])

	res, _ = do(t, http.MethodPost, base+"/things/1", `{"name":"a","n":1}`, nil)
	require.Equal(t, http.StatusCreated, res.StatusCode)
	for name, bad := range map[string]struct {
		body   string
		status int
	}{
		"unknown field": {`{"name":"a","colour":"red"}`, 422}, "wrong type": {`{"name":7}`, 422}, "two values": {`{} {}`, 400},
		"empty": {``, 415}, "cut off": {`{"name":`, 400}, "too large": {`{"name":"` + strings.Repeat("a", 100) + `"}`, 413},
	} {
		res, body = do(t, http.MethodPost, base+"/things/1", bad.body, nil)
		require.Equal(t, bad.status, res.StatusCode, "%s: %s", name, body)
		require.NotEmpty(t, problem(body)["detail"], name)
	}
	res, _ = do(t, http.MethodPost, base+"/things/1", `<a/>`, map[string]string{"Content-Type": "text/xml"})
	require.Equal(t, http.StatusUnsupportedMediaType, res.StatusCode)

	for _, id := range []string{"", "has blank", strings.Repeat("x", 200), "a\"b"} {
		res, _ = do(t, http.MethodGet, base+"/missing", "", map[string]string{"X-Correlation-ID": id})
		got := res.Header.Get("X-Correlation-ID")
		require.NotEmpty(t, got)
		require.NotEqual(t, id, got, "an unusable id is replaced")
	}
	require.InDelta(t, 1, f.metricCount("headrace_http_seconds", "POST /things/{id}", "413"), 0)
}

// metricCount returns a histogram's number of observations.
func (f *fixture) metricCount(name, route, status string) float64 {
	f.t.Helper()
	families, err := f.app.Metrics().Gather()
	require.NoError(f.t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if family.GetName() == name && labels["route"] == route && labels["status"] == status {
				return float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}
