package app

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/payments"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

// NoteRefund notes on an order that its payment was given back.
type NoteRefund struct {
	// Orders is required.
	Orders Orders
	Clock  Clock
}

// Handle consumes payment.refunded. It emits nothing. While the order does not know
// of the capture, which travels on another topic, the event is put off.
func (n NoteRefund) Handle(ctx context.Context, tx *sql.Tx, e events.Event[payments.RefundedData]) error {
	_, err := change(ctx, tx, n.Orders, e.Data.OrderID, func(o *domain.Order) (bool, error) {
		return o.Refund(e.Data.PaymentID, e.Data.RefundID, fromMoney(e.Data.Amount), n.Clock.now())
	})
	if errors.Is(err, domain.ErrCaptureUnknown) {
		return framework.Defer(err, putOff(n.Clock.now().Sub(e.Timestamp)))
	}
	return consumed(err)
}

// putOff is how long an event of an age waits for the one that it follows from:
// short while it is young, since the other is on its way, and ever longer after
// that.
func putOff(age time.Duration) time.Duration {
	return min(max(age/4, 200*time.Millisecond), time.Minute)
}
