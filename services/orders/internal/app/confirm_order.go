package app

import (
	"context"
	"database/sql"

	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/payments"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

// ConfirmOrder confirms an order once its payment is captured.
type ConfirmOrder struct {
	// Orders is required.
	Orders Orders
	Clock  Clock
}

// Handle consumes payment.captured and emits order.confirmed. A capture that
// crossed the cancellation leaves the order cancelled and only notes the
// payment: payments refunds it, since it hears of the cancellation too.
func (c ConfirmOrder) Handle(ctx context.Context, tx *sql.Tx, e events.Event[payments.CapturedData]) error {
	_, err := change(ctx, tx, c.Orders, e.Data.OrderID, func(o *domain.Order) (bool, error) {
		return o.Confirm(e.Data.PaymentID, fromMoney(e.Data.Amount), c.Clock.now())
	})
	return consumed(err)
}
