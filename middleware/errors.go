package middleware

import (
	"errors"
	"fmt"
	"time"
)

// Disposition is what the stack does with a message whose handler returned an
// error.
type Disposition int

const (
	// DispositionRetry is the disposition of a plain error: try again within the budget,
	// then dead-letter.
	DispositionRetry Disposition = iota
	// DispositionPermanent goes straight to the dead letters.
	DispositionPermanent
	// DispositionSkip acks the message; the skip is counted and logged.
	DispositionSkip
	// DispositionDefer gives the message back to the broker. It is no failure
	// and consumes no attempt: a shutdown, a claim that another worker holds,
	// an open breaker.
	DispositionDefer
	// DispositionRedeliver gives the message back to the broker as a failed
	// delivery, which counts: the second level of Retry.
	DispositionRedeliver
)

// String returns the disposition's name as metrics and logs print it.
func (d Disposition) String() string {
	switch d {
	case DispositionPermanent:
		return "permanent"
	case DispositionSkip:
		return "skip"
	case DispositionDefer:
		return "defer"
	case DispositionRedeliver:
		return "redeliver"
	default:
		return "retry"
	}
}

// disposedError carries a disposition through any amount of wrapping.
type disposedError struct {
	disposition Disposition
	after       time.Duration
	err         error
}

func (e *disposedError) Error() string { return e.err.Error() }
func (e *disposedError) Unwrap() error { return e.err }

// Permanent marks err as one that no retry can mend: the message goes straight
// to the dead letters. Nil stays nil.
func Permanent(err error) error { return dispose(err, DispositionPermanent, 0) }

// RetryAfter marks err as one that is worth trying again, but not before the
// given delay (a provider's Retry-After, say). The attempt counts. Nil stays
// nil.
func RetryAfter(err error, delay time.Duration) error {
	return dispose(err, DispositionRetry, delay)
}

// Skip marks err as a reason to leave the message unhandled for good: it is
// acked, counted and logged, and not dead-lettered. Nil stays nil.
func Skip(err error) error { return dispose(err, DispositionSkip, 0) }

// Defer gives the message back to the broker, to come again after the delay,
// without counting an attempt. Nil stays nil.
func Defer(err error, delay time.Duration) error {
	return dispose(err, DispositionDefer, delay)
}

// Redeliver gives the message back to the broker, to come again after the delay,
// as a failed delivery: it counts towards PoisonConfig.MaxDeliveries where the
// broker counts deliveries. Retry returns it by itself where RetryConfig.Redeliver
// says so. Nil stays nil.
func Redeliver(err error, delay time.Duration) error {
	return dispose(err, DispositionRedeliver, delay)
}

func dispose(err error, d Disposition, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &disposedError{disposition: d, after: max(after, 0), err: err}
}

// DispositionOf returns the outermost disposition in err's chain and its delay
// (0 when none was given). A plain error has DispositionRetry. So has a panic
// with a value that says skip, defer or redeliver: a panic is a failure.
func DispositionOf(err error) (Disposition, time.Duration) {
	var d *disposedError
	if !errors.As(err, &d) {
		return DispositionRetry, 0
	}
	switch d.disposition {
	case DispositionSkip, DispositionDefer, DispositionRedeliver:
		var p *PanicError
		if errors.As(err, &p) && !errors.As(d.err, &p) {
			return DispositionRetry, 0
		}
	}
	return d.disposition, d.after
}

// ErrShuttingDown is in the chain of an error that a middleware returns because
// the process is draining: the message is given back, never dead-lettered.
var ErrShuttingDown = errors.New("shutting down")

// PanicError is a panic, or a runtime.Goexit, turned into a failed attempt.
type PanicError struct {
	// Value is what was passed to panic; nil for a Goexit.
	Value any
	// Stack is the goroutine's stack, cut to MaxStackBytes.
	Stack string
	// Goexit tells that the handler's goroutine ended by runtime.Goexit
	// (t.FailNow does that) and not by a panic.
	Goexit bool
}

// Error names the panic's value, without the stack.
func (e *PanicError) Error() string {
	if e.Goexit {
		return "handler ended its goroutine (runtime.Goexit)"
	}
	return fmt.Sprintf("panic: %v", e.Value)
}

// Unwrap returns the panic's value where it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// SkipReason classes skips for the metric headrace_skipped_total.
type SkipReason string

// The reasons that the metric knows; any other is counted as SkipOther.
const (
	// SkipStale: the event is older than the handler wants.
	SkipStale SkipReason = "stale"
	// SkipFiltered: the handler does not take this type.
	SkipFiltered SkipReason = "filtered"
	// SkipDiscarded: it only says that a dead letter was discarded.
	SkipDiscarded SkipReason = "discarded"
	// SkipOther: any other reason, and that of a plain Skip.
	SkipOther SkipReason = "other"
)

// SkipBecause is Skip with a reason that the metric shows. Nil stays nil.
func SkipBecause(reason SkipReason, err error) error {
	if err == nil {
		return nil
	}
	return Skip(&skipError{reason: reason, err: err})
}

type skipError struct {
	reason SkipReason
	err    error
}

func (e *skipError) Error() string { return e.err.Error() }
func (e *skipError) Unwrap() error { return e.err }

func isFiltered(err error) bool {
	var s *skipError
	return errors.As(err, &s) && s.reason == SkipFiltered
}
