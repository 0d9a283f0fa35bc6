package outbound

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/orders/internal/app"
)

// Keys is app.Keys over SQL. It is safe for concurrent use.
type Keys struct {
	db      *sql.DB
	dialect sqltx.Dialect
}

var _ app.Keys = (*Keys)(nil)

// NewKeys returns a store over db.
func NewKeys(db *sql.DB, dialect sqltx.Dialect) *Keys { return &Keys{db: db, dialect: dialect} }

// claimKey ties a key to an order where it is free or has expired, in one
// statement; $6 is now. It changes no row where the key is held.
const claimKey = `INSERT INTO order_idempotency_keys
	(idempotency_key, fingerprint, order_id, created_at, expires_at) VALUES ($1, $2, $3, $4, $5)
	ON CONFLICT (idempotency_key) DO UPDATE SET fingerprint = excluded.fingerprint, order_id = excluded.order_id,
		created_at = excluded.created_at, expires_at = excluded.expires_at
	WHERE order_idempotency_keys.expires_at <= $6`

// claimKeyMySQL is claimKey. MySQL assigns from left to right and later
// assignments see it: expires_at, by which all are decided, is the last.
const claimKeyMySQL = `INSERT INTO order_idempotency_keys
	(idempotency_key, fingerprint, order_id, created_at, expires_at) VALUES (?, ?, ?, ?, ?)
	ON DUPLICATE KEY UPDATE fingerprint = IF(expires_at <= ?, VALUES(fingerprint), fingerprint),
		order_id = IF(expires_at <= ?, VALUES(order_id), order_id),
		created_at = IF(expires_at <= ?, VALUES(created_at), created_at),
		expires_at = IF(expires_at <= ?, VALUES(expires_at), expires_at)`

// claim runs claimKey and tells whether it changed a row.
func (s *Keys) claim(ctx context.Context, tx *sql.Tx, k app.Key, now time.Time) (bool, error) {
	query, at := claimKey, now.UnixMicro()
	args := []any{k.Value, k.Fingerprint, k.OrderID, k.CreatedAt.UnixMicro(), k.ExpiresAt.UnixMicro(), at}
	if s.dialect == sqltx.MySQL {
		query, args = claimKeyMySQL, append(args, at, at, at)
	}
	res, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return false, fmt.Errorf("claim idempotency key: %w", err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("claim idempotency key: %w", err)
	}
	return n > 0, nil // MySQL counts a row that it replaced twice
}

// Claim ties the key to the order, unless it is tied already. The insert waits
// for a transaction that holds the same key, so two requests with one key never
// both go on.
func (s *Keys) Claim(ctx context.Context, tx *sql.Tx, k app.Key, now time.Time) (app.Key, bool, error) {
	// Twice at most: the key that barred the insert may be purged before the
	// select reads it.
	for range 2 {
		fresh, err := s.claim(ctx, tx, k, now)
		if err != nil {
			return app.Key{}, false, err
		}
		if fresh {
			return k, true, nil
		}
		held := app.Key{Value: k.Value}
		var created, expires int64
		err = tx.QueryRowContext(ctx, s.dialect.Rebind(`SELECT fingerprint, order_id, created_at, expires_at FROM order_idempotency_keys
			WHERE idempotency_key = $1`), k.Value).Scan(&held.Fingerprint, &held.OrderID, &created, &expires)
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
	query := `DELETE FROM order_idempotency_keys WHERE expires_at <= $1 AND idempotency_key IN
		(SELECT idempotency_key FROM order_idempotency_keys WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)`
	if s.dialect == sqltx.MySQL {
		query = `DELETE FROM order_idempotency_keys WHERE expires_at <= ? ORDER BY expires_at LIMIT ?`
	}
	res, err := s.db.ExecContext(ctx, query, now.UnixMicro(), limit)
	if err != nil {
		return 0, fmt.Errorf("delete expired idempotency keys: %w", err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("delete expired idempotency keys: %w", err)
	}
	return int(n), nil
}
