package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// Gateway moves money at a payment provider. Every call is idempotent by its
// key: the same key again, from any process and at any later time, changes
// nothing and answers what the first did. Methods are safe for concurrent use,
// also with one key.
//
// An error that is none of those named below says that the outcome is not
// known; the caller asks again with the same key. The error carries a
// framework disposition where the provider named one: how long to wait, or that
// asking again is useless.
type Gateway interface {
	// Charge takes the amount. It returns a *DeclinedError when the provider
	// refuses for good, and ErrVoided when the key was voided before.
	Charge(ctx context.Context, req ChargeRequest) (Receipt, error)
	// Void makes sure that no charge under the key is captured from now on. When
	// one was captured before, it stays, and its receipt is returned with
	// captured true: the caller refunds it. A key that was never charged may be
	// voided too.
	Void(ctx context.Context, chargeKey string) (receipt Receipt, captured bool, err error)
	// Refund gives the whole amount of a captured charge back.
	Refund(ctx context.Context, req RefundRequest) (Receipt, error)
}

// ChargeRequest asks for one charge.
type ChargeRequest struct {
	// Key is the idempotency key.
	Key     string
	OrderID string
	Amount  domain.Money
	// Token stands for the customer's means of payment at the provider. It is
	// no card data.
	Token string
}

// RefundRequest asks to give one charge back.
type RefundRequest struct {
	// Key is the idempotency key.
	Key string
	// Charge is the charge's reference.
	Charge string
	Amount domain.Money
}

// Receipt is the provider's answer to a charge or a refund.
type Receipt struct {
	// Reference is the provider's name for it.
	Reference string
}

// ErrVoided is returned by Charge for a key that was voided.
var ErrVoided = errors.New("the charge was voided")

// DeclinedError is a provider's refusal to charge. It is a fact about the
// customer's means of payment and no failure of ours.
type DeclinedError struct {
	// Reason is the provider's code: "declined", "insufficient_funds".
	Reason string
}

// Error names the reason.
func (e *DeclinedError) Error() string { return fmt.Sprintf("charge declined: %s", e.Reason) }
