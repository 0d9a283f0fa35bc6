// Package logging makes the service's slog.Logger: JSON or text, with the ids of
// the work at hand taken from the context, and Watermill's own messages at
// levels that don't drown them.
package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/middleware"
)

// New makes a logger that writes to w as cfg says. An unknown level or format is
// an error.
func New(w io.Writer, cfg config.Log) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		return nil, fmt.Errorf("logging: log.level is %q: use debug, info, warn or error", cfg.Level)
	}
	opts := &slog.HandlerOptions{Level: level}
	switch cfg.Format {
	case "json":
		return slog.New(NewHandler(slog.NewJSONHandler(w, opts))), nil
	case "text":
		opts.ReplaceAttr = plainError
		return slog.New(NewHandler(slog.NewTextHandler(w, opts))), nil
	}
	return nil, fmt.Errorf("logging: log.format is %q: use json or text", cfg.Format)
}

// plainError writes an error as its text. The text handler would ask for its long
// form, with which some libraries print their stack and the paths of the build.
func plainError(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok && err != nil {
		a.Value = slog.StringValue(err.Error())
	}
	return a
}

// NewHandler returns a handler that adds to each record what its context says:
// correlation_id, causation_id, event_id, event_type, handler, attempt and
// trace_id. A key that the record has itself is left to it.
func NewHandler(next slog.Handler) slog.Handler { return &handler{next: next} }

type handler struct {
	next slog.Handler
	// set holds the attributes given by With, below which no other of the same
	// name is added.
	set map[string]bool
	// grouped: attributes would land in a group, where they don't belong.
	grouped bool
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if h.grouped {
		return h.next.Handle(ctx, r)
	}
	attrs := Attrs(ctx)
	if len(attrs) == 0 {
		return h.next.Handle(ctx, r)
	}
	own := map[string]bool{}
	r.Attrs(func(a slog.Attr) bool {
		own[a.Key] = true
		return true
	})
	r = r.Clone()
	for _, a := range attrs {
		if !own[a.Key] && !h.set[a.Key] {
			r.AddAttrs(a)
		}
	}
	return h.next.Handle(ctx, r)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	set := make(map[string]bool, len(h.set)+len(attrs))
	for k := range h.set {
		set[k] = true
	}
	if !h.grouped {
		for _, a := range attrs {
			set[a.Key] = true
		}
	}
	return &handler{next: h.next.WithAttrs(attrs), set: set, grouped: h.grouped}
}

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return &handler{next: h.next.WithGroup(name), set: h.set, grouped: true}
}

// Attrs returns what ctx says of the work at hand.
func Attrs(ctx context.Context) []slog.Attr {
	if ctx == nil {
		return nil
	}
	var attrs []slog.Attr
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, value))
		}
	}
	c := middleware.CorrelationFrom(ctx)
	add("correlation_id", c.CorrelationID)
	add("event_id", c.EventID)
	add("event_type", c.EventType)
	add("handler", message.HandlerNameFromCtx(ctx))
	if n := middleware.AttemptFrom(ctx); n > 1 {
		attrs = append(attrs, slog.Int("attempt", n))
	}
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		add("trace_id", sc.TraceID().String())
	}
	return attrs
}
