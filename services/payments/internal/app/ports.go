// Package app holds the use cases of payments and the interfaces that they
// need.
//
// # Never charged twice, never kept from a cancelled order
//
// An order has one payment row, and the gateway's idempotency keys depend on
// the order alone. order.placed and order.cancelled may arrive in either order,
// at the same moment, twice, and with a crash after any step:
//
//   - The cancellation comes first: it leaves a blocked payment, and the charge
//     finds that and never calls the gateway.
//   - The charge has committed: the cancellation finds it captured and refunds.
//   - The charge is under way, or its process died after the gateway was asked:
//     the payment is pending. The cancellation marks it and voids the key at the
//     gateway. The gateway decides what came first: either no charge can follow,
//     or it was captured and is refunded at once.
//
// Both handlers lock the payment's row where they decide, and both record what
// the gateway said in an order-independent way, so each fact is emitted once.
// Every order.placed that is not dead-lettered leads to exactly one of
// payment.captured and payment.failed; an order cancelled before its charge
// gives payment.failed with the reason "order_cancelled".
package app

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// Transactor runs fn in a transaction and replays it when the database asks for
// that; fn must have no effect outside its transaction. Its context is the one
// to emit events with.
type Transactor interface {
	Tx(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error
}

// Payments stores payments. A payment that Open or Lock returned is held against
// every other writer until the transaction ends, so what is decided on it holds
// when it is saved.
type Payments interface {
	// Open adds p unless its order has a payment already, and returns the
	// order's payment, locked, and whether it was added.
	Open(ctx context.Context, tx *sql.Tx, p domain.Payment) (payment domain.Payment, added bool, err error)
	// LockByOrder returns the order's payment, locked, or ErrNotFound.
	LockByOrder(ctx context.Context, tx *sql.Tx, orderID string) (domain.Payment, error)
	// Lock returns the payment, locked, or ErrNotFound.
	Lock(ctx context.Context, tx *sql.Tx, id string) (domain.Payment, error)
	// Save writes a payment that was changed once since it was read. It returns
	// ErrChanged when someone else has written it meanwhile.
	Save(ctx context.Context, tx *sql.Tx, p domain.Payment) error
	// Get reads the payment as it is now, or returns ErrNotFound.
	Get(ctx context.Context, id string) (domain.Payment, error)
	// GetByOrder reads the order's payment as it is now, or returns
	// ErrNotFound.
	GetByOrder(ctx context.Context, orderID string) (domain.Payment, error)
}

// Errors of Payments.
var (
	ErrNotFound = errors.New("payment not found")
	ErrChanged  = errors.New("payment was changed meanwhile")
)

// Clock tells the time. Nil means time.Now.
type Clock func() time.Time

// now returns the time as the store keeps it: UTC, in microseconds.
func (c Clock) now() time.Time {
	if c == nil {
		c = time.Now
	}
	return c().UTC().Truncate(time.Microsecond)
}
