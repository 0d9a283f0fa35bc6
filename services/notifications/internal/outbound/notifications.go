package outbound

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

const notificationColumns = `id, event_id, event_type, channel, template, order_id, recipient, language, facts,
	state, reason, reference, attempts, resends, created_at, updated_at, sent_at`

// Add implements app.Notifications.
func (s *Store) Add(ctx context.Context, tx *sql.Tx, n domain.Notification) (bool, error) {
	facts, err := json.Marshal(n.Facts)
	if err != nil {
		return false, fmt.Errorf("encode the facts of notification %q: %w", n.ID, err)
	}
	res, err := tx.ExecContext(ctx, s.q(`
		INSERT INTO notifications (`+notificationColumns+`)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)`+s.unlessThere("event_id, channel")),
		n.ID, n.EventID, n.EventType, string(n.Channel), n.Template, n.OrderID, n.Recipient, n.Language, string(facts),
		string(n.State), n.Reason, n.Reference, n.Attempts, n.Resends, micros(n.CreatedAt), micros(n.UpdatedAt), nullMicros(n.SentAt))
	if err != nil {
		return false, fmt.Errorf("add notification %q: %w", n.ID, err)
	}
	rows, err := res.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("add notification %q: %w", n.ID, err)
	}
	return rows == 1, nil
}

const (
	byEvent = ` FROM notifications WHERE event_id = $1 AND channel = $2`
	byID    = ` FROM notifications WHERE id = $1`
)

// LockForEvent implements app.Notifications.
func (s *Store) LockForEvent(ctx context.Context, tx *sql.Tx, eventID string, channel domain.Channel) (domain.Notification, error) {
	n, err := scanNotification(tx.QueryRowContext(ctx, s.q(`SELECT `+notificationColumns+byEvent+s.locking()), eventID, string(channel)))
	return n, found("notification of event", eventID, err)
}

// ForEvent implements app.Notifications.
func (s *Store) ForEvent(ctx context.Context, eventID string, channel domain.Channel) (domain.Notification, error) {
	n, err := scanNotification(s.db.QueryRowContext(ctx, s.q(`SELECT `+notificationColumns+byEvent), eventID, string(channel)))
	return n, found("notification of event", eventID, err)
}

// Lock implements app.Notifications.
func (s *Store) Lock(ctx context.Context, tx *sql.Tx, id string) (domain.Notification, error) {
	n, err := scanNotification(tx.QueryRowContext(ctx, s.q(`SELECT `+notificationColumns+byID+s.locking()), id))
	return n, found("notification", id, err)
}

// Get implements app.Notifications.
func (s *Store) Get(ctx context.Context, id string) (domain.Notification, error) {
	n, err := scanNotification(s.db.QueryRowContext(ctx, s.q(`SELECT `+notificationColumns+byID), id))
	return n, found("notification", id, err)
}

// Save implements app.Notifications.
func (s *Store) Save(ctx context.Context, tx *sql.Tx, n domain.Notification) error {
	res, err := tx.ExecContext(ctx, s.q(`
		UPDATE notifications
		SET state = $1, reason = $2, reference = $3, attempts = $4, resends = $5, updated_at = $6, sent_at = $7
		WHERE id = $8`),
		string(n.State), n.Reason, n.Reference, n.Attempts, n.Resends, micros(n.UpdatedAt), nullMicros(n.SentAt), n.ID)
	if err != nil {
		return fmt.Errorf("write notification %q: %w", n.ID, err)
	}
	return changedOne("notification", n.ID, res)
}

// List implements app.Notifications.
func (s *Store) List(ctx context.Context, q app.Query) ([]domain.Notification, error) {
	var (
		where []string
		args  []any
	)
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	if q.OrderID != "" {
		where = append(where, "order_id = "+arg(q.OrderID))
	}
	if q.State != "" {
		where = append(where, "state = "+arg(string(q.State)))
	}
	if !q.Before.CreatedAt.IsZero() {
		where = append(where, "(created_at, id) < ("+arg(micros(q.Before.CreatedAt))+", "+arg(q.Before.ID)+")")
	}
	query := `SELECT ` + notificationColumns + ` FROM notifications`
	if len(where) > 0 {
		query += ` WHERE ` + strings.Join(where, " AND ")
	}
	query += ` ORDER BY created_at DESC, id DESC LIMIT ` + arg(q.Limit)
	rows, err := s.db.QueryContext(ctx, s.q(query), args...)
	if err != nil {
		return nil, fmt.Errorf("list notifications: %w", err)
	}
	defer rows.Close()
	var list []domain.Notification
	for rows.Next() {
		n, err := scanNotification(rows)
		if err != nil {
			return nil, fmt.Errorf("list notifications: %w", err)
		}
		list = append(list, n)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list notifications: %w", err)
	}
	return list, nil
}

func scanNotification(row interface{ Scan(...any) error }) (domain.Notification, error) {
	var (
		n                    domain.Notification
		channel, facts       string
		state                string
		createdAt, updatedAt int64
		sentAt               sql.NullInt64
	)
	err := row.Scan(&n.ID, &n.EventID, &n.EventType, &channel, &n.Template, &n.OrderID, &n.Recipient, &n.Language, &facts,
		&state, &n.Reason, &n.Reference, &n.Attempts, &n.Resends, &createdAt, &updatedAt, &sentAt)
	if err != nil {
		return domain.Notification{}, err
	}
	if err := json.Unmarshal([]byte(facts), &n.Facts); err != nil {
		return domain.Notification{}, fmt.Errorf("decode the facts of notification %q: %w", n.ID, err)
	}
	n.Channel, n.State = domain.Channel(channel), domain.State(state)
	n.CreatedAt, n.UpdatedAt, n.SentAt = fromMicros(createdAt), fromMicros(updatedAt), fromNullMicros(sentAt)
	return n, nil
}
