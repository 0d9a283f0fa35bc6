// Package httpapi wraps a service's HTTP handler: correlation, trace, bounded
// body, panics, log and metrics.
package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/framework/internal/problem"
	"github.com/headrace-go/headrace/middleware"
)

// CorrelationHeader carries the correlation id, in and out.
const CorrelationHeader = "X-Correlation-ID"

// maxCorrelationBytes bounds an id that a caller chose.
const maxCorrelationBytes = 128

// Config configures Wrap. All fields are required.
type Config struct {
	Logger       *slog.Logger
	Tracer       trace.TracerProvider
	Seconds      *prometheus.HistogramVec // labels: method, route, status
	MaxBodyBytes int64
	// Context adds what the service's code needs to a request's context.
	Context func(context.Context) context.Context
}

// Wrap puts the layers around h.
func Wrap(h http.Handler, cfg Config) http.Handler {
	inner := &handler{next: h, cfg: cfg}
	return otelhttp.NewHandler(inner, "http",
		otelhttp.WithTracerProvider(cfg.Tracer),
		otelhttp.WithPropagators(propagation.TraceContext{}),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string {
			if r.Pattern != "" {
				return r.Pattern
			}
			return r.Method
		}))
}

type handler struct {
	next http.Handler
	cfg  Config
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	id := r.Header.Get(CorrelationHeader)
	if !validCorrelation(id) {
		id = newID()
	}
	w.Header().Set(CorrelationHeader, id)
	ctx := middleware.WithCorrelation(r.Context(), middleware.Correlation{CorrelationID: id})
	noted := &route{}
	outer := r
	r = r.WithContext(context.WithValue(h.cfg.Context(ctx), routeKey{}, noted))
	if r.Body != nil {
		r.Body = http.MaxBytesReader(w, r.Body, h.cfg.MaxBodyBytes)
	}
	rec := &recorder{ResponseWriter: w}
	defer func() {
		p := recover()
		if pattern := noted.get(); pattern != "" {
			r.Pattern = pattern
		}
		outer.Pattern = r.Pattern // for the span's name
		h.finish(rec, r, id, start, p)
	}()
	h.next.ServeHTTP(rec, r)
}

type routeKey struct{}

// route is where a router notes its pattern.
type route struct {
	mu      sync.Mutex
	pattern string
}

func (r *route) get() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pattern
}

// SetRoute notes the pattern of the route that served the request of ctx. An
// empty pattern, and a context of no request, change nothing.
func SetRoute(ctx context.Context, pattern string) {
	noted, ok := ctx.Value(routeKey{}).(*route)
	if !ok || pattern == "" {
		return
	}
	noted.mu.Lock()
	defer noted.mu.Unlock()
	noted.pattern = pattern
}

// finish turns a panic, p, into a 500, and logs and measures the request.
func (h *handler) finish(rec *recorder, r *http.Request, id string, start time.Time, p any) {
	if p != nil {
		if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(p) // the server's own way to break a connection off
		}
		h.cfg.Logger.ErrorContext(r.Context(), "request panicked", "method", r.Method, "route", r.Pattern,
			"panic", fmt.Sprint(p), "stack", clip(debug.Stack()))
		if !rec.started() {
			problem.Write(rec, problem.Problem{Status: http.StatusInternalServerError, Code: "internal", CorrelationID: id})
		}
	}
	status := rec.code()
	route := r.Pattern
	if route == "" {
		route = "other"
	}
	took := time.Since(start)
	h.cfg.Seconds.WithLabelValues(method(r.Method), route, strconv.Itoa(status)).Observe(took.Seconds())
	level := slog.LevelInfo
	if status >= http.StatusInternalServerError {
		level = slog.LevelError
	}
	h.cfg.Logger.Log(r.Context(), level, "request", "method", r.Method, "path", r.URL.Path, "route", r.Pattern,
		"status", status, "bytes", rec.bytes, "ms", took.Milliseconds())
	if p != nil && rec.hijacked {
		panic(http.ErrAbortHandler)
	}
}

// method bounds the metric's label.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "other"
}

const maxStackBytes = 8 << 10

func clip(stack []byte) string { return string(stack[:min(len(stack), maxStackBytes)]) }

// validCorrelation takes printable ASCII without blanks and quotes, so that an
// id can stand in headers, logs and queries.
func validCorrelation(id string) bool {
	if id == "" || len(id) > maxCorrelationBytes {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '-', c == '_', c == '.', c == ':', c == '/', c == '+', c == '=', c == '@':
		default:
			return false
		}
	}
	return true
}

func newID() string {
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.NewString()
	}
	return id.String()
}

// recorder notes what was answered.
type recorder struct {
	http.ResponseWriter
	status   int
	bytes    int64
	hijacked bool
}

func (r *recorder) started() bool { return r.status != 0 || r.hijacked }

func (r *recorder) code() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

// Unwrap serves http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Flush serves handlers that stream.
func (r *recorder) Flush() { _ = http.NewResponseController(r.ResponseWriter).Flush() }

// Hijack serves handlers that take the connection over.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(r.ResponseWriter).Hijack()
	r.hijacked = err == nil
	return c, rw, err
}
