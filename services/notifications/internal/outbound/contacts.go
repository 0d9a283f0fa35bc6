package outbound

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

// SaveContact implements app.Contacts.
func (s *Store) SaveContact(ctx context.Context, tx *sql.Tx, c domain.Contact) error {
	_, err := tx.ExecContext(ctx, s.q(`
		INSERT INTO notification_contacts (order_id, email, phone, language, known_at)
		VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (order_id) DO UPDATE
		SET email = excluded.email, phone = excluded.phone, language = excluded.language, known_at = excluded.known_at
		WHERE notification_contacts.known_at <= excluded.known_at`),
		c.OrderID, c.Email, c.Phone, c.Language, micros(c.KnownAt))
	if err != nil {
		return fmt.Errorf("write the contact of order %q: %w", c.OrderID, err)
	}
	return nil
}

// Contact implements app.Contacts.
func (s *Store) Contact(ctx context.Context, tx *sql.Tx, orderID string) (domain.Contact, error) {
	c := domain.Contact{OrderID: orderID}
	var knownAt int64
	err := tx.QueryRowContext(ctx, s.q(`
		SELECT email, phone, language, known_at FROM notification_contacts WHERE order_id = $1`), orderID).
		Scan(&c.Email, &c.Phone, &c.Language, &knownAt)
	if err != nil {
		return domain.Contact{}, found("contact of order", orderID, err)
	}
	c.KnownAt = fromMicros(knownAt)
	return c, nil
}
