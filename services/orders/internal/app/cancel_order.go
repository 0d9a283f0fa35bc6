package app

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

// CancelOrder cancels orders for their customers.
type CancelOrder struct {
	// Tx and Orders are required.
	Tx     Transactor
	Orders Orders
	Clock  Clock
}

// Cancel cancels the order and emits order.cancelled; payments refunds what it
// captured when it hears of that. An order that is cancelled already is returned
// as it stands, without a second event. The reason is
// kept with the order and not published, since people write anything into it; it
// may be empty. An unknown id is ErrNotFound, a bad reason a
// *domain.ValidationError.
func (c CancelOrder) Cancel(ctx context.Context, id, reason string) (domain.Order, error) {
	reason, err := domain.CancelReason(reason)
	if err != nil {
		return domain.Order{}, err
	}
	var after domain.Order
	err = c.Tx.Tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var err error
		after, err = change(ctx, tx, c.Orders, id, func(o *domain.Order) (bool, error) {
			return o.Cancel(reason, c.Clock.now())
		})
		return err
	})
	if err != nil {
		return domain.Order{}, fmt.Errorf("cancel order: %w", err)
	}
	return after, nil
}
