package inbound

import (
	"time"

	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

type moneyBody struct {
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

type paymentBody struct {
	ID      string    `json:"id"`
	OrderID string    `json:"order_id"`
	State   string    `json:"state"`
	Amount  moneyBody `json:"amount"`
	// Reference and RefundReference are the gateway's names.
	Reference        string     `json:"reference,omitempty"`
	FailureReason    string     `json:"failure_reason,omitempty"`
	RefundID         string     `json:"refund_id,omitempty"`
	RefundReference  string     `json:"refund_reference,omitempty"`
	CreatedAt        time.Time  `json:"created_at"`
	OrderCancelledAt *time.Time `json:"order_cancelled_at,omitempty"`
	CapturedAt       *time.Time `json:"captured_at,omitempty"`
	FailedAt         *time.Time `json:"failed_at,omitempty"`
	RefundedAt       *time.Time `json:"refunded_at,omitempty"`
	UpdatedAt        time.Time  `json:"updated_at"`
}

type pageBody struct {
	Payments []paymentBody `json:"payments"`
}

func paymentView(p domain.Payment) paymentBody {
	return paymentBody{
		ID: p.ID, OrderID: p.OrderID, State: string(p.State), Amount: moneyBody(p.Amount), Reference: p.Reference,
		FailureReason: p.FailureReason, RefundID: p.RefundID, RefundReference: p.RefundReference,
		CreatedAt: p.CreatedAt, OrderCancelledAt: optional(p.OrderCancelledAt), CapturedAt: optional(p.CapturedAt),
		FailedAt: optional(p.FailedAt), RefundedAt: optional(p.RefundedAt), UpdatedAt: p.UpdatedAt,
	}
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
