package app

import (
	"context"
	"database/sql"

	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/payments"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

// CancelUnpaid cancels an order whose payment failed.
type CancelUnpaid struct {
	// Orders is required.
	Orders Orders
	Clock  Clock
}

// Handle consumes payment.failed and emits order.cancelled.
func (c CancelUnpaid) Handle(ctx context.Context, tx *sql.Tx, e events.Event[payments.FailedData]) error {
	_, err := change(ctx, tx, c.Orders, e.Data.OrderID, func(o *domain.Order) (bool, error) {
		return o.FailPayment(e.Data.Reason, c.Clock.now())
	})
	return consumed(err)
}
