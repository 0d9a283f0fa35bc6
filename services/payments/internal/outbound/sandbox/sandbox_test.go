package sandbox_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/payments"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/app/gatewaytest"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/sandbox"
)

var price = domain.Money{Amount: 4200, Currency: "EUR"}

func open(t *testing.T, db frameworktest.DB, change func(*sandbox.Config)) *sandbox.Gateway {
	t.Helper()
	cfg := sandbox.Config{DB: db.DB, Dialect: db.Dialect, Slow: time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	g, err := sandbox.Open(t.Context(), cfg)
	require.NoError(t, err)
	return g
}

func charge(token string) app.ChargeRequest {
	id := events.NewID()
	return app.ChargeRequest{Key: "charge:" + id, OrderID: id, Amount: price, Token: token}
}

func TestGatewayRules(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		gatewaytest.Run(t, gatewaytest.Harness{
			Gateway: open(t, db, nil),
			OK:      sandbox.TokenOK, Declined: sandbox.TokenInsufficientFunds, Flaky: sandbox.TokenFlaky, Lost: sandbox.TokenLost,
			DeclineReason: "insufficient_funds",
		})
	})
}

func TestTokens(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		g := open(t, db, func(c *sandbox.Config) { c.RetryAfter = 1234 * time.Millisecond })
		ask := func(req app.ChargeRequest) error {
			_, err := g.Charge(t.Context(), req)
			return err
		}
		t.Run("slow", func(t *testing.T) {
			require.NoError(t, ask(charge(sandbox.TokenSlow)))
		})
		t.Run("unknown", func(t *testing.T) {
			var declined *app.DeclinedError
			require.ErrorAs(t, ask(charge("tok_of_another_provider")), &declined)
			require.Equal(t, "unknown_token", declined.Reason)
		})
		t.Run("declined", func(t *testing.T) {
			var declined *app.DeclinedError
			require.ErrorAs(t, ask(charge(sandbox.TokenDeclined)), &declined)
			require.Equal(t, "declined", declined.Reason)
		})
		t.Run("flaky fails twice for each key", func(t *testing.T) {
			a, b := charge(sandbox.TokenFlaky), charge(sandbox.TokenFlaky)
			for range 2 {
				require.ErrorIs(t, ask(a), sandbox.ErrUnavailable)
				require.ErrorIs(t, ask(b), sandbox.ErrUnavailable)
			}
			require.NoError(t, ask(a))
			require.NoError(t, ask(b))
		})
		t.Run("busy asks to wait", func(t *testing.T) {
			req := charge(sandbox.TokenBusy)
			err := ask(req)
			require.ErrorIs(t, err, sandbox.ErrBusy)
			disposition, after := middleware.DispositionOf(err)
			require.Equal(t, middleware.DispositionRetry, disposition)
			require.Equal(t, 1234*time.Millisecond, after)
			require.NoError(t, ask(req))
		})
		t.Run("invalid is permanent", func(t *testing.T) {
			err := ask(charge(sandbox.TokenInvalid))
			require.ErrorIs(t, err, sandbox.ErrInvalid)
			disposition, _ := middleware.DispositionOf(err)
			require.Equal(t, middleware.DispositionPermanent, disposition)
		})
		t.Run("timeout takes nothing", func(t *testing.T) {
			hasty := open(t, db, func(c *sandbox.Config) { c.Timeout = 50 * time.Millisecond })
			req := charge(sandbox.TokenTimeout)
			_, err := hasty.Charge(t.Context(), req)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err = g.Charge(ctx, req)
			require.ErrorIs(t, err, context.Canceled)
			s, err := g.Summarize(t.Context(), req.OrderID)
			require.NoError(t, err)
			require.Equal(t, sandbox.Summary{ChargeRequests: 1, Open: 1}, s)
		})
	})
}

func TestLedgerSurvivesItsProcess(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		req := charge(sandbox.TokenOK)
		before, err := open(t, db, nil).Charge(t.Context(), req)
		require.NoError(t, err)
		g := open(t, db, nil)
		after, err := g.Charge(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, before, after)
		s, err := g.Summarize(t.Context(), "")
		require.NoError(t, err)
		require.Equal(t, sandbox.Summary{ChargeRequests: 2, Captured: 1, OrdersCharged: 1}, s)
	})
}

// TestLedgerShowsADoubleCharge is what the tests that kill the service lean on:
// a second key for one order must show.
func TestLedgerShowsADoubleCharge(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		g := open(t, db, nil)
		req := charge(sandbox.TokenOK)
		_, err := g.Charge(t.Context(), req)
		require.NoError(t, err)
		req.Key += ":again"
		_, err = g.Charge(t.Context(), req)
		require.NoError(t, err)
		_, err = g.Charge(t.Context(), charge(sandbox.TokenOK))
		require.NoError(t, err)
		s, err := g.Summarize(t.Context(), "")
		require.NoError(t, err)
		require.Equal(t, sandbox.Summary{ChargeRequests: 3, Captured: 3, OrdersCharged: 2, OrdersChargedTwice: 1}, s)
	})
}

func TestLedgerRefusesAKeyUsedForSomethingElse(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		g := open(t, db, nil)
		permanent := func(err error) {
			t.Helper()
			require.ErrorIs(t, err, sandbox.ErrInvalid)
			disposition, _ := middleware.DispositionOf(err)
			require.Equal(t, middleware.DispositionPermanent, disposition)
		}
		a, b := charge(sandbox.TokenOK), charge(sandbox.TokenOK)
		receiptA, err := g.Charge(t.Context(), a)
		require.NoError(t, err)
		receiptB, err := g.Charge(t.Context(), b)
		require.NoError(t, err)
		dearer := a
		dearer.Amount.Amount++
		_, err = g.Charge(t.Context(), dearer)
		permanent(err)

		_, err = g.Refund(t.Context(), app.RefundRequest{Key: "r0", Charge: "nope", Amount: price})
		permanent(err)
		_, err = g.Refund(t.Context(), app.RefundRequest{Key: "r1", Charge: receiptA.Reference, Amount: dearer.Amount})
		permanent(err)
		_, err = g.Refund(t.Context(), app.RefundRequest{Key: "r1", Charge: receiptA.Reference, Amount: price})
		require.NoError(t, err)
		_, err = g.Refund(t.Context(), app.RefundRequest{Key: "r1", Charge: receiptB.Reference, Amount: price})
		permanent(err)
		_, err = g.Refund(t.Context(), app.RefundRequest{Key: "r2", Charge: receiptA.Reference, Amount: price})
		permanent(err)
	})
}

func TestLedgerOverHTTP(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		g := open(t, db, nil)
		reqs := make([]app.ChargeRequest, 3)
		for i := range reqs {
			reqs[i] = charge(sandbox.TokenOK)
			_, err := g.Charge(t.Context(), reqs[i])
			require.NoError(t, err)
		}
		receipt, err := g.Charge(t.Context(), reqs[0])
		require.NoError(t, err)
		_, err = g.Refund(t.Context(), app.RefundRequest{Key: "r1", Charge: receipt.Reference, Amount: price})
		require.NoError(t, err)

		type answer struct {
			Summary   sandbox.Summary
			Charges   []sandbox.Charge
			NextAfter string `json:"next_after"`
		}
		get := func(query string) (int, answer) {
			w := httptest.NewRecorder()
			g.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/sandbox/charges"+query, nil))
			var a answer
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a))
			return w.Code, a
		}
		code, all := get("")
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, sandbox.Summary{ChargeRequests: 4, Captured: 3, Refunded: 1, OrdersCharged: 3}, all.Summary)
		require.Len(t, all.Charges, 3)
		require.Empty(t, all.NextAfter)

		var paged []sandbox.Charge
		after := ""
		for range 4 {
			_, page := get("?limit=1&after=" + after)
			paged = append(paged, page.Charges...)
			if after = page.NextAfter; after == "" {
				break
			}
		}
		require.Equal(t, all.Charges, paged)

		_, one := get("?order_id=" + reqs[0].OrderID)
		require.Len(t, one.Charges, 1)
		require.Equal(t, "refunded", one.Charges[0].State)
		require.EqualValues(t, 2, one.Charges[0].ChargeRequests)
		require.EqualValues(t, 1, one.Charges[0].RefundRequests)
		require.Equal(t, sandbox.Summary{ChargeRequests: 2, Captured: 1, Refunded: 1, OrdersCharged: 1}, one.Summary)

		_, none := get("?limit=0")
		require.Empty(t, none.Charges)
		require.EqualValues(t, 3, none.Summary.Captured)
		for _, bad := range []string{"-1", "1001", "many"} {
			code, _ := get("?limit=" + bad)
			require.Equal(t, http.StatusUnprocessableEntity, code)
		}
	})
}

func TestOpenRefusesAConfigThatCantWork(t *testing.T) {
	t.Parallel()
	_, err := sandbox.Open(t.Context(), sandbox.Config{Timeout: -1})
	require.ErrorContains(t, err, "DB is nil")
	require.ErrorContains(t, err, "unknown dialect")
	require.ErrorContains(t, err, "none may be negative")
}
