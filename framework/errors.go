package framework

import (
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/middleware"
)

// Code says in one bounded word what kind of failure an Error is. httpx maps it
// to an HTTP status.
type Code string

// The codes of an Error.
const (
	// CodeMalformed: the request can't be read.
	CodeMalformed Code = "malformed"
	// CodeInvalid: the request was read, and breaks a rule that it can be told.
	CodeInvalid Code = "invalid"
	// CodeUnauthenticated: the caller did not say who it is.
	CodeUnauthenticated Code = "unauthenticated"
	// CodeForbidden: the caller may not do this.
	CodeForbidden Code = "forbidden"
	// CodeNotFound: there is no such thing.
	CodeNotFound Code = "not_found"
	// CodeConflict: the thing's present state does not allow it, or another
	// change came first.
	CodeConflict Code = "conflict"
	// CodeUnprocessable: understood and well-formed, and yet it can't be done.
	CodeUnprocessable Code = "unprocessable"
	// CodeTooLarge: the request is larger than allowed.
	CodeTooLarge Code = "too_large"
	// CodeUnsupportedMedia: the request's body has a type that is not taken.
	CodeUnsupportedMedia Code = "unsupported_media_type"
	// CodeMethodNotAllowed: the address does not take the request's method.
	CodeMethodNotAllowed Code = "method_not_allowed"
	// CodeRateLimited: too many requests; try again later.
	CodeRateLimited Code = "rate_limited"
	// CodeUnavailable: a dependency does not answer; try again later.
	CodeUnavailable Code = "unavailable"
	// CodeInternal: a fault of ours. Its text is not shown to callers.
	CodeInternal Code = "internal"
)

// Error is a failure with a code, for use cases that are called over HTTP. A
// plain error counts as CodeInternal.
type Error struct {
	// Code is the kind of failure.
	Code Code
	// Op is what was tried, such as "cancel order 42". It may be empty.
	Op string
	// Err is the cause. Its text is shown to the caller unless Code is
	// CodeInternal or CodeUnavailable.
	Err error
}

// Errorf makes an Error without an Op; %w wraps as in fmt.Errorf.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// Error joins the operation and the cause, or the code where there is neither.
func (e *Error) Error() string {
	switch {
	case e.Err == nil && e.Op == "":
		return string(e.Code)
	case e.Err == nil:
		return e.Op + ": " + string(e.Code)
	case e.Op == "":
		return e.Err.Error()
	}
	return e.Op + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of the outermost Error in err's chain, CodeInternal
// for any other error and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) && e.Code != "" {
		return e.Code
	}
	return CodeInternal
}

// ErrDone is returned, wrapped or not, by CallHandler.Prepare when there is
// nothing to call for: what Prepare wrote and emitted commits together with the
// inbox row, and the event counts as handled.
var ErrDone = errors.New("done: nothing to call")

// ErrStale is in the chain of the error with which a message older than its
// handler's MaxAge is skipped.
var ErrStale = errors.New("event is older than the handler's MaxAge")

// ErrFiltered is in the chain of the error with which a message is skipped
// whose type shares the topic and belongs to other handlers.
var ErrFiltered = errors.New("event belongs to another handler")

// ErrRunOnce is returned by a second Run, and by a Run after Close.
var ErrRunOnce = errors.New("framework: an App runs once: make a new one")

// Permanent marks err as one that no retry can mend: the message goes straight
// to the dead letters. Nil stays nil.
func Permanent(err error) error { return middleware.Permanent(err) }

// RetryAfter marks err as one that is worth trying again, but not before the
// delay. The attempt counts. Nil stays nil.
func RetryAfter(err error, delay time.Duration) error { return middleware.RetryAfter(err, delay) }

// Skip marks err as a reason to leave the message unhandled for good: it is
// acked, counted and logged. In HandleTx nothing that the handler wrote commits.
// Nil stays nil.
func Skip(err error) error { return middleware.Skip(err) }

// Defer gives the message back to the broker, to come again after the delay,
// without counting an attempt. Nil stays nil.
func Defer(err error, delay time.Duration) error { return middleware.Defer(err, delay) }
