package pgxoutbox_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker/memory"
	"github.com/headrace-go/headrace/framework/outbox"
	"github.com/headrace-go/headrace/framework/outbox/pgxoutbox"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/pkg/events"
)

func setup(t *testing.T) (*sql.DB, *pgxpool.Pool) {
	t.Helper()
	dsn := testenv.PostgresDSN(t)
	db := testenv.Open(t, "pgx", dsn)
	require.NoError(t, schema.Ensure(t.Context(), db, sqltx.Postgres, slog.New(slog.DiscardHandler)))
	pool, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return db, pool
}

func message1(key string, n int) outbox.Message {
	m := message.NewMessage(uuid.NewString(), []byte(strconv.Itoa(n)))
	m.Metadata.Set(events.KeyOrdering, key)
	return outbox.Message{Topic: "orders", Message: m}
}

// What a pgx transaction writes is published when it commits, in its order, and
// never when it rolls back; the relay is woken by the commit alone.
func TestPgxTransactions(t *testing.T) {
	t.Parallel()
	db, pool := setup(t)
	woken := 0
	w, err := outbox.NewWriter(outbox.WriterConfig{Dialect: sqltx.Postgres, OnCommit: func() { woken++ }})
	require.NoError(t, err)
	no := errors.New("no")
	require.ErrorIs(t, pgxoutbox.InTx(t.Context(), pool, w, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, pgxoutbox.Write(ctx, w, tx, message1("k", 99)))
		return no
	}), no)
	require.Zero(t, woken)
	for n := range 3 {
		require.NoError(t, pgxoutbox.InTx(t.Context(), pool, w, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS orders (id INT)`); err != nil {
				return err
			}
			pub := w.PublisherFor(pgxoutbox.Tx(tx))
			return errors.Join(
				pgxoutbox.Write(ctx, w, tx, message1("k", 3*n), message1("k", 3*n+1)),
				pub.Publish("orders", message1("k", 3*n+2).Message))
		}))
	}
	require.Equal(t, 3, woken)
	require.ErrorIs(t, pgxoutbox.InTx(t.Context(), pool, w, func(ctx context.Context, tx pgx.Tx) error {
		return pgxoutbox.Write(ctx, w, tx, outbox.Message{Topic: "", Message: message1("k", 0).Message})
	}), outbox.ErrUnsendable)
	require.Error(t, pgxoutbox.InTx(t.Context(), pool, w, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT nonsense`); err == nil {
			return errors.New("no error")
		}
		return pgxoutbox.Write(ctx, w, tx, message1("k", 0)) // the transaction is over
	}))

	b := memory.New(memory.Config{})
	defer func() { require.NoError(t, b.Close()) }()
	r, err := outbox.NewRelay(outbox.RelayConfig{DB: db, Dialect: sqltx.Postgres, Publisher: b.Publisher(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	require.NoError(t, err)
	require.NoError(t, r.Flush(t.Context()))
	var got []string
	for s, err := range b.Admin().Browse(t.Context(), "orders", time.Time{}) {
		require.NoError(t, err)
		got = append(got, string(s.Message.Payload))
	}
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8"}, got)
}
