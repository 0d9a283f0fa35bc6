package app

import (
	"context"
	"database/sql"

	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

// RememberContact keeps how the customer of each order is reached, for the
// events that do not say it.
type RememberContact struct {
	Contacts Contacts
}

// Handle consumes order.placed.
func (r RememberContact) Handle(ctx context.Context, tx *sql.Tx, e events.Event[orders.PlacedData]) error {
	c := contactOf(e.Data.OrderID, e.Data.Customer)
	c.Language, c.KnownAt = domain.NormalizeLanguage(c.Language), e.Timestamp
	return r.Contacts.SaveContact(ctx, tx, *c)
}
