package logging

import (
	"context"
	"errors"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/headrace-go/headrace/middleware"
)

// Watermill bridges Watermill's logger to l. What the router tells of its own
// life at info is debug here, and a message that is given back (a shutdown, a
// busy claim, an open breaker) is no error.
func Watermill(l *slog.Logger) watermill.LoggerAdapter { return &adapter{l: l} }

type adapter struct{ l *slog.Logger }

const levelTrace = slog.LevelDebug - 4

func (a *adapter) Error(msg string, err error, fields watermill.LogFields) {
	level := slog.LevelError
	if d, _ := middleware.DispositionOf(err); d == middleware.DispositionDefer || errors.Is(err, middleware.ErrShuttingDown) || errors.Is(err, context.Canceled) {
		level = slog.LevelDebug
	}
	a.log(level, msg, fields, slog.Any("error", err))
}

func (a *adapter) Info(msg string, fields watermill.LogFields) {
	a.log(slog.LevelDebug, msg, fields)
}

func (a *adapter) Debug(msg string, fields watermill.LogFields) {
	a.log(levelTrace, msg, fields)
}

func (a *adapter) Trace(msg string, fields watermill.LogFields) {
	a.log(levelTrace, msg, fields)
}

func (a *adapter) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return &adapter{l: slog.New(a.l.Handler().WithAttrs(attrs(fields)))}
}

func (a *adapter) log(level slog.Level, msg string, fields watermill.LogFields, extra ...slog.Attr) {
	ctx := context.Background() // Watermill's logger takes none
	if !a.l.Enabled(ctx, level) {
		return
	}
	a.l.LogAttrs(ctx, level, "watermill: "+msg, append(attrs(fields), extra...)...)
}

// payloadFields would print a message's content.
var payloadFields = map[string]bool{"not_sent_message": true, "payload": true, "message": true}

func attrs(fields watermill.LogFields) []slog.Attr {
	out := make([]slog.Attr, 0, len(fields)+1)
	for k, v := range fields {
		if !payloadFields[k] {
			out = append(out, slog.Any(k, v))
		}
	}
	return out
}
