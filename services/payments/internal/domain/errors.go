package domain

import (
	"errors"
	"fmt"
)

// ErrInvalidTransition is in the chain of every *TransitionError.
var ErrInvalidTransition = errors.New("invalid transition")

// ErrInvalidPayment is in the chain of an error that says which value of a new
// payment can't be.
var ErrInvalidPayment = errors.New("invalid payment")

// TransitionError says that a payment can't do what was asked in its state.
type TransitionError struct {
	PaymentID string
	State     State
	// Action is what was asked: "charge", "capture", "fail", "refund".
	Action string
	// Because says why, without personal data.
	Because string
}

// Error names the payment, its state, the action and why.
func (e *TransitionError) Error() string {
	return fmt.Sprintf("payment %s is %s: can't %s: %s", e.PaymentID, e.State, e.Action, e.Because)
}

// Is reports ErrInvalidTransition.
func (e *TransitionError) Is(target error) bool { return target == ErrInvalidTransition }
