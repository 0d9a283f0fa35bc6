package app_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker/memory"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/pkg/events/payments"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
	"github.com/headrace-go/headrace/services/payments/internal/outbound"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/sandbox"
)

// world is the use cases over a real database and the sandbox's ledger. The
// test itself plays the broker: it runs the steps of a handler one by one, or
// stops between two, as a crash does.
type world struct {
	db      frameworktest.DB
	app     *framework.App
	store   *outbound.Payments
	ledger  *sandbox.Gateway
	charge  app.ChargeOrder
	cancel  app.RefundOrder
	refund  app.RefundPayment
	request app.RequestRefund
}

func newWorld(t *testing.T, db frameworktest.DB) *world {
	t.Helper()
	b := memory.New(memory.Config{})
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	a, err := framework.New(framework.Config{
		Service: "payments", DB: db.DB, Dialect: db.Dialect, Broker: b, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	a.Emits(payments.Descriptors()...)
	a.Emits(app.RefundRequested.Descriptor())
	require.NoError(t, a.Validate())
	ledger, err := sandbox.Open(t.Context(), sandbox.Config{DB: db.DB, Dialect: db.Dialect, Timeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	store := outbound.NewPayments(db.DB, db.Dialect)
	return &world{
		db: db, app: a, store: store, ledger: ledger,
		charge:  app.ChargeOrder{Gateway: ledger, Payments: store, MaxAge: time.Hour},
		cancel:  app.RefundOrder{Gateway: ledger, Payments: store},
		refund:  app.RefundPayment{Gateway: ledger, Payments: store},
		request: app.RequestRefund{Tx: a, Payments: store},
	}
}

var price = events.Money{Amount: 4200, Currency: "EUR"}

func event[T any](t *testing.T, typ events.Type[T], key string, data T, opts ...events.DraftOption) events.Event[T] {
	t.Helper()
	env, err := typ.New(key, data, opts...).Seal(events.Stamp{Source: "orders"})
	require.NoError(t, err)
	e, err := typ.Decode(env)
	require.NoError(t, err)
	return e
}

func placed(t *testing.T, orderID, token string, opts ...events.DraftOption) events.Event[orders.PlacedData] {
	t.Helper()
	return event(t, orders.Placed, orderID, orders.PlacedData{
		OrderID: orderID, Customer: orders.Customer{ID: "c1", Email: "ada@example.com", Language: "en"},
		Lines: []orders.Line{{SKU: "BOOK", Quantity: 1, UnitPrice: price}}, Total: price, PaymentToken: token,
	}, opts...)
}

func cancelled(t *testing.T, orderID string) events.Event[orders.CancelledData] {
	t.Helper()
	return event(t, orders.Cancelled, orderID, orders.CancelledData{
		OrderID: orderID, Customer: orders.Customer{ID: "c1", Email: "ada@example.com", Language: "en"},
		Total: price, Reason: "customer_request", PreviousState: "placed",
	})
}

// attempt is one delivery of an event to a handler, step by step: prepare, call,
// commit. A step after one that failed, or that ended the handling, does
// nothing.
type attempt struct {
	steps []func(context.Context) error
	next  int
	ended bool
}

func begin[T any](w *world, h framework.CallHandler[T, app.Outcome], e events.Event[T]) *attempt {
	var out app.Outcome
	return &attempt{steps: []func(context.Context) error{
		func(ctx context.Context) error {
			done := false
			err := w.app.Tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
				err := h.Prepare(ctx, tx, e)
				if done = errors.Is(err, framework.ErrDone); done {
					return nil
				}
				return err
			})
			if err == nil && done {
				return framework.ErrDone
			}
			return err
		},
		func(ctx context.Context) (err error) {
			out, err = h.Call(ctx, e)
			return err
		},
		func(ctx context.Context) error {
			return w.app.Tx(ctx, func(ctx context.Context, tx *sql.Tx) error { return h.Commit(ctx, tx, e, out) })
		},
	}}
}

// step takes the next step. ErrDone is a good end.
func (a *attempt) step(ctx context.Context) error {
	if a.ended {
		return nil
	}
	err := a.steps[a.next](ctx)
	a.next++
	a.ended = err != nil || a.next == len(a.steps)
	if errors.Is(err, framework.ErrDone) {
		return nil
	}
	return err
}

// run takes all the steps.
func (a *attempt) run(ctx context.Context) error {
	for !a.ended {
		if err := a.step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// deliver runs fresh attempts until one works, as the retry does.
func deliver[T any](ctx context.Context, w *world, h framework.CallHandler[T, app.Outcome], e events.Event[T]) error {
	var err error
	for range 5 {
		if err = begin(w, h, e).run(ctx); err == nil {
			return nil
		}
	}
	return fmt.Errorf("after 5 attempts: %w", err)
}

// told returns what was emitted about each order, in order.
func (w *world) told(t *testing.T) map[string][]string {
	t.Helper()
	offset := `"offset"`
	if w.db.Dialect == sqltx.MySQL {
		offset = "`offset`"
	}
	rows, err := w.db.QueryContext(t.Context(), `SELECT payload FROM watermill_headrace_outbox ORDER BY `+offset)
	require.NoError(t, err)
	defer rows.Close()
	found := map[string][]string{}
	for rows.Next() {
		var payload []byte
		require.NoError(t, rows.Scan(&payload))
		var stored struct {
			Metadata map[string]string `json:"metadata"`
		}
		require.NoError(t, json.Unmarshal(payload, &stored))
		key := stored.Metadata[events.KeyOrdering]
		found[key] = append(found[key], stored.Metadata[events.KeyType])
	}
	require.NoError(t, rows.Err())
	return found
}

func (w *world) payment(t *testing.T, orderID string) domain.Payment {
	t.Helper()
	p, err := w.store.GetByOrder(t.Context(), orderID)
	require.NoError(t, err)
	return p
}

func (w *world) books(t *testing.T, orderID string) sandbox.Summary {
	t.Helper()
	s, err := w.ledger.Summarize(t.Context(), orderID)
	require.NoError(t, err)
	return s
}

const (
	tellsCaptured = "payment.captured"
	tellsFailed   = "payment.failed"
	tellsRefunded = "payment.refunded"
)
