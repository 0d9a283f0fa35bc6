package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/payments"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// Outcome is what the gateway said about one payment, to be written down in one
// commit with the events that tell of it. The zero value means that there was
// nothing to ask.
type Outcome struct {
	// Captured is the receipt of the charge; nil when none was learned of.
	Captured *Receipt
	// Failure is why no money was or will be taken; empty when it was.
	Failure string
	// Refunded is the receipt of the refund; nil when none was made.
	Refunded *Receipt
}

// settle asks the gateway for whatever a cancelled order or a wanted refund
// still needs. It never charges: a pending charge of a cancelled order is
// voided, and refunded where the money was taken before the void.
func settle(ctx context.Context, gateway Gateway, p domain.Payment) (Outcome, error) {
	switch {
	case p.State == domain.Pending && p.OrderCancelled():
		receipt, captured, err := gateway.Void(ctx, p.ChargeKey())
		if err != nil {
			return Outcome{}, fmt.Errorf("void charge of payment %s: %w", p.ID, err)
		}
		if !captured {
			return Outcome{Failure: domain.ReasonOrderCancelled}, nil
		}
		out, err := refund(ctx, gateway, p, receipt.Reference)
		out.Captured = &receipt
		return out, err
	case p.State == domain.Refunding:
		return refund(ctx, gateway, p, p.Reference)
	default:
		return Outcome{}, nil
	}
}

func refund(ctx context.Context, gateway Gateway, p domain.Payment, charge string) (Outcome, error) {
	receipt, err := gateway.Refund(ctx, RefundRequest{Key: p.RefundKey(), Charge: charge, Amount: p.Amount})
	if err != nil {
		return Outcome{}, fmt.Errorf("refund payment %s: %w", p.ID, err)
	}
	return Outcome{Refunded: &receipt}, nil
}

// record applies what the gateway said to the order's payment as it is now,
// which may be further than it was when the gateway was asked: what another
// handler recorded already changes nothing and is not told twice.
func record(ctx context.Context, tx *sql.Tx, store Payments, clock Clock, orderID string, out Outcome) error {
	if out == (Outcome{}) {
		return nil
	}
	p, err := store.LockByOrder(ctx, tx, orderID)
	if err != nil {
		return err
	}
	var drafts []events.Draft
	save := func(changed bool, err error, draft func() events.Draft) error {
		if err != nil {
			return ruleError(err)
		}
		if !changed {
			return nil
		}
		if err := store.Save(ctx, tx, p); err != nil {
			return err
		}
		drafts = append(drafts, draft())
		return nil
	}
	at := clock.now()
	if out.Failure != "" {
		changed, err := p.Fail(out.Failure, at)
		if err := save(changed, err, func() events.Draft { return failed(p) }); err != nil {
			return err
		}
	}
	if out.Captured != nil {
		changed, err := p.Capture(out.Captured.Reference, at)
		if err := save(changed, err, func() events.Draft { return captured(p) }); err != nil {
			return err
		}
	}
	if out.Refunded != nil {
		changed, err := p.Refund(events.NewID(), out.Refunded.Reference, at)
		if err := save(changed, err, func() events.Draft { return refunded(p) }); err != nil {
			return err
		}
	}
	if len(drafts) == 0 {
		return nil
	}
	return framework.Emit(ctx, tx, drafts...)
}

func captured(p domain.Payment) events.Draft {
	return payments.Captured.New(p.OrderID, payments.CapturedData{
		OrderID: p.OrderID, PaymentID: p.ID, Amount: eventMoney(p.Amount), Reference: p.Reference,
	}, events.At(p.CapturedAt))
}

func failed(p domain.Payment) events.Draft {
	return payments.Failed.New(p.OrderID, payments.FailedData{
		OrderID: p.OrderID, PaymentID: p.ID, Amount: eventMoney(p.Amount), Reason: p.FailureReason,
	}, events.At(p.FailedAt))
}

func refunded(p domain.Payment) events.Draft {
	return payments.Refunded.New(p.OrderID, payments.RefundedData{
		OrderID: p.OrderID, PaymentID: p.ID, RefundID: p.RefundID, Amount: eventMoney(p.Amount), Reference: p.RefundReference,
	}, events.At(p.RefundedAt))
}

// ruleError marks what breaks a rule of the domain as permanent: the books and
// the world disagree, and no retry mends that.
func ruleError(err error) error {
	if errors.Is(err, domain.ErrInvalidTransition) || errors.Is(err, domain.ErrInvalidPayment) {
		return framework.Permanent(err)
	}
	return err
}

func eventMoney(m domain.Money) events.Money {
	return events.Money{Amount: m.Amount, Currency: m.Currency}
}

func domainMoney(m events.Money) domain.Money {
	return domain.Money{Amount: m.Amount, Currency: m.Currency}
}
