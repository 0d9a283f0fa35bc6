package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

// change reads the order with its row locked, applies fn, and, when fn changed
// it, saves it and emits the event of its new state.
func change(ctx context.Context, tx *sql.Tx, store Orders, id string, fn func(*domain.Order) (bool, error)) (domain.Order, error) {
	o, err := store.Lock(ctx, tx, id)
	if err != nil {
		return domain.Order{}, fmt.Errorf("order %s: %w", id, err)
	}
	before := o
	changed, err := fn(&o)
	if err != nil || !changed {
		return o, err
	}
	if err := store.Save(ctx, tx, o); err != nil {
		return domain.Order{}, err
	}
	if o.State == before.State {
		return o, nil
	}
	if o.State == domain.Confirmed {
		return o, framework.Emit(ctx, tx, confirmedEvent(o))
	}
	return o, framework.Emit(ctx, tx, cancelledEvent(o, before.State))
}

// consumed sorts the error of an event's handler: what the rules refuse, and an
// order that does not exist, no retry can mend.
func consumed(err error) error {
	if errors.Is(err, domain.ErrInvalidTransition) || errors.Is(err, ErrNotFound) {
		return framework.Permanent(err)
	}
	return err
}
