// Package domain holds the rules of a payment: one per order, charged at most
// once, given back when its order is cancelled. It knows no database, no broker
// and no gateway.
package domain

import (
	"fmt"
	"time"
)

// State is where a payment stands.
//
//	            ┌─ Pending ──────► Captured ──► Refunding ──► Refunded
//	(new) ──────┤     │  └──(order cancelled)────▲
//	            │     ▼
//	            └─ Blocked ──────► Failed
type State string

// The states of a payment. Failed and Refunded are final.
const (
	// Pending: a charge may have been sent to the gateway; its outcome is not
	// known yet.
	Pending State = "pending"
	// Blocked: the order was cancelled before any charge was begun, and none may
	// begin.
	Blocked State = "blocked"
	// Captured: the gateway has taken the money.
	Captured State = "captured"
	// Failed: no money was taken and none will be.
	Failed State = "failed"
	// Refunding: the money was taken and is owed back.
	Refunding State = "refunding"
	// Refunded: the money was given back.
	Refunded State = "refunded"
)

// Valid tells whether s is one of the states.
func (s State) Valid() bool {
	switch s {
	case Pending, Blocked, Captured, Failed, Refunding, Refunded:
		return true
	}
	return false
}

// Reasons of a payment that failed without the gateway's saying so.
const (
	// ReasonOrderCancelled: the order was cancelled before the money was taken.
	ReasonOrderCancelled = "order_cancelled"
	// ReasonOrderExpired: the order was placed too long ago to be charged now.
	ReasonOrderExpired = "order_expired"
)

// MaxOrderIDLength is the longest order id in bytes. The id goes into the
// gateway's idempotency key, which providers limit.
const MaxOrderIDLength = 128

// Payment is the payment of one order. Times are UTC with microsecond
// precision; the zero time means "not yet".
type Payment struct {
	ID      string
	OrderID string
	State   State
	Amount  Money
	// Reference is the gateway's name for the charge; set once captured.
	Reference string
	// FailureReason is set once failed: the gateway's reason for declining,
	// ReasonOrderCancelled, ReasonOrderExpired.
	FailureReason string
	// RefundID and RefundReference are set once refunded: our name for the
	// refund and the gateway's.
	RefundID        string
	RefundReference string

	CreatedAt        time.Time
	OrderCancelledAt time.Time
	CapturedAt       time.Time
	FailedAt         time.Time
	RefundedAt       time.Time
	UpdatedAt        time.Time
	// Version grows with each change; the store refuses to overwrite a version
	// that it did not hand out.
	Version int64
}

// New returns the pending payment of an order that is about to be charged. It
// fails with ErrInvalidPayment where the order's id or the amount can't be.
func New(id, orderID string, amount Money, at time.Time) (Payment, error) {
	if err := CheckOrderID(orderID); err != nil {
		return Payment{}, err
	}
	if !amount.Chargeable() {
		return Payment{}, fmt.Errorf("%w: amount %s of order %s: must be above 0 with a three-letter currency", ErrInvalidPayment, amount, orderID)
	}
	return Payment{ID: id, OrderID: orderID, State: Pending, Amount: amount, CreatedAt: at, UpdatedAt: at, Version: 1}, nil
}

// NewCancelled returns the blocked payment of an order whose cancellation is
// known before any charge: a later charge is refused. An amount that can't be
// charged counts as not known.
func NewCancelled(id, orderID string, amount Money, at time.Time) (Payment, error) {
	if err := CheckOrderID(orderID); err != nil {
		return Payment{}, err
	}
	if !amount.Chargeable() {
		amount = Money{}
	}
	return Payment{
		ID: id, OrderID: orderID, State: Blocked, Amount: amount,
		CreatedAt: at, OrderCancelledAt: at, UpdatedAt: at, Version: 1,
	}, nil
}

// CheckOrderID refuses, with ErrInvalidPayment, an id that can't be part of an
// idempotency key: empty, too long, or with anything but visible ASCII.
func CheckOrderID(orderID string) error {
	if orderID == "" || len(orderID) > MaxOrderIDLength {
		return fmt.Errorf("%w: order id has %d bytes: 1 to %d are allowed", ErrInvalidPayment, len(orderID), MaxOrderIDLength)
	}
	for i := range len(orderID) {
		if orderID[i] <= ' ' || orderID[i] > '~' {
			return fmt.Errorf("%w: order id %q: only visible ASCII is allowed", ErrInvalidPayment, orderID)
		}
	}
	return nil
}

// ChargeKey is the idempotency key under which the order is charged. It depends
// on the order alone, so that no number of events, retries or restarts makes a
// second charge.
func (p Payment) ChargeKey() string { return "charge:" + p.OrderID }

// RefundKey is the idempotency key under which the charge is given back.
func (p Payment) RefundKey() string { return "refund:" + p.OrderID }

// OrderCancelled tells whether the order's cancellation is known.
func (p Payment) OrderCancelled() bool { return !p.OrderCancelledAt.IsZero() }

// Settled tells whether nothing is left to do with the gateway unless someone
// asks for a refund.
func (p Payment) Settled() bool {
	return p.State == Captured || p.State == Failed || p.State == Refunded
}

// Agree checks that a charge of amount is the one that this payment is for: an
// order is placed once, so a second placing with another amount is a
// *TransitionError. A blocked payment whose amount was not known takes it over;
// Agree returns whether that changed the payment.
func (p *Payment) Agree(amount Money, at time.Time) (bool, error) {
	if p.Amount == amount {
		return false, nil
	}
	if p.State == Blocked && !p.Amount.Chargeable() {
		p.Amount = amount
		p.touch(at)
		return true, nil
	}
	return false, p.refuse("charge", "it is over "+p.Amount.String()+", not "+amount.String())
}

// CancelOrder notes that the order was cancelled, and returns whether the
// payment changed. What was captured is owed back; what is pending must be
// voided at the gateway or, where that comes too late, given back.
func (p *Payment) CancelOrder(at time.Time) bool {
	if p.OrderCancelled() {
		return false
	}
	p.OrderCancelledAt = at
	if p.State == Captured {
		p.State = Refunding
	}
	p.touch(at)
	return true
}

// Capture notes that the gateway took the money under reference. It returns
// whether the payment changed: the same capture twice changes nothing. When the
// order was cancelled meanwhile the money is owed back at once. A second
// reference, or a capture of a payment that failed, is a *TransitionError: it
// means money that the books don't know.
func (p *Payment) Capture(reference string, at time.Time) (bool, error) {
	switch p.State {
	case Pending:
		if reference == "" {
			return false, p.refuse("capture", "the gateway gave no reference")
		}
		p.State, p.Reference, p.CapturedAt = Captured, reference, at
		if p.OrderCancelled() {
			p.State = Refunding
		}
		p.touch(at)
		return true, nil
	case Captured, Refunding, Refunded:
		if p.Reference != reference {
			return false, p.refuse("capture", "it was captured as "+p.Reference+", "+reference+" would be a second charge")
		}
		return false, nil
	default:
		return false, p.refuse("capture", "the gateway reports a charge "+reference+" that must not exist")
	}
}

// Fail notes that no money was taken. It returns whether the payment changed: a
// failed payment keeps its first reason. A failure of a captured payment is a
// *TransitionError.
func (p *Payment) Fail(reason string, at time.Time) (bool, error) {
	switch p.State {
	case Pending, Blocked:
		p.State, p.FailureReason, p.FailedAt = Failed, reason, at
		p.touch(at)
		return true, nil
	case Failed:
		return false, nil
	default:
		return false, p.refuse("fail", "it was captured as "+p.Reference)
	}
}

// RequestRefund notes that the money is to be given back, and returns whether
// the payment changed: a refund that is under way or done is not asked for
// twice. Without a capture there is nothing to give back: *TransitionError.
func (p *Payment) RequestRefund(at time.Time) (bool, error) {
	switch p.State {
	case Captured:
		p.State = Refunding
		p.touch(at)
		return true, nil
	case Refunding, Refunded:
		return false, nil
	default:
		return false, p.refuse("refund", "no money was captured")
	}
}

// Refund notes that the gateway gave the money back. It returns whether the
// payment changed: the same refund twice changes nothing. A refund that is not
// owed is a *TransitionError.
func (p *Payment) Refund(refundID, reference string, at time.Time) (bool, error) {
	switch p.State {
	case Refunding:
		p.State, p.RefundID, p.RefundReference, p.RefundedAt = Refunded, refundID, reference, at
		p.touch(at)
		return true, nil
	case Refunded:
		if p.RefundReference != reference {
			return false, p.refuse("refund", "it was refunded as "+p.RefundReference+", "+reference+" would be a second refund")
		}
		return false, nil
	default:
		return false, p.refuse("refund", "no refund is owed")
	}
}

func (p *Payment) touch(at time.Time) {
	p.UpdatedAt = at
	p.Version++
}

func (p *Payment) refuse(action, because string) error {
	return &TransitionError{PaymentID: p.ID, State: p.State, Action: action, Because: because}
}
