package app

import (
	"context"
	"errors"

	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// ReadPayments reads payments.
type ReadPayments struct {
	// Payments is required.
	Payments Payments
}

// Get returns the payment. An unknown id is ErrNotFound.
func (r ReadPayments) Get(ctx context.Context, id string) (domain.Payment, error) {
	return r.Payments.Get(ctx, id)
}

// ListByOrder returns the payments of the order: none or one.
func (r ReadPayments) ListByOrder(ctx context.Context, orderID string) ([]domain.Payment, error) {
	p, err := r.Payments.GetByOrder(ctx, orderID)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []domain.Payment{p}, nil
}
