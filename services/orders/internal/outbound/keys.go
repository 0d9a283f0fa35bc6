package outbound

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/services/orders/internal/app"
)

// Keys is app.Keys over SQL. It is safe for concurrent use.
type Keys struct {
	db *sql.DB
}

var _ app.Keys = (*Keys)(nil)

// NewKeys returns a store over db.
func NewKeys(db *sql.DB) *Keys { return &Keys{db: db} }

// Claim ties the key to the order, unless it is tied already. The insert waits
// for a transaction that holds the same key, so two requests with one key never
// both go on.
func (s *Keys) Claim(ctx context.Context, tx *sql.Tx, k app.Key, now time.Time) (app.Key, bool, error) {
	// Twice at most: the key that barred the insert may be purged before the
	// select reads it.
	for range 2 {
		res, err := tx.ExecContext(ctx, `INSERT INTO order_idempotency_keys
			(idempotency_key, fingerprint, order_id, created_at, expires_at) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (idempotency_key) DO UPDATE SET fingerprint = excluded.fingerprint, order_id = excluded.order_id,
				created_at = excluded.created_at, expires_at = excluded.expires_at
			WHERE order_idempotency_keys.expires_at <= $6`,
			k.Value, k.Fingerprint, k.OrderID, k.CreatedAt.UnixMicro(), k.ExpiresAt.UnixMicro(), now.UnixMicro())
		if err != nil {
			return app.Key{}, false, fmt.Errorf("claim idempotency key: %w", err)
		}
		n, err := res.RowsAffected()
		if err != nil {
			return app.Key{}, false, fmt.Errorf("claim idempotency key: %w", err)
		}
		if n == 1 {
			return k, true, nil
		}
		held := app.Key{Value: k.Value}
		var created, expires int64
		err = tx.QueryRowContext(ctx, `SELECT fingerprint, order_id, created_at, expires_at FROM order_idempotency_keys
			WHERE idempotency_key = $1`, k.Value).Scan(&held.Fingerprint, &held.OrderID, &created, &expires)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return app.Key{}, false, fmt.Errorf("read idempotency key: %w", err)
		}
		held.CreatedAt, held.ExpiresAt = fromMicros(created), fromMicros(expires)
		return held, false, nil
	}
	return app.Key{}, false, errors.New("claim idempotency key: it expired at the same moment: send the request again")
}

// DeleteExpired removes at most limit keys that expired at or before now.
func (s *Keys) DeleteExpired(ctx context.Context, now time.Time, limit int) (int, error) {
	res, err := s.db.ExecContext(ctx, `DELETE FROM order_idempotency_keys WHERE expires_at <= $1 AND idempotency_key IN
		(SELECT idempotency_key FROM order_idempotency_keys WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)`,
		now.UnixMicro(), limit)
	if err != nil {
		return 0, fmt.Errorf("delete expired idempotency keys: %w", err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("delete expired idempotency keys: %w", err)
	}
	return int(n), nil
}
