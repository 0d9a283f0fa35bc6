package app

import (
	"context"

	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

// Limits of a page.
const (
	DefaultPageSize = 20
	MaxPageSize     = 100
)

// ReadOrders reads orders.
type ReadOrders struct {
	// Orders is required.
	Orders Orders
}

// Page is one page of orders.
type Page struct {
	Orders []domain.Order
	// Next is where the next page begins; nil on the last page.
	Next *Position
}

// Get returns the order. An unknown id is ErrNotFound.
func (r ReadOrders) Get(ctx context.Context, id string) (domain.Order, error) {
	return r.Orders.Get(ctx, id)
}

// List returns one page of the orders that match, newest first. A limit that is
// not set is DefaultPageSize; it is cut to MaxPageSize.
func (r ReadOrders) List(ctx context.Context, q Query) (Page, error) {
	if q.Limit <= 0 {
		q.Limit = DefaultPageSize
	}
	limit := min(q.Limit, MaxPageSize)
	q.Limit = limit + 1 // one more tells whether another page follows
	found, err := r.Orders.List(ctx, q)
	if err != nil {
		return Page{}, err
	}
	if len(found) <= limit {
		return Page{Orders: found}, nil
	}
	last := found[limit-1]
	return Page{Orders: found[:limit], Next: &Position{PlacedAt: last.PlacedAt, ID: last.ID}}, nil
}
