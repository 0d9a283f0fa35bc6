package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// TimeoutConfig configures Timeout.
type TimeoutConfig struct {
	// Timeout is how long one attempt may take. Required.
	Timeout time.Duration
	// Handler is the name in metrics and logs. Default: the router's handler
	// name.
	Handler string
	// Metrics may be nil.
	Metrics *Metrics
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns c with its defaults filled in.
func (c TimeoutConfig) WithDefaults() TimeoutConfig {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that can't work.
func (c TimeoutConfig) Validate() error {
	if c.Timeout <= 0 {
		return fmt.Errorf("middleware: Timeout.Timeout is %s: it must be above 0", c.Timeout)
	}
	return nil
}

// ErrTimeout is in the chain of the error of an attempt that failed once its
// deadline had passed.
var ErrTimeout = errors.New("handler timed out")

// Timeout gives each attempt a context that ends after the timeout, and puts the
// old one back afterwards. Nothing can stop a handler that ignores its context:
// it is waited for, so that attempts of one message never overlap; it is counted
// and logged when its deadline passes, and shows in headrace_handlers_stuck
// until it returns. A handler that succeeds late has succeeded.
func Timeout(cfg TimeoutConfig) (message.HandlerMiddleware, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			old := msg.Context()
			ctx, cancel := context.WithTimeout(old, cfg.Timeout)
			w := &overrun{cfg: &cfg, ctx: old, id: msg.UUID}
			timer := time.AfterFunc(cfg.Timeout, w.passed)
			defer func() {
				if !timer.Stop() {
					w.returned()
				}
				cancel()
				msg.SetContext(old)
			}()
			msg.SetContext(ctx)

			produced, err := next(msg)
			if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && old.Err() == nil {
				return produced, fmt.Errorf("%w after %s: %w", ErrTimeout, cfg.Timeout, err)
			}
			return produced, err
		}
	}, nil
}

// overrun counts one attempt that passes its deadline. Its timer may fire while
// the attempt returns, hence the lock.
type overrun struct {
	cfg *TimeoutConfig
	ctx context.Context
	id  string

	mu    sync.Mutex
	late  bool
	ended bool
}

func (w *overrun) passed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.late = true
	handler := handlerName(w.cfg.Handler, w.ctx)
	w.cfg.Metrics.overran(handler)
	w.cfg.Logger.WarnContext(w.ctx, "handler runs past its timeout",
		"handler", handler, "message_id", w.id, "timeout", w.cfg.Timeout)
}

func (w *overrun) returned() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if w.late {
		w.cfg.Metrics.unstuck(handlerName(w.cfg.Handler, w.ctx))
	}
}
