// Package pgxoutbox writes outbox messages with transactions of pgx, for services
// that use it without database/sql.
package pgxoutbox

import (
	"context"
	"database/sql"
	"database/sql/driver"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headrace-go/headrace/framework/outbox"
)

// Execer is what pgx.Tx, *pgx.Conn and *pgxpool.Pool have in common.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Beginner begins a transaction: *pgx.Conn and *pgxpool.Pool.
type Beginner interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// Tx makes a pgx transaction one that an outbox.Writer takes, for Write and for
// PublisherFor. The Writer's dialect must be Postgres. Call the Writer's Wake
// after the commit, or let InTx do it.
func Tx(tx Execer) outbox.Inserter { return inserter{tx} }

// Write inserts msgs with tx, as w.Write does. Call w.Wake after the commit, or
// let InTx do it.
func Write(ctx context.Context, w *outbox.Writer, tx Execer, msgs ...outbox.Message) error {
	return w.Write(ctx, Tx(tx), msgs...)
}

// InTx runs fn in a transaction, commits it when fn returns nil, and wakes the
// relay then. When fn fails or panics the transaction is rolled back. It is run
// once: a serialization failure is returned.
func InTx(ctx context.Context, db Beginner, w *outbox.Writer, fn func(ctx context.Context, tx pgx.Tx) error) error {
	if err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{}, func(tx pgx.Tx) error { return fn(ctx, tx) }); err != nil {
		return err
	}
	w.Wake()
	return nil
}

type inserter struct{ tx Execer }

// ExecContext executes the query with the pgx transaction.
func (i inserter) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := i.tx.Exec(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(tag.RowsAffected()), nil
}
