// Package gatewaytest holds the rules of app.Gateway that every gateway must
// keep, as one suite. It is for tests.
package gatewaytest

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// Harness is a gateway under test with the payment tokens that make it act.
type Harness struct {
	Gateway app.Gateway
	// OK is captured, Declined is declined with DeclineReason, Flaky fails at
	// least once for each key before it is captured, Lost is captured with its
	// first answer lost.
	OK, Declined, Flaky, Lost string
	DeclineReason             string
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	t.Helper()
	g := h.Gateway
	price := domain.Money{Amount: 4200, Currency: "EUR"}
	charge := func(token string) app.ChargeRequest {
		id := events.NewID()
		return app.ChargeRequest{Key: "charge:" + id, OrderID: id, Amount: price, Token: token}
	}
	refundOf := func(req app.ChargeRequest, r app.Receipt) app.RefundRequest {
		return app.RefundRequest{Key: "refund:" + req.OrderID, Charge: r.Reference, Amount: req.Amount}
	}

	t.Run("one key, one charge", func(t *testing.T) {
		t.Parallel()
		req := charge(h.OK)
		first, err := g.Charge(t.Context(), req)
		require.NoError(t, err)
		require.NotEmpty(t, first.Reference)
		again, err := g.Charge(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, first, again)
		other, err := g.Charge(t.Context(), charge(h.OK))
		require.NoError(t, err)
		require.NotEqual(t, first, other)
	})
	t.Run("one key at the same moment, one charge", func(t *testing.T) {
		t.Parallel()
		req := charge(h.OK)
		receipts, errs := atOnce(8, func() (app.Receipt, error) { return g.Charge(t.Context(), req) })
		for i := range receipts {
			require.NoError(t, errs[i])
			require.Equal(t, receipts[0], receipts[i])
		}
	})
	t.Run("a decline stays a decline", func(t *testing.T) {
		t.Parallel()
		req := charge(h.Declined)
		for range 2 {
			_, err := g.Charge(t.Context(), req)
			var declined *app.DeclinedError
			require.ErrorAs(t, err, &declined)
			require.Equal(t, h.DeclineReason, declined.Reason)
		}
		_, captured, err := g.Void(t.Context(), req.Key)
		require.NoError(t, err)
		require.False(t, captured)
	})
	t.Run("an unknown outcome is asked again", func(t *testing.T) {
		t.Parallel()
		for _, token := range []string{h.Flaky, h.Lost} {
			req := charge(token)
			_, err := g.Charge(t.Context(), req)
			require.Error(t, err)
			var declined *app.DeclinedError
			require.NotErrorAs(t, err, &declined)
			receipt := untilNil(t, func() (app.Receipt, error) { return g.Charge(t.Context(), req) })
			again, err := g.Charge(t.Context(), req)
			require.NoError(t, err)
			require.Equal(t, receipt, again)
		}
	})
	t.Run("a voided key is never charged", func(t *testing.T) {
		t.Parallel()
		req := charge(h.OK)
		for range 2 {
			_, captured, err := g.Void(t.Context(), req.Key)
			require.NoError(t, err)
			require.False(t, captured)
		}
		for range 2 {
			_, err := g.Charge(t.Context(), req)
			require.ErrorIs(t, err, app.ErrVoided)
		}
	})
	t.Run("a void that comes too late tells of the charge", func(t *testing.T) {
		t.Parallel()
		req := charge(h.OK)
		receipt, err := g.Charge(t.Context(), req)
		require.NoError(t, err)
		for range 2 {
			found, captured, err := g.Void(t.Context(), req.Key)
			require.NoError(t, err)
			require.True(t, captured)
			require.Equal(t, receipt, found)
		}
		_, err = g.Refund(t.Context(), refundOf(req, receipt))
		require.NoError(t, err)
		found, captured, err := g.Void(t.Context(), req.Key)
		require.NoError(t, err)
		require.True(t, captured, "also after the refund, so that a repeated void ends at the same refund")
		require.Equal(t, receipt, found)
	})
	t.Run("a void learns of a charge whose answer was lost", func(t *testing.T) {
		t.Parallel()
		req := charge(h.Lost)
		_, err := g.Charge(t.Context(), req)
		require.Error(t, err)
		receipt, captured, err := g.Void(t.Context(), req.Key)
		require.NoError(t, err)
		require.True(t, captured)
		_, err = g.Refund(t.Context(), refundOf(req, receipt))
		require.NoError(t, err)
	})
	t.Run("charge and void at the same moment agree", func(t *testing.T) {
		t.Parallel()
		for range 10 {
			req := charge(h.OK)
			var captured bool
			var voidErr error
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, captured, voidErr = g.Void(context.WithoutCancel(t.Context()), req.Key)
			}()
			_, err := g.Charge(t.Context(), req)
			<-done
			require.NoError(t, voidErr)
			if captured {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, app.ErrVoided)
			}
		}
	})
	t.Run("one key, one refund", func(t *testing.T) {
		t.Parallel()
		req := charge(h.OK)
		receipt, err := g.Charge(t.Context(), req)
		require.NoError(t, err)
		refunds, errs := atOnce(8, func() (app.Receipt, error) { return g.Refund(t.Context(), refundOf(req, receipt)) })
		for i := range refunds {
			require.NoError(t, errs[i])
			require.NotEmpty(t, refunds[i].Reference)
			require.Equal(t, refunds[0], refunds[i])
		}
		again, err := g.Charge(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, receipt, again, "a refunded charge is not charged again")
	})
}

func atOnce(n int, fn func() (app.Receipt, error)) ([]app.Receipt, []error) {
	receipts, errs := make([]app.Receipt, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { receipts[i], errs[i] = fn() })
	}
	wg.Wait()
	return receipts, errs
}

// untilNil repeats fn a few times at most.
func untilNil(t *testing.T, fn func() (app.Receipt, error)) app.Receipt {
	t.Helper()
	var err error
	for range 5 {
		var r app.Receipt
		if r, err = fn(); err == nil {
			return r
		}
	}
	require.NoError(t, err, "after five more requests")
	return app.Receipt{}
}
