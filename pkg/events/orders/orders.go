// Package orders holds the events that the orders service owns. The ordering key
// of each is the order's id.
package orders

import (
	"errors"
	"fmt"

	"github.com/headrace-go/headrace/pkg/events"
)

// The events of an order.
var (
	// Placed: a customer has placed an order; nothing is paid yet.
	Placed = events.Define[PlacedData]("order.placed", "1.0")
	// Confirmed: the order is paid for.
	Confirmed = events.Define[ConfirmedData]("order.confirmed", "1.0")
	// Cancelled: the order will not be fulfilled.
	Cancelled = events.Define[CancelledData]("order.cancelled", "1.0")
)

// Descriptors returns all event types of this package.
func Descriptors() []events.Descriptor {
	return []events.Descriptor{Placed.Descriptor(), Confirmed.Descriptor(), Cancelled.Descriptor()}
}

// Customer is who placed the order, as known at that time.
type Customer struct {
	ID    string `json:"id"`
	Email string `json:"email"`
	// Phone is in E.164 form ("+4915112345678"), empty when unknown.
	Phone string `json:"phone,omitempty"`
	// Language is a BCP 47 tag ("de"); empty leaves the choice to the reader.
	Language string `json:"language"`
}

// Validate wants an id and a way to reach the customer.
func (c Customer) Validate() error {
	if c.Email == "" && c.Phone == "" {
		return errors.Join(events.Require("customer.id", c.ID), errors.New("customer.email and customer.phone are both empty"))
	}
	return events.Require("customer.id", c.ID)
}

// Line is one article of an order.
type Line struct {
	SKU string `json:"sku"`
	// Quantity is 1 or more.
	Quantity  int          `json:"quantity"`
	UnitPrice events.Money `json:"unit_price"`
}

func (l Line) validate(n int, currency string) error {
	var errs []error
	errs = append(errs, events.Require(fmt.Sprintf("lines[%d].sku", n), l.SKU))
	if l.Quantity < 1 {
		errs = append(errs, fmt.Errorf("lines[%d].quantity is below 1", n))
	}
	switch {
	case l.UnitPrice.Validate() != nil:
		errs = append(errs, fmt.Errorf("lines[%d].unit_price: %w", n, l.UnitPrice.Validate()))
	case l.UnitPrice.Amount < 0:
		errs = append(errs, fmt.Errorf("lines[%d].unit_price is negative", n))
	case l.UnitPrice.Currency != currency:
		errs = append(errs, fmt.Errorf("lines[%d].unit_price is in another currency than total", n))
	}
	return errors.Join(errs...)
}

// PlacedData is the data of order.placed.
type PlacedData struct {
	OrderID  string   `json:"order_id"`
	Customer Customer `json:"customer"`
	// Lines has at least one entry.
	Lines []Line `json:"lines"`
	// Total is what the customer owes, never negative.
	Total events.Money `json:"total"`
	// PaymentToken refers to the payment method at the gateway. It is no card
	// data and worthless without the gateway's key.
	PaymentToken string `json:"payment_token"`
}

// Validate reports each required field that is missing or can't be right.
func (d PlacedData) Validate() error {
	errs := []error{
		events.Require("order_id", d.OrderID), d.Customer.Validate(),
		owed("total", d.Total), events.Require("payment_token", d.PaymentToken),
	}
	if len(d.Lines) == 0 {
		errs = append(errs, errors.New("lines is missing or empty"))
	}
	for n, l := range d.Lines {
		errs = append(errs, l.validate(n, d.Total.Currency))
	}
	return errors.Join(errs...)
}

// ConfirmedData is the data of order.confirmed.
type ConfirmedData struct {
	OrderID   string       `json:"order_id"`
	Customer  Customer     `json:"customer"`
	Total     events.Money `json:"total"`
	PaymentID string       `json:"payment_id"`
}

// Validate reports each required field that is missing or can't be right.
func (d ConfirmedData) Validate() error {
	return errors.Join(events.Require("order_id", d.OrderID), d.Customer.Validate(),
		owed("total", d.Total), events.Require("payment_id", d.PaymentID))
}

// CancelledData is the data of order.cancelled.
type CancelledData struct {
	OrderID  string       `json:"order_id"`
	Customer Customer     `json:"customer"`
	Total    events.Money `json:"total"`
	// Reason is a short code, such as "customer_request" or "payment_failed".
	Reason string `json:"reason"`
	// PaymentID is set when the order had been paid: that payment is to be given
	// back.
	PaymentID string `json:"payment_id,omitempty"`
	// PreviousState is the state that the order was in.
	PreviousState string `json:"previous_state"`
}

// Validate reports each required field that is missing or can't be right.
func (d CancelledData) Validate() error {
	return errors.Join(events.Require("order_id", d.OrderID), d.Customer.Validate(),
		owed("total", d.Total), events.Require("reason", d.Reason))
}

func owed(field string, m events.Money) error {
	if err := m.Validate(); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	if m.Amount < 0 {
		return fmt.Errorf("%s is negative", field)
	}
	return nil
}
