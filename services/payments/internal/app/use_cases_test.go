package app_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/payments"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/sandbox"
)

func requirePermanent(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	disposition, _ := middleware.DispositionOf(err)
	require.Equal(t, middleware.DispositionPermanent, disposition, "%v", err)
}

// TestOldOrders: a replay of old events charges nobody, and does not undo a
// charge that was begun in time.
func TestOldOrders(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		w := newWorld(t, db)
		longAgo := events.At(time.Now().Add(-2 * time.Hour))

		fresh := events.NewID()
		require.NoError(t, deliver(t.Context(), w, w.charge, placed(t, fresh, sandbox.TokenOK, longAgo)))
		require.Equal(t, domain.Failed, w.payment(t, fresh).State)
		require.Equal(t, domain.ReasonOrderExpired, w.payment(t, fresh).FailureReason)
		require.Zero(t, w.books(t, fresh).ChargeRequests)
		// Placing it once more, today, changes nothing: it has failed.
		require.NoError(t, deliver(t.Context(), w, w.charge, placed(t, fresh, sandbox.TokenOK)))
		require.Equal(t, []string{tellsFailed}, w.told(t)[fresh])

		begun := events.NewID()
		old := placed(t, begun, sandbox.TokenOK, longAgo)
		inTime := w.charge
		inTime.MaxAge = 0
		crashed := begin(w, inTime, old)
		require.NoError(t, crashed.step(t.Context()))
		require.NoError(t, crashed.step(t.Context()))
		require.NoError(t, deliver(t.Context(), w, w.charge, old))
		require.Equal(t, domain.Captured, w.payment(t, begun).State)
		require.Equal(t, []string{tellsCaptured}, w.told(t)[begun])
	})
}

func TestWhatBreaksARuleIsPermanent(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		w := newWorld(t, db)
		order := events.NewID()
		require.NoError(t, deliver(t.Context(), w, w.charge, placed(t, order, sandbox.TokenOK)))
		dearer := placed(t, order, sandbox.TokenOK)
		dearer.Data.Total.Amount++
		requirePermanent(t, begin(w, w.charge, dearer).run(t.Context()))

		free := placed(t, events.NewID(), sandbox.TokenOK)
		free.Data.Total.Amount = 0
		requirePermanent(t, begin(w, w.charge, free).run(t.Context()))

		strange := cancelled(t, events.NewID())
		strange.Data.OrderID = "two words"
		requirePermanent(t, begin(w, w.cancel, strange).run(t.Context()))

		unknown := event(t, app.RefundRequested, "x", app.RefundRequestedData{PaymentID: "p", OrderID: "nope", Amount: price})
		requirePermanent(t, begin(w, w.refund, unknown).run(t.Context()))
	})
}

// liar is a gateway that breaks its promise.
type liar struct {
	app.Gateway
	receipt app.Receipt
}

func (l liar) Charge(context.Context, app.ChargeRequest) (app.Receipt, error) { return l.receipt, nil }

// TestMoneyThatTheBooksDontKnow is never passed over: a second charge, or one of
// an order that failed, ends among the dead letters for someone to look at.
func TestMoneyThatTheBooksDontKnow(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		w := newWorld(t, db)
		order := events.NewID()
		late := begin(w, w.charge, placed(t, order, sandbox.TokenOK))
		require.NoError(t, late.step(t.Context()))
		require.NoError(t, late.step(t.Context()))
		other := w.charge
		other.Gateway = liar{receipt: app.Receipt{Reference: "another"}}
		require.NoError(t, deliver(t.Context(), w, other, placed(t, order, sandbox.TokenOK)))
		err := late.step(t.Context())
		requirePermanent(t, err)
		require.ErrorContains(t, err, "would be a second charge")
		require.Equal(t, []string{tellsCaptured}, w.told(t)[order])
	})
}

func TestRequestRefund(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		w := newWorld(t, db)
		_, err := w.request.Request(t.Context(), "nope")
		require.ErrorIs(t, err, app.ErrNotFound)

		declined := events.NewID()
		require.NoError(t, deliver(t.Context(), w, w.charge, placed(t, declined, sandbox.TokenDeclined)))
		_, err = w.request.Request(t.Context(), w.payment(t, declined).ID)
		require.ErrorIs(t, err, domain.ErrInvalidTransition)

		order := events.NewID()
		require.NoError(t, deliver(t.Context(), w, w.charge, placed(t, order, sandbox.TokenOK)))
		id := w.payment(t, order).ID
		const requested = "payment.refund_requested"
		for n := range 2 {
			p, err := w.request.Request(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, domain.Refunding, p.State)
			require.Len(t, w.told(t)[order], 2+n, "a refund under way is asked for again")
		}
		for range 2 {
			require.NoError(t, deliver(t.Context(), w, w.refund, event(t, app.RefundRequested, order,
				app.RefundRequestedData{PaymentID: id, OrderID: order, Amount: price})))
		}
		p, err := w.request.Request(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, domain.Refunded, p.State)
		require.Equal(t, []string{tellsCaptured, requested, requested, tellsRefunded}, w.told(t)[order])
		require.EqualValues(t, 1, w.books(t, order).Refunded)
	})
}

// TestHandlersHoldNoTransactionWhileTheGatewayThinks: during the call another
// writer, and on SQLite there is only one, gets its turn.
func TestHandlersHoldNoTransactionWhileTheGatewayThinks(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		w := newWorld(t, db)
		order := events.NewID()
		charge := w.charge
		var wrote error
		charge.Gateway = during{Gateway: w.ledger, fn: func(ctx context.Context) {
			wrote = w.app.Tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
				p, err := w.store.LockByOrder(ctx, tx, order)
				if err != nil {
					return err
				}
				_, err = tx.ExecContext(ctx, db.Dialect.Rebind(`UPDATE payments SET updated_at = $1 WHERE id = $2`), time.Now().UnixMicro(), p.ID)
				return err
			})
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		require.NoError(t, begin(w, charge, placed(t, order, sandbox.TokenOK)).run(ctx))
		require.NoError(t, wrote)
	})
}

type during struct {
	app.Gateway
	fn func(context.Context)
}

func (d during) Charge(ctx context.Context, req app.ChargeRequest) (app.Receipt, error) {
	d.fn(ctx)
	return d.Gateway.Charge(ctx, req)
}

// A cancellation of an order that is not known asks the gateway nothing.
func TestNothingToCallEndsInTheFirstStep(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		w := newWorld(t, db)
		order := events.NewID()
		var done error
		require.NoError(t, w.app.Tx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			done = w.cancel.Prepare(ctx, tx, cancelled(t, order))
			return nil
		}))
		require.ErrorIs(t, done, framework.ErrDone)
		require.Equal(t, domain.Blocked, w.payment(t, order).State)
	})
}
