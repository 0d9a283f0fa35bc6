package inbound

import (
	"time"

	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

type orderBody struct {
	ID           string            `json:"id"`
	State        domain.State      `json:"state"`
	Customer     customerBody      `json:"customer"`
	Lines        []orderLineBody   `json:"lines"`
	Total        moneyBody         `json:"total"`
	PaymentID    string            `json:"payment_id,omitempty"`
	RefundID     string            `json:"refund_id,omitempty"`
	Cancellation *cancellationBody `json:"cancellation,omitempty"`
	PlacedAt     time.Time         `json:"placed_at"`
	ConfirmedAt  time.Time         `json:"confirmed_at,omitzero"`
	CancelledAt  time.Time         `json:"cancelled_at,omitzero"`
	RefundedAt   time.Time         `json:"refunded_at,omitzero"`
	UpdatedAt    time.Time         `json:"updated_at"`
}

type orderLineBody struct {
	SKU       string    `json:"sku"`
	Quantity  int64     `json:"quantity"`
	UnitPrice moneyBody `json:"unit_price"`
	Amount    moneyBody `json:"amount"`
}

type cancellationBody struct {
	By     domain.Canceller `json:"by"`
	Reason string           `json:"reason,omitempty"`
}

type pageBody struct {
	Orders     []orderBody `json:"orders"`
	NextCursor string      `json:"next_cursor,omitempty"`
}

func orderView(o domain.Order) orderBody {
	body := orderBody{
		ID: o.ID, State: o.State, Customer: customerBody(o.Customer), Lines: make([]orderLineBody, len(o.Lines)),
		Total: moneyBody(o.Total), PaymentID: o.PaymentID, RefundID: o.RefundID, PlacedAt: o.PlacedAt,
		ConfirmedAt: o.ConfirmedAt, CancelledAt: o.CancelledAt, RefundedAt: o.RefundedAt, UpdatedAt: o.UpdatedAt,
	}
	for i, l := range o.Lines {
		// Cannot overflow: the order's total is the sum of these.
		amount := moneyBody{Amount: l.UnitPrice.Amount * l.Quantity, Currency: l.UnitPrice.Currency}
		body.Lines[i] = orderLineBody{SKU: l.SKU, Quantity: l.Quantity, UnitPrice: moneyBody(l.UnitPrice), Amount: amount}
	}
	if o.State == domain.Cancelled {
		body.Cancellation = &cancellationBody{By: o.CancelledBy, Reason: o.CancelReason}
	}
	return body
}
