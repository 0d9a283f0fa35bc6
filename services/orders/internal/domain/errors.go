package domain

import (
	"errors"
	"fmt"
	"strings"
)

// Errors of money arithmetic.
var (
	ErrOverflow         = errors.New("amount out of range")
	ErrCurrencyMismatch = errors.New("currencies differ")
	ErrNegative         = errors.New("negative factor")
)

// ErrInvalidTransition is in the chain of every *TransitionError.
var ErrInvalidTransition = errors.New("invalid transition")

// ErrCaptureUnknown says that something follows from a capture that the order has
// not heard of yet: it is on its way, so trying again later helps.
var ErrCaptureUnknown = errors.New("no capture is known yet")

// TransitionError says that an order can't do what was asked in its state.
type TransitionError struct {
	OrderID string
	State   State
	// Action is what was asked: "confirm", "cancel", "refund".
	Action string
	// Because says why, without personal data.
	Because string
}

// Error names the order, its state, the action and why.
func (e *TransitionError) Error() string {
	return fmt.Sprintf("order %s is %s: can't %s: %s", e.OrderID, e.State, e.Action, e.Because)
}

// Is reports ErrInvalidTransition.
func (e *TransitionError) Is(target error) bool { return target == ErrInvalidTransition }

// Violation is one rule that a value breaks.
type Violation struct {
	// Field is the path of the value as the API writes it:
	// "lines[0].unit_price.amount".
	Field string
	// Code is stable and meant for programs: "required", "too_long".
	Code string
	// Message is meant for people. It never repeats the value.
	Message string
}

// ValidationError lists every violation of one input.
type ValidationError struct {
	Violations []Violation
}

// Error names the fields and what is wrong with each.
func (e *ValidationError) Error() string {
	parts := make([]string, len(e.Violations))
	for i, v := range e.Violations {
		parts[i] = v.Field + ": " + v.Message
	}
	return "invalid order: " + strings.Join(parts, "; ")
}

// violations collects what is wrong, so that a caller learns all of it at once.
type violations []Violation

func (vs *violations) add(field, code, format string, args ...any) {
	*vs = append(*vs, Violation{Field: field, Code: code, Message: fmt.Sprintf(format, args...)})
}

func (vs violations) err() error {
	if len(vs) == 0 {
		return nil
	}
	return &ValidationError{Violations: vs}
}
