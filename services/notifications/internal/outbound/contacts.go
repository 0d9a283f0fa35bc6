package outbound

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

// SaveContact implements app.Contacts.
func (s *Store) SaveContact(ctx context.Context, tx *sql.Tx, c domain.Contact) error {
	newer := ` ON CONFLICT (order_id) DO UPDATE
		SET email = excluded.email, phone = excluded.phone, language = excluded.language, known_at = excluded.known_at
		WHERE notification_contacts.known_at <= excluded.known_at`
	if s.dialect == sqltx.MySQL {
		// It assigns from left to right and later ones see it: known_at is last.
		newer = ` ON DUPLICATE KEY UPDATE email = IF(known_at <= VALUES(known_at), VALUES(email), email),
			phone = IF(known_at <= VALUES(known_at), VALUES(phone), phone),
			language = IF(known_at <= VALUES(known_at), VALUES(language), language),
			known_at = GREATEST(known_at, VALUES(known_at))`
	}
	_, err := tx.ExecContext(ctx, s.q(`
		INSERT INTO notification_contacts (order_id, email, phone, language, known_at)
		VALUES ($1, $2, $3, $4, $5)`+newer),
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
