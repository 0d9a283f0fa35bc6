// Package outbound keeps payments in SQL: on Postgres, MySQL, MariaDB and SQLite
// alike.
package outbound

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// Payments is app.Payments over SQL. It is safe for concurrent use.
type Payments struct {
	db      *sql.DB
	dialect sqltx.Dialect
}

var _ app.Payments = (*Payments)(nil)

// NewPayments returns a store over db.
func NewPayments(db *sql.DB, dialect sqltx.Dialect) *Payments {
	return &Payments{db: db, dialect: dialect}
}

const columns = `id, order_id, state, amount, currency, reference, failure_reason, refund_id, refund_reference,
	created_at, order_cancelled_at, captured_at, failed_at, refunded_at, updated_at, version`

// Open adds p unless its order has a payment, and returns the order's payment,
// locked. Of two transactions that open one order at the same moment the second
// waits for the first: at the unique index, on SQLite at its single writer, since
// the statement that comes first is a write.
func (s *Payments) Open(ctx context.Context, tx *sql.Tx, p domain.Payment) (domain.Payment, bool, error) {
	otherwise := `ON CONFLICT (order_id) DO NOTHING`
	if s.dialect == sqltx.MySQL {
		otherwise = `ON DUPLICATE KEY UPDATE order_id = payments.order_id` // changes, and counts, no row
	}
	res, err := tx.ExecContext(ctx, s.q(`INSERT INTO payments (`+columns+`)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) `+otherwise),
		p.ID, p.OrderID, string(p.State), p.Amount.Amount, p.Amount.Currency, p.Reference, p.FailureReason,
		p.RefundID, p.RefundReference, micros(p.CreatedAt), micros(p.OrderCancelledAt), micros(p.CapturedAt),
		micros(p.FailedAt), micros(p.RefundedAt), micros(p.UpdatedAt), p.Version)
	if err != nil {
		return domain.Payment{}, false, fmt.Errorf("insert payment of order %s: %w", p.OrderID, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return domain.Payment{}, false, fmt.Errorf("insert payment of order %s: %w", p.OrderID, err)
	}
	if n == 1 {
		return p, true, nil
	}
	found, err := s.LockByOrder(ctx, tx, p.OrderID)
	return found, false, err
}

// LockByOrder returns the order's payment and keeps other writers of it out
// until tx ends: by a row lock; a SQLite transaction that writes excludes all
// others, and what one read too early Save refuses.
func (s *Payments) LockByOrder(ctx context.Context, tx *sql.Tx, orderID string) (domain.Payment, error) {
	return one(ctx, tx, "order "+orderID, s.locking(`SELECT `+columns+` FROM payments WHERE order_id = $1`), orderID)
}

// Lock is LockByOrder by the payment's own id.
func (s *Payments) Lock(ctx context.Context, tx *sql.Tx, id string) (domain.Payment, error) {
	return one(ctx, tx, id, s.locking(`SELECT `+columns+` FROM payments WHERE id = $1`), id)
}

// Get reads the payment.
func (s *Payments) Get(ctx context.Context, id string) (domain.Payment, error) {
	return one(ctx, s.db, id, s.q(`SELECT `+columns+` FROM payments WHERE id = $1`), id)
}

// GetByOrder reads the order's payment.
func (s *Payments) GetByOrder(ctx context.Context, orderID string) (domain.Payment, error) {
	return one(ctx, s.db, "order "+orderID, s.q(`SELECT `+columns+` FROM payments WHERE order_id = $1`), orderID)
}

// Save stores the changed payment, unless its row is no longer the one that was
// read: then it fails with ErrChanged. Ids and the order never change.
func (s *Payments) Save(ctx context.Context, tx *sql.Tx, p domain.Payment) error {
	res, err := tx.ExecContext(ctx, s.q(`UPDATE payments SET state = $1, amount = $2, currency = $3, reference = $4,
		failure_reason = $5, refund_id = $6, refund_reference = $7, order_cancelled_at = $8, captured_at = $9,
		failed_at = $10, refunded_at = $11, updated_at = $12, version = $13
		WHERE id = $14 AND version = $15`),
		string(p.State), p.Amount.Amount, p.Amount.Currency, p.Reference, p.FailureReason, p.RefundID,
		p.RefundReference, micros(p.OrderCancelledAt), micros(p.CapturedAt), micros(p.FailedAt), micros(p.RefundedAt),
		micros(p.UpdatedAt), p.Version, p.ID, p.Version-1)
	if err != nil {
		return fmt.Errorf("update payment %s: %w", p.ID, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("update payment %s: %w", p.ID, err)
	}
	if n != 1 {
		return fmt.Errorf("update payment %s from version %d: %w", p.ID, p.Version-1, app.ErrChanged)
	}
	return nil
}

// q returns the statement as the dialect writes it.
func (s *Payments) q(query string) string { return s.dialect.Rebind(query) }

// locking is q of a SELECT that holds its row until the transaction ends.
func (s *Payments) locking(query string) string {
	if s.dialect != sqltx.SQLite {
		query += ` FOR UPDATE`
	}
	return s.q(query)
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func one(ctx context.Context, q querier, name, query, arg string) (domain.Payment, error) {
	var p domain.Payment
	var created, updated int64
	var orderCancelled, captured, failed, refunded sql.NullInt64
	err := q.QueryRowContext(ctx, query, arg).Scan(&p.ID, &p.OrderID, &p.State, &p.Amount.Amount, &p.Amount.Currency,
		&p.Reference, &p.FailureReason, &p.RefundID, &p.RefundReference, &created, &orderCancelled, &captured, &failed,
		&refunded, &updated, &p.Version)
	if errors.Is(err, sql.ErrNoRows) {
		return domain.Payment{}, fmt.Errorf("%s: %w", name, app.ErrNotFound)
	}
	if err != nil {
		return domain.Payment{}, fmt.Errorf("select payment %s: %w", name, err)
	}
	p.CreatedAt, p.UpdatedAt = fromMicros(created), fromMicros(updated)
	p.OrderCancelledAt, p.CapturedAt = fromNull(orderCancelled), fromNull(captured)
	p.FailedAt, p.RefundedAt = fromNull(failed), fromNull(refunded)
	return p, nil
}

// micros is how a time is kept: microseconds since 1970, NULL for the zero time.
func micros(t time.Time) sql.NullInt64 {
	if t.IsZero() {
		return sql.NullInt64{}
	}
	return sql.NullInt64{Int64: t.UnixMicro(), Valid: true}
}

func fromMicros(us int64) time.Time { return time.UnixMicro(us).UTC() }

func fromNull(us sql.NullInt64) time.Time {
	if !us.Valid {
		return time.Time{}
	}
	return fromMicros(us.Int64)
}
