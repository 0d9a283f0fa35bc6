package app

import (
	"context"
	"database/sql"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// RefundOrder makes sure that a cancelled order costs its customer nothing. It
// is the handler of order.cancelled.
type RefundOrder struct {
	// Gateway and Payments are required.
	Gateway  Gateway
	Payments Payments
	Clock    Clock
}

// Prepare notes the cancellation, also for an order that is not known yet: from
// its commit on, no new charge of the order begins. It ends here when there is
// nothing to give back.
func (r RefundOrder) Prepare(ctx context.Context, tx *sql.Tx, e events.Event[orders.CancelledData]) error {
	at := r.Clock.now()
	cancelled, err := domain.NewCancelled(events.NewID(), e.Data.OrderID, domainMoney(e.Data.Total), at)
	if err != nil {
		return ruleError(err)
	}
	p, added, err := r.Payments.Open(ctx, tx, cancelled)
	if err != nil {
		return err
	}
	if !added && p.CancelOrder(at) {
		if err := r.Payments.Save(ctx, tx, p); err != nil {
			return err
		}
	}
	if p.Settled() || p.State == domain.Blocked {
		return framework.ErrDone
	}
	return nil
}

// Call voids or refunds what the payment, as it is by now, needs.
func (r RefundOrder) Call(ctx context.Context, e events.Event[orders.CancelledData]) (Outcome, error) {
	p, err := r.Payments.GetByOrder(ctx, e.Data.OrderID)
	if err != nil {
		return Outcome{}, err
	}
	return settle(ctx, r.Gateway, p)
}

// Commit writes the outcome and emits payment.refunded where money was given
// back.
func (r RefundOrder) Commit(ctx context.Context, tx *sql.Tx, e events.Event[orders.CancelledData], out Outcome) error {
	return record(ctx, tx, r.Payments, r.Clock, e.Data.OrderID, out)
}
