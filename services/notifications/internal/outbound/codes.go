package outbound

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

const codeColumns = `id, channel, recipient, recipient_hash, language, purpose, salt, hash, sealed, attempts,
	created_at, expires_at, consumed_at`

// CountIssue implements app.Codes.
func (s *Store) CountIssue(ctx context.Context, tx *sql.Tx, recipientHash string, now, expired time.Time) (int, time.Time, error) {
	var (
		issued int
		since  int64
	)
	count := ` ON CONFLICT (recipient_hash) DO UPDATE SET
			issued = CASE WHEN notification_code_limits.window_start <= $3 THEN 1 ELSE notification_code_limits.issued + 1 END,
			window_start = CASE WHEN notification_code_limits.window_start <= $4 THEN excluded.window_start ELSE notification_code_limits.window_start END`
	if s.dialect == sqltx.MySQL {
		// It assigns from left to right and later ones see it: window_start is last.
		count = ` ON DUPLICATE KEY UPDATE issued = IF(window_start <= ?, 1, issued + 1),
			window_start = IF(window_start <= ?, VALUES(window_start), window_start)`
	}
	_, err := tx.ExecContext(ctx, s.q(`
		INSERT INTO notification_code_limits (recipient_hash, window_start, issued) VALUES ($1, $2, 1)`+count),
		recipientHash, micros(now), micros(expired), micros(expired))
	if err == nil { // the row is this transaction's now
		err = tx.QueryRowContext(ctx, s.q(`SELECT issued, window_start FROM notification_code_limits WHERE recipient_hash = $1`), recipientHash).
			Scan(&issued, &since)
	}
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("count a code for its recipient: %w", err)
	}
	return issued, fromMicros(since), nil
}

// AddCode implements app.Codes.
func (s *Store) AddCode(ctx context.Context, tx *sql.Tx, c domain.Code) error {
	_, err := tx.ExecContext(ctx, s.q(`
		INSERT INTO notification_codes (`+codeColumns+`)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`),
		c.ID, string(c.Channel), c.Recipient, c.RecipientHash, c.Language, c.Purpose, c.Salt, c.Hash, c.Sealed, c.Attempts,
		micros(c.CreatedAt), micros(c.ExpiresAt), nullMicros(c.ConsumedAt))
	if err != nil {
		return fmt.Errorf("add code %q: %w", c.ID, err)
	}
	return nil
}

// Code implements app.Codes.
func (s *Store) Code(ctx context.Context, tx *sql.Tx, id string) (domain.Code, error) {
	c, err := scanCode(tx.QueryRowContext(ctx, s.q(`SELECT `+codeColumns+` FROM notification_codes WHERE id = $1`), id))
	return c, found("code", id, err)
}

// CountAttempt implements app.Codes.
func (s *Store) CountAttempt(ctx context.Context, tx *sql.Tx, id string, now time.Time, limit int) (domain.Code, error) {
	// The UPDATE comes first: it locks the row, so that of two verifications at
	// the same time the second one sees what the first one did.
	res, err := tx.ExecContext(ctx, s.q(`
		UPDATE notification_codes SET attempts = attempts + 1
		WHERE id = $1 AND consumed_at IS NULL AND expires_at > $2 AND attempts < $3`), id, micros(now), limit)
	if err != nil {
		return domain.Code{}, fmt.Errorf("count an attempt at code %q: %w", id, err)
	}
	if err := changedOne("open code", id, res); err != nil {
		return domain.Code{}, err
	}
	return s.Code(ctx, tx, id)
}

// Consume implements app.Codes.
func (s *Store) Consume(ctx context.Context, tx *sql.Tx, id string, now time.Time) error {
	res, err := tx.ExecContext(ctx, s.q(`
		UPDATE notification_codes SET consumed_at = $1, sealed = $2 WHERE id = $3 AND consumed_at IS NULL`), micros(now), []byte{}, id)
	if err != nil {
		return fmt.Errorf("write code %q: %w", id, err)
	}
	return changedOne("open code", id, res)
}

// Wipe implements app.Codes.
func (s *Store) Wipe(ctx context.Context, tx *sql.Tx, id string) error {
	if _, err := tx.ExecContext(ctx, s.q(`UPDATE notification_codes SET sealed = $1 WHERE id = $2`), []byte{}, id); err != nil {
		return fmt.Errorf("write code %q: %w", id, err)
	}
	return nil
}

func scanCode(row interface{ Scan(...any) error }) (domain.Code, error) {
	var (
		c                    domain.Code
		channel              string
		createdAt, expiresAt int64
		consumedAt           sql.NullInt64
	)
	err := row.Scan(&c.ID, &channel, &c.Recipient, &c.RecipientHash, &c.Language, &c.Purpose, &c.Salt, &c.Hash, &c.Sealed,
		&c.Attempts, &createdAt, &expiresAt, &consumedAt)
	if err != nil {
		return domain.Code{}, err
	}
	c.Channel = domain.Channel(channel)
	c.CreatedAt, c.ExpiresAt, c.ConsumedAt = fromMicros(createdAt), fromMicros(expiresAt), fromNullMicros(consumedAt)
	return c, nil
}
