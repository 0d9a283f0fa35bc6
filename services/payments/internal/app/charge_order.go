package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// ChargeOrder charges an order that was placed. It is the handler of
// order.placed.
type ChargeOrder struct {
	// Gateway and Payments are required.
	Gateway  Gateway
	Payments Payments
	Clock    Clock
	// MaxAge fails, with the reason "order_expired", an order that was placed
	// longer ago and never begun to be charged, so that a replay of old events
	// takes nobody's money. 0 means no limit.
	MaxAge time.Duration
}

// Prepare writes the intent: from its commit on, a charge may exist at the
// gateway. An order that is not to be charged any more ends here.
func (c ChargeOrder) Prepare(ctx context.Context, tx *sql.Tx, e events.Event[orders.PlacedData]) error {
	amount, at := domainMoney(e.Data.Total), c.Clock.now()
	intent, err := domain.New(events.NewID(), e.Data.OrderID, amount, at)
	if err != nil {
		return ruleError(err)
	}
	p, added, err := c.Payments.Open(ctx, tx, intent)
	if err != nil {
		return err
	}
	changed, err := p.Agree(amount, at)
	if err != nil {
		return ruleError(err)
	}
	if changed {
		if err := c.Payments.Save(ctx, tx, p); err != nil {
			return err
		}
	}
	var refused Outcome
	switch {
	case p.State == domain.Blocked:
		refused.Failure = domain.ReasonOrderCancelled
	case added && c.MaxAge > 0 && at.Sub(e.Timestamp) > c.MaxAge:
		refused.Failure = domain.ReasonOrderExpired
	case p.Settled():
	default:
		return nil
	}
	if err := record(ctx, tx, c.Payments, c.Clock, p.OrderID, refused); err != nil {
		return err
	}
	return framework.ErrDone
}

// Call charges unless the payment has gone another way since: a decline is an
// outcome like any other and no error.
func (c ChargeOrder) Call(ctx context.Context, e events.Event[orders.PlacedData]) (Outcome, error) {
	p, err := c.Payments.GetByOrder(ctx, e.Data.OrderID)
	if err != nil {
		return Outcome{}, err
	}
	if p.State != domain.Pending || p.OrderCancelled() {
		return settle(ctx, c.Gateway, p)
	}
	receipt, err := c.Gateway.Charge(ctx, ChargeRequest{
		Key: p.ChargeKey(), OrderID: p.OrderID, Amount: p.Amount, Token: e.Data.PaymentToken,
	})
	var declined *DeclinedError
	switch {
	case errors.As(err, &declined):
		return Outcome{Failure: declined.Reason}, nil
	case errors.Is(err, ErrVoided):
		return Outcome{Failure: domain.ReasonOrderCancelled}, nil
	case err != nil:
		return Outcome{}, fmt.Errorf("charge payment %s: %w", p.ID, err)
	}
	return Outcome{Captured: &receipt}, nil
}

// Commit writes the outcome and emits payment.captured or payment.failed, and
// payment.refunded where the order was cancelled meanwhile.
func (c ChargeOrder) Commit(ctx context.Context, tx *sql.Tx, e events.Event[orders.PlacedData], out Outcome) error {
	return record(ctx, tx, c.Payments, c.Clock, e.Data.OrderID, out)
}
