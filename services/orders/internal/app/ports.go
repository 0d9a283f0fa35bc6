// Package app holds the use cases of the orders service and the interfaces that
// they need. A change of an order and the events that tell of it are one
// transaction.
package app

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

// ErrNotFound says that no order has the id.
var ErrNotFound = errors.New("order not found")

// ErrKeyReused says that an idempotency key came with another request before.
var ErrKeyReused = errors.New("idempotency key was used for another request")

// Transactor runs fn in a transaction and replays it when the database asks for
// that; fn must have no effect outside its transaction. Its context is the one
// to emit events with.
type Transactor interface {
	Tx(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error
}

// Orders stores orders.
type Orders interface {
	// Insert stores a new order.
	Insert(ctx context.Context, tx *sql.Tx, o domain.Order) error
	// Lock returns the order and keeps every other writer of it waiting until
	// the transaction ends. An unknown id is ErrNotFound.
	Lock(ctx context.Context, tx *sql.Tx, id string) (domain.Order, error)
	// Save stores the changed order. It fails when the order was changed since
	// it was read.
	Save(ctx context.Context, tx *sql.Tx, o domain.Order) error
	// Get returns the order. An unknown id is ErrNotFound.
	Get(ctx context.Context, id string) (domain.Order, error)
	// List returns the orders that match, newest first.
	List(ctx context.Context, q Query) ([]domain.Order, error)
}

// Query selects orders. The zero value of a filter selects all.
type Query struct {
	CustomerID string
	State      domain.State
	// After is the position of the last order of the page before.
	After Position
	// Limit is the most orders returned; at least 1.
	Limit int
}

// Position is where an order stands in the list. The zero Position is the start.
type Position struct {
	PlacedAt time.Time
	ID       string
}

// Keys remembers idempotency keys.
type Keys interface {
	// Claim ties the key to the order unless the key is tied already and has not
	// expired at now. It waits for another transaction that is claiming the same
	// key. It returns what the key is tied to, and whether this call tied it.
	Claim(ctx context.Context, tx *sql.Tx, k Key, now time.Time) (Key, bool, error)
	// DeleteExpired removes at most limit keys that expired at or before now and
	// returns how many it removed.
	DeleteExpired(ctx context.Context, now time.Time, limit int) (int, error)
}

// Key ties an idempotency key to a request and to the order that it placed.
type Key struct {
	Value       string
	Fingerprint string
	OrderID     string
	CreatedAt   time.Time
	ExpiresAt   time.Time
}

// Clock tells the time. Nil means time.Now.
type Clock func() time.Time

// now returns the time as the store keeps it: UTC, in microseconds.
func (c Clock) now() time.Time {
	if c == nil {
		c = time.Now
	}
	return c().UTC().Truncate(time.Microsecond)
}
