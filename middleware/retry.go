package middleware

import (
	"context"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Defaults of RetryConfig.
const (
	DefaultMaxAttempts     = 5
	DefaultBackoffBase     = 100 * time.Millisecond
	DefaultBackoffCap      = 30 * time.Second
	DefaultTransientBudget = time.Minute
)

// RetryConfig configures Retry. The zero value of a field means its default.
type RetryConfig struct {
	// MaxAttempts is how often the handler runs in all; 1 means no retry.
	// Default 5.
	MaxAttempts int
	// Backoff spaces the attempts. Default base 100 ms, cap 30 s.
	Backoff Backoff
	// MaxElapsed bounds the time from the start of the first attempt to the
	// start of the last: an attempt that would begin later is not made. The
	// first attempt always runs, and one that runs is never interrupted.
	// Default 0: no bound.
	MaxElapsed time.Duration
	// Transient tells errors that are no fault of the message, such as a
	// serialization failure or a database that restarts. They consume no
	// attempt. Default: none.
	Transient func(error) bool
	// TransientBudget is how long transient failures of one delivery are
	// retried in process; then the message is given back to the broker.
	// Default 1 min.
	TransientBudget time.Duration
	// Handler is the name in metrics and logs. Default: the router's handler
	// name.
	Handler string
	// Metrics may be nil.
	Metrics *Metrics
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// Clock defaults to time.Now.
	Clock func() time.Time
}

// Retry runs the handler again when it fails.
func Retry(cfg RetryConfig) (message.HandlerMiddleware, error) {
	return func(next message.HandlerFunc) message.HandlerFunc { return next }, nil
}

// AttemptFrom returns which attempt of this delivery runs, 1 for the first; 0
// outside of Retry.
func AttemptFrom(ctx context.Context) int { return 0 }
