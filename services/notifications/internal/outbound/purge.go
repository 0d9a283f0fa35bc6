package outbound

import (
	"context"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/framework/sqltx"
)

// PurgeNotifications implements app.Purger: those that are sent or failed.
// One that still waits for an attempt or for a person is kept.
func (s *Store) PurgeNotifications(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.purge(ctx, "notifications", "id", "created_at < $1 AND state IN ('sent', 'failed')", "created_at", before, limit)
}

// PurgeContacts implements app.Purger.
func (s *Store) PurgeContacts(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.purge(ctx, "notification_contacts", "order_id", "known_at < $1", "known_at", before, limit)
}

// PurgeCodes implements app.Purger.
func (s *Store) PurgeCodes(ctx context.Context, expiredBefore time.Time, limit int) (int, error) {
	return s.purge(ctx, "notification_codes", "id", "expires_at < $1", "expires_at", expiredBefore, limit)
}

// PurgeCodeLimits implements app.Purger.
func (s *Store) PurgeCodeLimits(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.purge(ctx, "notification_code_limits", "recipient_hash", "window_start < $1", "window_start", before, limit)
}

func (s *Store) purge(ctx context.Context, table, key, condition, order string, before time.Time, limit int) (int, error) {
	statement := `DELETE FROM %[1]s WHERE %[2]s IN (SELECT %[2]s FROM %[1]s WHERE %[3]s ORDER BY %[4]s LIMIT $2%[5]s)`
	if s.dialect == sqltx.MySQL {
		statement = `DELETE FROM %[1]s WHERE %[3]s ORDER BY %[4]s, %[2]s LIMIT $2` // it can't delete from what it selects
	}
	res, err := s.db.ExecContext(ctx, s.q(fmt.Sprintf(statement, table, key, condition, order, s.skipLocked())), micros(before), limit)
	if err != nil {
		return 0, fmt.Errorf("purge %s: %w", table, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("purge %s: %w", table, err)
	}
	return int(n), nil
}
