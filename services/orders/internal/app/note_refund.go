package app

import (
	"context"
	"database/sql"

	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/payments"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

// NoteRefund notes on a cancelled order that its payment was given back.
type NoteRefund struct {
	// Orders is required.
	Orders Orders
	Clock  Clock
}

// Handle consumes payment.refunded. It emits nothing.
func (n NoteRefund) Handle(ctx context.Context, tx *sql.Tx, e events.Event[payments.RefundedData]) error {
	_, err := change(ctx, tx, n.Orders, e.Data.OrderID, func(o *domain.Order) (bool, error) {
		return o.Refund(e.Data.PaymentID, e.Data.RefundID, fromMoney(e.Data.Amount), n.Clock.now())
	})
	return consumed(err)
}
