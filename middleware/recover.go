package middleware

import (
	"log/slog"
	"runtime"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DefaultMaxStackBytes is how much of a panic's stack is kept.
const DefaultMaxStackBytes = 8 << 10

// RecoverConfig configures Recover. Its zero value works.
type RecoverConfig struct {
	// MaxStackBytes bounds the stack that a PanicError keeps. Default 8 KiB;
	// negative keeps none.
	MaxStackBytes int
	// SameGoroutine runs the handler on the caller's goroutine. That saves about
	// a microsecond a message and still turns a panic into an error, but nothing
	// can stop a runtime.Goexit there: the message is nacked and the goroutine
	// ends. Meant for the outermost layer, with a default Recover further in.
	SameGoroutine bool
	// Go runs its argument on a goroutine of its own or on one that nothing else
	// uses meanwhile, such as one of a pool that survives a runtime.Goexit. Default:
	// a new goroutine. A pool saves growing a new stack for each message.
	Go func(func())
	// Logger receives a Goexit that could only be nacked. Default slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns c with its defaults filled in.
func (c RecoverConfig) WithDefaults() RecoverConfig {
	if c.MaxStackBytes == 0 {
		c.MaxStackBytes = DefaultMaxStackBytes
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Recover turns a panic of what it wraps, panic(nil) included, into a
// *PanicError. Unless SameGoroutine is set it runs what it wraps on a goroutine
// of its own and waits for it, so that a runtime.Goexit is a *PanicError too.
func Recover(cfg RecoverConfig) message.HandlerMiddleware {
	cfg = cfg.WithDefaults()
	if cfg.SameGoroutine {
		return func(next message.HandlerFunc) message.HandlerFunc { return recoverHere(cfg, next) }
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			a := &attempt{next: next, msg: msg, maxStack: cfg.MaxStackBytes}
			a.done.Add(1)
			if cfg.Go != nil {
				cfg.Go(a.run)
			} else {
				go a.run()
			}
			a.done.Wait()
			return a.produced, a.err
		}
	}
}

// attempt is one call on a goroutine of its own.
type attempt struct {
	next     message.HandlerFunc
	msg      *message.Message
	maxStack int
	done     sync.WaitGroup

	produced []*message.Message
	err      error
}

func (a *attempt) run() {
	defer a.done.Done()
	returned := false
	defer func() {
		if !returned {
			a.produced, a.err = nil, newPanicError(recover(), a.maxStack)
		}
	}()
	a.produced, a.err = a.next(a.msg)
	returned = true
}

func recoverHere(cfg RecoverConfig, next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		returned := false
		defer func() {
			if returned {
				return
			}
			// The goroutine is ending and takes the router's ack or nack with it.
			if !msg.Nack() {
				return // a Poison inside has buried and acked it
			}
			cfg.Logger.ErrorContext(msg.Context(), "handler ended its goroutine; message nacked",
				withIDs(msg.UUID, msg, "stack", stack(cfg.MaxStackBytes))...)
		}()
		produced, err := protect(next, msg, cfg.MaxStackBytes)
		returned = true
		return produced, err
	}
}

// protect calls next and turns a panic into an error. It does not return when
// next ends the goroutine.
func protect(next message.HandlerFunc, msg *message.Message, maxStack int) (produced []*message.Message, err error) {
	defer func() {
		if v := recover(); v != nil {
			produced, err = nil, newPanicError(v, maxStack)
		}
	}()
	return next(msg)
}

// newPanicError is called in the deferred function, where the stack still shows
// who panicked.
func newPanicError(v any, maxStack int) *PanicError {
	return &PanicError{Value: v, Goexit: v == nil, Stack: stack(maxStack)}
}

// stack is the goroutine's stack, cut at the last whole line within limit.
func stack(limit int) string {
	if limit <= 0 {
		return ""
	}
	buf := make([]byte, limit)
	n := runtime.Stack(buf, false)
	s := string(buf[:n])
	if n == limit {
		if end := strings.LastIndexByte(s, '\n'); end > 0 {
			s = s[:end]
		}
	}
	return s
}
