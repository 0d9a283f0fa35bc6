// Package outbound keeps the orders service's data in SQL: on Postgres, MySQL,
// MariaDB and SQLite alike.
package outbound

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/orders/internal/app"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

// ErrChanged says that an order was changed by someone else since it was read.
var ErrChanged = errors.New("order was changed meanwhile")

// Orders is app.Orders over SQL. It is safe for concurrent use.
type Orders struct {
	db      *sql.DB
	dialect sqltx.Dialect
}

var _ app.Orders = (*Orders)(nil)

// NewOrders returns a store over db.
func NewOrders(db *sql.DB, dialect sqltx.Dialect) *Orders {
	return &Orders{db: db, dialect: dialect}
}

// q returns the statement as the dialect writes it.
func (s *Orders) q(query string) string { return s.dialect.Rebind(query) }

const orderColumns = `id, state, customer_id, customer_email, customer_phone, customer_language, total_amount, currency,
	payment_id, refund_id, cancelled_by, cancel_reason, placed_at, confirmed_at, cancelled_at, refunded_at, updated_at, version`

// Insert stores a new order.
func (s *Orders) Insert(ctx context.Context, tx *sql.Tx, o domain.Order) error {
	_, err := tx.ExecContext(ctx, s.q(`INSERT INTO orders (`+orderColumns+`)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)`),
		o.ID, string(o.State), o.Customer.ID, o.Customer.Email, o.Customer.Phone, o.Customer.Language,
		o.Total.Amount, o.Total.Currency, o.PaymentID, o.RefundID, string(o.CancelledBy), o.CancelReason,
		micros(o.PlacedAt), micros(o.ConfirmedAt), micros(o.CancelledAt), micros(o.RefundedAt), micros(o.UpdatedAt), o.Version)
	if err != nil {
		return fmt.Errorf("insert order %s: %w", o.ID, err)
	}
	var rows strings.Builder
	args := make([]any, 0, 5*len(o.Lines))
	for i, l := range o.Lines {
		if i > 0 {
			rows.WriteString(", ")
		}
		n := len(args)
		fmt.Fprintf(&rows, "($%d, $%d, $%d, $%d, $%d)", n+1, n+2, n+3, n+4, n+5)
		args = append(args, o.ID, i, l.SKU, l.Quantity, l.UnitPrice.Amount)
	}
	_, err = tx.ExecContext(ctx, s.q(`INSERT INTO order_lines (order_id, position, sku, quantity, unit_price) VALUES `+rows.String()), args...)
	if err != nil {
		return fmt.Errorf("insert the lines of order %s: %w", o.ID, err)
	}
	return nil
}

// Lock returns the order and keeps other writers of it out until tx ends: by a
// row lock; a SQLite transaction that writes excludes all others.
func (s *Orders) Lock(ctx context.Context, tx *sql.Tx, id string) (domain.Order, error) {
	query := `SELECT ` + orderColumns + ` FROM orders WHERE id = $1`
	if s.dialect != sqltx.SQLite {
		query += ` FOR UPDATE`
	}
	return s.one(ctx, tx, query, id)
}

// Save stores the changed order, unless its row is no longer the one that was
// read: then it fails with ErrChanged. Lines, customer and total never change.
func (s *Orders) Save(ctx context.Context, tx *sql.Tx, o domain.Order) error {
	res, err := tx.ExecContext(ctx, s.q(`UPDATE orders SET state = $1, payment_id = $2, refund_id = $3, cancelled_by = $4,
		cancel_reason = $5, confirmed_at = $6, cancelled_at = $7, refunded_at = $8, updated_at = $9, version = $10
		WHERE id = $11 AND version = $12`),
		string(o.State), o.PaymentID, o.RefundID, string(o.CancelledBy), o.CancelReason, micros(o.ConfirmedAt),
		micros(o.CancelledAt), micros(o.RefundedAt), micros(o.UpdatedAt), o.Version, o.ID, o.Version-1)
	if err != nil {
		return fmt.Errorf("update order %s: %w", o.ID, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("update order %s: %w", o.ID, err)
	}
	if n != 1 {
		return fmt.Errorf("update order %s from version %d: %w", o.ID, o.Version-1, ErrChanged)
	}
	return nil
}

// Get returns the order.
func (s *Orders) Get(ctx context.Context, id string) (domain.Order, error) {
	return s.one(ctx, s.db, `SELECT `+orderColumns+` FROM orders WHERE id = $1`, id)
}

// List returns the orders that match, newest first.
func (s *Orders) List(ctx context.Context, q app.Query) ([]domain.Order, error) {
	var where []string
	var args []any
	arg := func(v any) string {
		args = append(args, v)
		return "$" + strconv.Itoa(len(args))
	}
	if q.CustomerID != "" {
		where = append(where, "customer_id = "+arg(q.CustomerID))
	}
	if q.State != "" {
		where = append(where, "state = "+arg(string(q.State)))
	}
	if q.After.ID != "" {
		where = append(where, "(placed_at, id) < ("+arg(q.After.PlacedAt.UnixMicro())+", "+arg(q.After.ID)+")")
	}
	query := `SELECT ` + orderColumns + ` FROM orders`
	if len(where) > 0 {
		query += ` WHERE ` + strings.Join(where, " AND ")
	}
	query += ` ORDER BY placed_at DESC, id DESC LIMIT ` + arg(max(q.Limit, 1))
	return s.query(ctx, s.db, query, args...)
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func (s *Orders) one(ctx context.Context, q querier, query, id string) (domain.Order, error) {
	found, err := s.query(ctx, q, query, id)
	if err != nil {
		return domain.Order{}, err
	}
	if len(found) == 0 {
		return domain.Order{}, app.ErrNotFound
	}
	return found[0], nil
}

func (s *Orders) query(ctx context.Context, q querier, query string, args ...any) ([]domain.Order, error) {
	rows, err := q.QueryContext(ctx, s.q(query), args...)
	if err != nil {
		return nil, fmt.Errorf("select orders: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var found []domain.Order
	for rows.Next() {
		var o domain.Order
		var placed, updated int64
		var confirmed, cancelled, refunded sql.NullInt64
		err := rows.Scan(&o.ID, &o.State, &o.Customer.ID, &o.Customer.Email, &o.Customer.Phone, &o.Customer.Language,
			&o.Total.Amount, &o.Total.Currency, &o.PaymentID, &o.RefundID, &o.CancelledBy, &o.CancelReason,
			&placed, &confirmed, &cancelled, &refunded, &updated, &o.Version)
		if err != nil {
			return nil, fmt.Errorf("read an order: %w", err)
		}
		o.PlacedAt, o.UpdatedAt = fromMicros(placed), fromMicros(updated)
		o.ConfirmedAt, o.CancelledAt, o.RefundedAt = fromNull(confirmed), fromNull(cancelled), fromNull(refunded)
		found = append(found, o)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("select orders: %w", err)
	}
	// Closed before the next query: within a transaction there is one connection.
	if err := rows.Close(); err != nil {
		return nil, fmt.Errorf("select orders: %w", err)
	}
	return found, s.fillLines(ctx, q, found)
}

func (s *Orders) fillLines(ctx context.Context, q querier, found []domain.Order) error {
	if len(found) == 0 {
		return nil
	}
	byID := make(map[string]*domain.Order, len(found))
	marks := make([]string, len(found))
	args := make([]any, len(found))
	for i := range found {
		byID[found[i].ID] = &found[i]
		marks[i] = "$" + strconv.Itoa(i+1)
		args[i] = found[i].ID
	}
	rows, err := q.QueryContext(ctx, s.q(`SELECT order_id, sku, quantity, unit_price FROM order_lines
		WHERE order_id IN (`+strings.Join(marks, ", ")+`) ORDER BY order_id, position`), args...)
	if err != nil {
		return fmt.Errorf("select order lines: %w", err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id string
		var l domain.Line
		if err := rows.Scan(&id, &l.SKU, &l.Quantity, &l.UnitPrice.Amount); err != nil {
			return fmt.Errorf("read an order line: %w", err)
		}
		o := byID[id]
		l.UnitPrice.Currency = o.Total.Currency
		o.Lines = append(o.Lines, l)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("select order lines: %w", err)
	}
	return nil
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
