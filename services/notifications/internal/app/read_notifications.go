package app

import (
	"context"

	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

// Limits of a page.
const (
	DefaultPageSize = 20
	MaxPageSize     = 100
)

// ReadNotifications reads notifications.
type ReadNotifications struct {
	// Notifications is required.
	Notifications Notifications
}

// Page is one page of notifications.
type Page struct {
	Notifications []domain.Notification
	// Next is where the next page begins; nil on the last page.
	Next *Position
}

// Get returns the notification. An unknown id is ErrNotFound.
func (r ReadNotifications) Get(ctx context.Context, id string) (domain.Notification, error) {
	return r.Notifications.Get(ctx, id)
}

// List returns one page of the notifications that match, newest first. A limit
// that is not set is DefaultPageSize; it is cut to MaxPageSize.
func (r ReadNotifications) List(ctx context.Context, q Query) (Page, error) {
	if q.Limit <= 0 {
		q.Limit = DefaultPageSize
	}
	limit := min(q.Limit, MaxPageSize)
	q.Limit = limit + 1 // one more tells whether another page follows
	found, err := r.Notifications.List(ctx, q)
	if err != nil {
		return Page{}, err
	}
	if len(found) <= limit {
		return Page{Notifications: found}, nil
	}
	last := found[limit-1]
	return Page{Notifications: found[:limit], Next: &Position{CreatedAt: last.CreatedAt, ID: last.ID}}, nil
}
