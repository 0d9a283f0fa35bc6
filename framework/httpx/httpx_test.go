package httpx_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker/memory"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/framework/sqltx"
)

func answer(t *testing.T, err error) (*httptest.ResponseRecorder, map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	httpx.WriteError(w, httptest.NewRequest(http.MethodGet, "/", nil), err)
	var p map[string]any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
	require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	require.Equal(t, "about:blank", p["type"])
	require.EqualValues(t, w.Code, p["status"])
	return w, p
}

func TestEveryCodeHasItsStatus(t *testing.T) {
	t.Parallel()
	for code, status := range map[framework.Code]int{
		framework.CodeMalformed: 400, framework.CodeUnauthenticated: 401, framework.CodeForbidden: 403, framework.CodeNotFound: 404,
		framework.CodeMethodNotAllowed: 405, framework.CodeConflict: 409, framework.CodeTooLarge: 413, framework.CodeUnsupportedMedia: 415,
		framework.CodeInvalid: 422, framework.CodeUnprocessable: 422, framework.CodeRateLimited: 429,
		framework.CodeInternal: 500, framework.CodeUnavailable: 503, "invented": 500,
	} {
		w, p := answer(t, fmt.Errorf("op: %w", framework.Errorf(code, "why")))
		require.Equal(t, status, w.Code, code)
		require.Equal(t, string(code), p["code"])
		if status < 500 {
			require.Equal(t, "op: why", p["detail"])
		} else {
			require.NotContains(t, w.Body.String(), "why")
		}
	}
}

func TestProblemsAreToldAsTheyAre(t *testing.T) {
	t.Parallel()
	cause := errors.New("the pool is empty")
	for name, c := range map[string]struct {
		err        error
		status     int
		code       string
		detail     any
		retryAfter string
	}{
		"own code":      {&httpx.Problem{Status: 422, Code: "key_reused", Detail: "another key, please"}, 422, "key_reused", "another key, please", ""},
		"wrapped":       {fmt.Errorf("place: %w", httpx.Invalid("no")), 422, "invalid", "no", ""},
		"patience":      {&httpx.Problem{Code: framework.CodeRateLimited, RetryAfter: 1500 * time.Millisecond}, 429, "rate_limited", nil, "2"},
		"only a status": {&httpx.Problem{Status: 404}, 404, "not_found", nil, ""},
		"rare status":   {&httpx.Problem{Status: 418}, 418, "invalid", nil, ""},
		"deadline":      {fmt.Errorf("read: %w", context.DeadlineExceeded), 503, "unavailable", "try again shortly", "1"},
		"unknown":       {fmt.Errorf("write: %w", sqltx.ErrCommitUnknown), 503, "unavailable", "it is unknown whether this took effect: look before you send it again", "1"},
		"unavailable":   {httpx.Unavailable(cause), 503, "unavailable", "try again shortly", "1"},
		"anything else": {cause, 500, "internal", nil, ""},
	} {
		w, p := answer(t, c.err)
		require.Equal(t, c.status, w.Code, name)
		require.Equal(t, c.code, p["code"], name)
		require.Equal(t, c.detail, p["detail"], name)
		require.Equal(t, c.retryAfter, w.Header().Get("Retry-After"), name)
		require.NotContains(t, w.Body.String(), "pool", name)
	}
	require.ErrorIs(t, httpx.Unavailable(cause), cause)
	require.EqualError(t, &httpx.Problem{Status: 404}, "not_found")
}

func TestNobodyReadsTheAnswerToAClientThatIsGone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	httpx.WriteError(w, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx), fmt.Errorf("read: %w", ctx.Err()))
	require.Equal(t, 499, w.Code)
	require.Empty(t, w.Body.String())
}

func TestAnAnswerThatCantBeEncoded(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	require.Error(t, httpx.WriteJSON(w, http.StatusOK, func() {}))
	require.Empty(t, w.Body.String(), "nothing was sent yet, so the caller can still answer")
}

func TestRoutersOwnAnswersAreProblems(t *testing.T) {
	t.Parallel()
	for status, h := range map[int]http.HandlerFunc{404: httpx.NotFound, 405: httpx.MethodNotAllowed} {
		w := httptest.NewRecorder()
		h(w, httptest.NewRequest(http.MethodPatch, "/nowhere", nil))
		require.Equal(t, status, w.Code)
		require.Contains(t, w.Body.String(), `"detail"`)
	}
	w := httptest.NewRecorder()
	httpx.Document("application/yaml", []byte("openapi: 3.1.0\n"))(w, httptest.NewRequest(http.MethodGet, "/openapi.yaml", nil))
	require.Equal(t, "application/yaml", w.Header().Get("Content-Type"))
	require.Equal(t, "openapi: 3.1.0\n", w.Body.String())
}

// A router that works on a copy of the request tells its route with NoteRoute:
// the log and the metrics show it, for a request that panics too.
func TestTheRouteIsSeenThroughACopyingRouter(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	b := memory.New(memory.Config{})
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	app, err := framework.New(framework.Config{
		Service: "things", Profile: frameworktest.Profile(), Broker: b, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /things/{id}", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /panic/{id}", func(http.ResponseWriter, *http.Request) { panic("ouch") })
	inner := httpx.NoteRoute(mux)
	app.HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(w, r.Clone(r.Context()))
	}))
	for _, path := range []string{"/things/1", "/panic/1", "/nowhere"} {
		app.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
	}
	require.Contains(t, log.String(), `route="GET /things/{id}" status=200`)
	require.Contains(t, log.String(), `route="GET /panic/{id}" status=500`)
	families, err := app.Metrics().Gather()
	require.NoError(t, err)
	var routes []string
	for _, family := range families {
		if family.GetName() != "headrace_http_seconds" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "route" {
					routes = append(routes, l.GetValue())
				}
			}
		}
	}
	require.ElementsMatch(t, []string{"GET /things/{id}", "GET /panic/{id}", "other"}, routes)
	httpx.NoteRoute(mux).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/things/1", nil)) // no App around it
}

func ExampleHandler() {
	var errSoldOut = errors.New("sold out")
	order := func(quantity int) error {
		if quantity > 10 {
			return errSoldOut
		}
		return nil
	}
	h := httpx.Handler(func(w http.ResponseWriter, r *http.Request) error {
		var in struct {
			Quantity int `json:"quantity"`
		}
		if err := httpx.DecodeJSON(w, r, &in, 0); err != nil {
			return err
		}
		if in.Quantity < 1 {
			return httpx.Invalid("no order", httpx.FieldError{Field: "quantity", Code: "too_small", Message: "must be 1 or more"})
		}
		if err := order(in.Quantity); err != nil {
			return err
		}
		return httpx.WriteJSON(w, http.StatusCreated, in)
	}).Translate(func(err error) error {
		if errors.Is(err, errSoldOut) {
			return framework.Errorf(framework.CodeConflict, "%w", err)
		}
		return err
	})
	for _, body := range []string{`{"quantity":2}`, `{"quantity":0}`, `{"quantity":"two"}`, `{"quantity":11}`} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		h.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body.String())
	}
	// Output:
	// 201 {"quantity":2}
	// 422 {"type":"about:blank","title":"Unprocessable Entity","status":422,"detail":"no order","code":"invalid","errors":[{"field":"quantity","code":"too_small","message":"must be 1 or more"}]}
	// 422 {"type":"about:blank","title":"Unprocessable Entity","status":422,"detail":"the body can't be used","code":"invalid","errors":[{"field":"quantity","code":"wrong_type","message":"must be a whole number in range"}]}
	// 409 {"type":"about:blank","title":"Conflict","status":409,"detail":"sold out","code":"conflict"}
}
