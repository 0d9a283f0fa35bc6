// Package payments holds the events that the payments service owns. The ordering
// key of each is the order's id.
package payments

import (
	"errors"
	"fmt"

	"github.com/headrace-go/headrace/pkg/events"
)

// The events of a payment.
var (
	// Captured: the money for an order has been taken.
	Captured = events.Define[CapturedData]("payment.captured", "1.0")
	// Failed: the money could not be taken, and will not be tried again.
	Failed = events.Define[FailedData]("payment.failed", "1.0")
	// Refunded: captured money has been given back.
	Refunded = events.Define[RefundedData]("payment.refunded", "1.0")
)

// Descriptors returns all event types of this package.
func Descriptors() []events.Descriptor {
	return []events.Descriptor{Captured.Descriptor(), Failed.Descriptor(), Refunded.Descriptor()}
}

// CapturedData is the data of payment.captured.
type CapturedData struct {
	OrderID   string       `json:"order_id"`
	PaymentID string       `json:"payment_id"`
	Amount    events.Money `json:"amount"`
	// Reference is the gateway's own id of the charge.
	Reference string `json:"reference"`
}

// Validate reports each required field that is missing or can't be right.
func (d CapturedData) Validate() error {
	return errors.Join(events.Require("order_id", d.OrderID), events.Require("payment_id", d.PaymentID), taken(d.Amount))
}

// FailedData is the data of payment.failed.
type FailedData struct {
	OrderID   string       `json:"order_id"`
	PaymentID string       `json:"payment_id"`
	Amount    events.Money `json:"amount"`
	// Reason is a short code, such as "declined".
	Reason string `json:"reason"`
}

// Validate reports each required field that is missing or can't be right.
func (d FailedData) Validate() error {
	return errors.Join(events.Require("order_id", d.OrderID), events.Require("payment_id", d.PaymentID),
		taken(d.Amount), events.Require("reason", d.Reason))
}

// RefundedData is the data of payment.refunded.
type RefundedData struct {
	OrderID   string       `json:"order_id"`
	PaymentID string       `json:"payment_id"`
	RefundID  string       `json:"refund_id"`
	Amount    events.Money `json:"amount"`
	// Reference is the gateway's own id of the refund.
	Reference string `json:"reference"`
}

// Validate reports each required field that is missing or can't be right.
func (d RefundedData) Validate() error {
	return errors.Join(events.Require("order_id", d.OrderID), events.Require("payment_id", d.PaymentID),
		events.Require("refund_id", d.RefundID), taken(d.Amount))
}

func taken(m events.Money) error {
	if err := m.Validate(); err != nil {
		return fmt.Errorf("amount: %w", err)
	}
	if m.Amount < 0 {
		return errors.New("amount is negative")
	}
	return nil
}
