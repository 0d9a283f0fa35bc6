package sandbox

import (
	"context"
	"fmt"

	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/payments/internal/app"
)

// The states of a charge in the ledger.
const (
	stateOpen     = "open"
	stateCaptured = "captured"
	stateDeclined = "declined"
	stateVoided   = "voided"
	stateRefunded = "refunded"
)

// Charge is one idempotency key's entry in the ledger.
type Charge struct {
	Key       string `json:"idempotency_key"`
	Reference string `json:"reference"`
	// OrderID and Amount are empty for a key that was voided and never charged.
	OrderID string       `json:"order_id"`
	Amount  events.Money `json:"amount"`
	// State is open, captured, declined, voided or refunded. Captured and
	// refunded charges took the money.
	State         string `json:"state"`
	DeclineReason string `json:"decline_reason,omitempty"`
	// ChargeRequests, VoidRequests and RefundRequests count what was asked,
	// repetitions included.
	ChargeRequests int64 `json:"charge_requests"`
	VoidRequests   int64 `json:"void_requests"`
	RefundRequests int64 `json:"refund_requests"`
	// CreatedAt is in Unix microseconds.
	CreatedAt int64 `json:"created_at_us"`
}

// Summary counts what the ledger holds.
type Summary struct {
	// ChargeRequests is every request to charge, repetitions included.
	ChargeRequests int64 `json:"charge_requests"`
	// Captured is how many charges took money, those refunded since included.
	Captured int64 `json:"captured"`
	Refunded int64 `json:"refunded"`
	Declined int64 `json:"declined"`
	Voided   int64 `json:"voided"`
	Open     int64 `json:"open"`
	// OrdersCharged is how many orders were charged, OrdersChargedTwice how many
	// of them more than once: it must be 0.
	OrdersCharged      int64 `json:"orders_charged"`
	OrdersChargedTwice int64 `json:"orders_charged_twice"`
}

const chargeColumns = `idempotency_key, reference, order_id, amount, currency, state, decline_reason,
	charge_requests, void_requests, created_at`

func (c *Charge) fields() []any {
	return []any{&c.Key, &c.Reference, &c.OrderID, &c.Amount.Amount, &c.Amount.Currency, &c.State, &c.DeclineReason,
		&c.ChargeRequests, &c.VoidRequests, &c.CreatedAt}
}

// q returns the statement as the dialect writes it.
func (g *Gateway) q(query string) string { return g.cfg.Dialect.Rebind(query) }

// unlessThere ends an INSERT that changes, and counts, no row where the key has
// one.
func (g *Gateway) unlessThere() string {
	if g.cfg.Dialect == sqltx.MySQL {
		return ` ON DUPLICATE KEY UPDATE updated_at = updated_at`
	}
	return ` ON CONFLICT (idempotency_key) DO NOTHING`
}

func (g *Gateway) insertCharge(ctx context.Context, tx sqltx.Execer, c Charge) error {
	_, err := tx.ExecContext(ctx, g.q(`INSERT INTO sandbox_charges
		(idempotency_key, reference, order_id, amount, currency, state, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`+g.unlessThere()),
		c.Key, c.Reference, c.OrderID, c.Amount.Amount, c.Amount.Currency, c.State, c.CreatedAt, c.CreatedAt)
	return err
}

// countRequest counts one request of the key and returns its entry, locked: a
// database locks a row that it updates.
func (g *Gateway) countRequest(ctx context.Context, tx sqltx.Execer, counter, key string, now int64) (Charge, error) {
	var c Charge
	if _, err := tx.ExecContext(ctx, g.q(`UPDATE sandbox_charges SET `+counter+` = `+counter+` + 1, updated_at = $1
		WHERE idempotency_key = $2`), now, key); err != nil {
		return c, err
	}
	err := tx.QueryRowContext(ctx, g.q(`SELECT `+chargeColumns+` FROM sandbox_charges WHERE idempotency_key = $1`), key).Scan(c.fields()...)
	return c, err
}

func (g *Gateway) lockByReference(ctx context.Context, tx sqltx.Execer, reference string, now int64) (Charge, error) {
	var c Charge
	if _, err := tx.ExecContext(ctx, g.q(`UPDATE sandbox_charges SET updated_at = $1 WHERE reference = $2`), now, reference); err != nil {
		return c, err
	}
	err := tx.QueryRowContext(ctx, g.q(`SELECT `+chargeColumns+` FROM sandbox_charges WHERE reference = $1`), reference).Scan(c.fields()...)
	return c, err
}

func (g *Gateway) setState(ctx context.Context, tx sqltx.Execer, c Charge, now int64) error {
	_, err := tx.ExecContext(ctx, g.q(`UPDATE sandbox_charges SET state = $1, decline_reason = $2, updated_at = $3
		WHERE idempotency_key = $4`), c.State, c.DeclineReason, now, c.Key)
	return err
}

func (g *Gateway) setOrder(ctx context.Context, tx sqltx.Execer, c Charge) error {
	_, err := tx.ExecContext(ctx, g.q(`UPDATE sandbox_charges SET order_id = $1, amount = $2, currency = $3
		WHERE idempotency_key = $4`), c.OrderID, c.Amount.Amount, c.Amount.Currency, c.Key)
	return err
}

func (g *Gateway) insertRefund(ctx context.Context, tx sqltx.Execer, req app.RefundRequest, reference string, now int64) (bool, error) {
	res, err := tx.ExecContext(ctx, g.q(`INSERT INTO sandbox_refunds
		(idempotency_key, reference, charge_reference, amount, currency, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`+g.unlessThere()),
		req.Key, reference, req.Charge, req.Amount.Amount, req.Amount.Currency, now, now)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

func (g *Gateway) countRefund(ctx context.Context, tx sqltx.Execer, key string, now int64) (reference, charge string, err error) {
	if _, err := tx.ExecContext(ctx, g.q(`UPDATE sandbox_refunds SET refund_requests = refund_requests + 1, updated_at = $1
		WHERE idempotency_key = $2`), now, key); err != nil {
		return "", "", err
	}
	err = tx.QueryRowContext(ctx, g.q(`SELECT reference, charge_reference FROM sandbox_refunds WHERE idempotency_key = $1`), key).Scan(&reference, &charge)
	return reference, charge, err
}

// Query selects entries of the ledger. The zero value selects all.
type Query struct {
	// OrderID selects one order's charges.
	OrderID string
	// After is the key of the last charge of the page before.
	After string
	// Limit is the most charges returned; 0 returns none.
	Limit int
}

// Charges returns entries of the ledger by key.
func (g *Gateway) Charges(ctx context.Context, q Query) ([]Charge, error) {
	rows, err := g.cfg.DB.QueryContext(ctx, g.q(`SELECT `+chargeColumns+`,
		(SELECT COALESCE(SUM(r.refund_requests), 0) FROM sandbox_refunds r WHERE r.charge_reference = sandbox_charges.reference)
		FROM sandbox_charges
		WHERE ($1 = '' OR order_id = $2) AND idempotency_key > $3
		ORDER BY idempotency_key LIMIT $4`), q.OrderID, q.OrderID, q.After, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("sandbox: read charges: %w", err)
	}
	defer rows.Close()
	found := []Charge{}
	for rows.Next() {
		var c Charge
		if err := rows.Scan(append(c.fields(), &c.RefundRequests)...); err != nil {
			return nil, fmt.Errorf("sandbox: read a charge: %w", err)
		}
		found = append(found, c)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("sandbox: read charges: %w", err)
	}
	return found, nil
}

// Summarize counts the ledger, or one order's part of it.
func (g *Gateway) Summarize(ctx context.Context, orderID string) (Summary, error) {
	var s Summary
	err := g.cfg.DB.QueryRowContext(ctx, g.q(`SELECT
			COALESCE(SUM(requests), 0), COALESCE(SUM(captured), 0), COALESCE(SUM(refunded), 0), COALESCE(SUM(declined), 0),
			COALESCE(SUM(voided), 0), COALESCE(SUM(opened), 0),
			COALESCE(SUM(CASE WHEN captured > 0 THEN 1 ELSE 0 END), 0),
			COALESCE(SUM(CASE WHEN captured > 1 THEN 1 ELSE 0 END), 0)
		FROM (
			SELECT order_id,
				SUM(charge_requests) AS requests,
				SUM(CASE WHEN state IN ('captured', 'refunded') THEN 1 ELSE 0 END) AS captured,
				SUM(CASE WHEN state = 'refunded' THEN 1 ELSE 0 END) AS refunded,
				SUM(CASE WHEN state = 'declined' THEN 1 ELSE 0 END) AS declined,
				SUM(CASE WHEN state = 'voided' THEN 1 ELSE 0 END) AS voided,
				SUM(CASE WHEN state = 'open' THEN 1 ELSE 0 END) AS opened
			FROM sandbox_charges WHERE ($1 = '' OR order_id = $2) GROUP BY order_id
		) AS by_order`), orderID, orderID).Scan(&s.ChargeRequests, &s.Captured, &s.Refunded, &s.Declined, &s.Voided, &s.Open,
		&s.OrdersCharged, &s.OrdersChargedTwice)
	if err != nil {
		return Summary{}, fmt.Errorf("sandbox: summarize: %w", err)
	}
	return s, nil
}
