package app

import (
	"context"
	"database/sql"
	"errors"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// RefundRequestedData is the payload of RefundRequested.
type RefundRequestedData struct {
	PaymentID string       `json:"payment_id"`
	OrderID   string       `json:"order_id"`
	Amount    events.Money `json:"amount"`
}

// Validate refuses a payload that names no payment or no order.
func (d RefundRequestedData) Validate() error {
	if d.PaymentID == "" || d.OrderID == "" {
		return errors.New("payment_id and order_id are required")
	}
	return d.Amount.Validate()
}

// RefundRequested tells that someone asked for a refund by hand. Payments tells
// it to itself, so that the HTTP request is answered before the gateway is
// called.
var RefundRequested = events.Define[RefundRequestedData]("payment.refund_requested", "1.0")

// RequestRefund accepts the wish to give a captured payment back.
type RequestRefund struct {
	// Tx and Payments are required.
	Tx       Transactor
	Payments Payments
	Clock    Clock
}

// Request marks the payment as owed back and emits RefundRequested, in one
// commit. A payment that is refunded already is returned as it is. One whose
// refund is under way is asked for once more, which gives nothing back twice
// and starts a refund again that was given up on. It fails with ErrNotFound, and
// with domain.ErrInvalidTransition where no money was captured.
func (r RequestRefund) Request(ctx context.Context, paymentID string) (domain.Payment, error) {
	var p domain.Payment
	err := r.Tx.Tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var err error
		if p, err = r.Payments.Lock(ctx, tx, paymentID); err != nil {
			return err
		}
		changed, err := p.RequestRefund(r.Clock.now())
		if err != nil {
			return err
		}
		if changed {
			if err := r.Payments.Save(ctx, tx, p); err != nil {
				return err
			}
		}
		if p.State != domain.Refunding {
			return nil
		}
		return framework.Emit(ctx, tx, RefundRequested.New(p.OrderID, RefundRequestedData{
			PaymentID: p.ID, OrderID: p.OrderID, Amount: eventMoney(p.Amount),
		}))
	})
	return p, err
}

// RefundPayment gives back what RequestRefund accepted. It is the handler of
// RefundRequested.
type RefundPayment struct {
	// Gateway and Payments are required.
	Gateway  Gateway
	Payments Payments
	Clock    Clock
}

// Prepare has nothing to write, since the intent was committed with the event.
// It ends here when the refund has been made meanwhile.
func (r RefundPayment) Prepare(ctx context.Context, tx *sql.Tx, e events.Event[RefundRequestedData]) error {
	p, err := r.Payments.LockByOrder(ctx, tx, e.Data.OrderID)
	if errors.Is(err, ErrNotFound) {
		return framework.Permanent(err)
	}
	if err != nil {
		return err
	}
	if p.Settled() {
		return framework.ErrDone
	}
	return nil
}

// Call refunds what is still owed.
func (r RefundPayment) Call(ctx context.Context, e events.Event[RefundRequestedData]) (Outcome, error) {
	p, err := r.Payments.GetByOrder(ctx, e.Data.OrderID)
	if err != nil {
		return Outcome{}, err
	}
	return settle(ctx, r.Gateway, p)
}

// Commit writes the refund and emits payment.refunded.
func (r RefundPayment) Commit(ctx context.Context, tx *sql.Tx, e events.Event[RefundRequestedData], out Outcome) error {
	return record(ctx, tx, r.Payments, r.Clock, e.Data.OrderID, out)
}
