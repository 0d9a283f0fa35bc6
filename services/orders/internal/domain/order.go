// Package domain holds the rules of an order: what may be placed, how its total
// is computed, and how its state changes. It knows no database, no broker and
// no HTTP.
package domain

import (
	"fmt"
	"time"
)

// State is where an order stands.
type State string

// The states of an order. Cancelled is final.
const (
	Placed    State = "placed"
	Confirmed State = "confirmed"
	Cancelled State = "cancelled"
)

// Canceller is who cancelled an order.
type Canceller string

// The cancellers.
const (
	ByCustomer Canceller = "customer"
	ByPayment  Canceller = "payment"
)

// Customer is who ordered and where to reach them.
type Customer struct {
	ID       string
	Email    string
	Phone    string // E.164; empty when not given
	Language string // BCP 47
}

// Line is one article of an order.
type Line struct {
	SKU       string
	Quantity  int64
	UnitPrice Money
}

// Order is one customer's order. Times are UTC with microsecond precision; the
// zero time means "not yet".
type Order struct {
	ID           string
	State        State
	Customer     Customer
	Lines        []Line
	Total        Money
	PaymentID    string // set once a capture is known
	RefundID     string // set once a refund is known
	CancelledBy  Canceller
	CancelReason string // the customer's own words, or payments' code; may be empty
	PlacedAt     time.Time
	ConfirmedAt  time.Time
	CancelledAt  time.Time
	RefundedAt   time.Time
	UpdatedAt    time.Time
	// Version grows with each change; the store refuses to overwrite a version
	// that it did not hand out.
	Version int64
}

// AsPlaced returns the order as it was when it was placed, whatever happened to
// it since.
func (o Order) AsPlaced() Order {
	return Order{
		ID: o.ID, State: Placed, Customer: o.Customer, Lines: o.Lines, Total: o.Total,
		PlacedAt: o.PlacedAt, UpdatedAt: o.PlacedAt, Version: 1,
	}
}

// Confirm notes that payment paymentID captured amount. It returns whether the
// order changed.
//
// A placed order becomes confirmed. A cancelled order stays cancelled and only
// keeps the payment's id: the capture crossed the cancellation, and payments
// refunds it because it hears of the cancellation too. The same capture twice
// changes nothing. A second payment, or an amount that is not the total, is a
// *TransitionError.
func (o *Order) Confirm(paymentID string, amount Money, at time.Time) (bool, error) {
	if paymentID == "" {
		return false, o.refuse("confirm", "the payment has no id")
	}
	if o.PaymentID != "" && o.PaymentID != paymentID {
		return false, o.refuse("confirm", "payment "+o.PaymentID+" was captured already, "+paymentID+" would be a second one")
	}
	if amount != o.Total {
		return false, o.refuse("confirm", "captured "+amount.String()+" but the total is "+o.Total.String())
	}
	if o.PaymentID == paymentID {
		return false, nil
	}
	if o.State == Placed {
		o.State = Confirmed
		o.ConfirmedAt = at
	}
	o.PaymentID = paymentID
	o.touch(at)
	return true, nil
}

// Cancel cancels the order for its customer, before or after confirmation. It
// returns whether the order changed: a cancelled order stays as it was first
// cancelled, reason included.
func (o *Order) Cancel(reason string, at time.Time) (bool, error) {
	if o.State == Cancelled {
		return false, nil
	}
	o.cancel(ByCustomer, reason, at)
	return true, nil
}

// FailPayment cancels the order because its payment failed. It returns whether
// the order changed: a cancelled order stays as it was. A failure of an order
// whose payment was captured is a *TransitionError.
func (o *Order) FailPayment(reason string, at time.Time) (bool, error) {
	switch o.State {
	case Cancelled:
		return false, nil
	case Confirmed:
		return false, o.refuse("cancel", "payment "+o.PaymentID+" was captured, yet a payment is reported as failed")
	}
	o.cancel(ByPayment, reason, at)
	return true, nil
}

// Refund notes that the payment of an order was given back: of a cancelled one,
// or of a confirmed one by hand, which stays confirmed. It returns whether the
// order changed: the same refund twice changes nothing. A refund of a placed
// order is an ErrCaptureUnknown: money was taken and given back, and the order
// has not heard of the first yet. A refund of another payment, of more than the
// total, or a second one, is a *TransitionError.
func (o *Order) Refund(paymentID, refundID string, amount Money, at time.Time) (bool, error) {
	switch {
	case refundID == "":
		return false, o.refuse("refund", "the refund has no id")
	case o.PaymentID != "" && o.PaymentID != paymentID:
		return false, o.refuse("refund", "payment "+paymentID+" is not its payment "+o.PaymentID)
	case o.RefundID != "" && o.RefundID != refundID:
		return false, o.refuse("refund", "refund "+o.RefundID+" was made already, "+refundID+" would be a second one")
	case amount.Currency != o.Total.Currency || amount.Amount > o.Total.Amount || amount.Amount <= 0:
		return false, o.refuse("refund", "refunded "+amount.String()+" but the total is "+o.Total.String())
	case o.RefundID == refundID:
		return false, nil
	case o.State == Placed:
		return false, fmt.Errorf("order %s is refunded by payment %s: %w", o.ID, paymentID, ErrCaptureUnknown)
	}
	o.PaymentID = paymentID
	o.RefundID = refundID
	o.RefundedAt = at
	o.touch(at)
	return true, nil
}

func (o *Order) cancel(by Canceller, reason string, at time.Time) {
	o.State = Cancelled
	o.CancelledBy = by
	o.CancelReason = reason
	o.CancelledAt = at
	o.touch(at)
}

func (o *Order) touch(at time.Time) {
	o.UpdatedAt = at
	o.Version++
}

func (o *Order) refuse(action, because string) error {
	return &TransitionError{OrderID: o.ID, State: o.State, Action: action, Because: because}
}
