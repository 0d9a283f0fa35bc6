package service

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/frameworktest/apitest"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/payments"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/sandbox"
)

// B21, this service's part: the correlation id goes on, and each event names its
// parent.
func TestPlacedOrderIsChargedOnce(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db, nil)
		order, placed := h.place(sandbox.TokenOK)
		captured := h.next("payment.captured")
		require.Equal(t, "journey-"+order, captured.Metadata.CorrelationID)
		require.Equal(t, placed.ID, captured.Metadata.CausationID)
		require.Equal(t, order, captured.Metadata.OrderingKey)
		p := h.payment(order)
		require.Equal(t, "captured", p["state"])
		require.NotEmpty(t, p["captured_at"])
		require.Equal(t, payments.CapturedData{
			OrderID: order, PaymentID: p["id"].(string), Amount: total, Reference: p["reference"].(string),
		}, frameworktest.Data[payments.CapturedData](t, captured))

		// The same event again, and the same order in another event.
		h.Send("order.placed", placed)
		h.publish(placedDraft(order, sandbox.TokenOK))
		h.Settled("order.placed", Name+".charge-order")
		h.events.Silent()
		require.Equal(t, p, h.payment(order))
		require.Equal(t, sandbox.Summary{ChargeRequests: 1, Captured: 1, OrdersCharged: 1}, h.ledger(order))
	})
}

// TestDecline: a decline is a fact and no failure of the handler.
func TestDecline(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db, nil)
		for token, reason := range map[string]string{
			sandbox.TokenDeclined: "declined", sandbox.TokenInsufficientFunds: "insufficient_funds", "tok_nobody_knows": "unknown_token",
		} {
			order, placed := h.place(token)
			failed := h.next("payment.failed")
			require.Equal(t, placed.ID, failed.Metadata.CausationID)
			p := h.payment(order)
			require.Equal(t, "failed", p["state"])
			require.Equal(t, reason, p["failure_reason"])
			require.Equal(t, payments.FailedData{OrderID: order, PaymentID: p["id"].(string), Amount: total, Reason: reason},
				frameworktest.Data[payments.FailedData](t, failed))
			// The orders service cancels an order that is not paid: nothing is owed.
			h.cancel(order)
			h.Settled("order.cancelled", Name+".refund-order")
			require.Equal(t, sandbox.Summary{ChargeRequests: 1, Declined: 1}, h.ledger(order))
		}
		h.events.Silent()
		require.Empty(t, h.DeadLetters(Name+".charge-order"))
	})
}

// TestUnreliableGateway: whatever happens on the way, the end is one charge.
func TestUnreliableGateway(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db, nil)
		for token, requests := range map[string]int64{
			sandbox.TokenFlaky: 3, sandbox.TokenLost: 2, sandbox.TokenBusy: 2, sandbox.TokenSlow: 1,
		} {
			order, _ := h.place(token)
			require.Equal(t, order, h.next("payment.captured").Metadata.OrderingKey)
			require.Equal(t, sandbox.Summary{ChargeRequests: requests, Captured: 1, OrdersCharged: 1}, h.ledger(order), token)
		}
		h.events.Silent()
	})
}

func TestCancelledOrders(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db, nil)
		t.Run("after the capture", func(t *testing.T) {
			order, _ := h.place(sandbox.TokenOK)
			h.next("payment.captured")
			cancelled := h.cancel(order)
			refunded := h.next("payment.refunded")
			require.Equal(t, cancelled.ID, refunded.Metadata.CausationID)
			require.Equal(t, "journey-"+order, refunded.Metadata.CorrelationID)
			p := h.payment(order)
			require.Equal(t, "refunded", p["state"])
			require.Equal(t, payments.RefundedData{
				OrderID: order, PaymentID: p["id"].(string), RefundID: p["refund_id"].(string), Amount: total,
				Reference: p["refund_reference"].(string),
			}, frameworktest.Data[payments.RefundedData](t, refunded))
			h.Send("order.cancelled", cancelled)
			h.cancel(order)
			h.Settled("order.cancelled", Name+".refund-order")
			h.events.Silent()
			require.Equal(t, p, h.payment(order))
			require.Equal(t, sandbox.Summary{ChargeRequests: 1, Captured: 1, Refunded: 1, OrdersCharged: 1}, h.ledger(order))
		})
		t.Run("before the charge", func(t *testing.T) {
			order := "ord_" + events.NewID()
			h.cancel(order)
			h.Settled("order.cancelled", Name+".refund-order")
			require.Equal(t, "blocked", h.payment(order)["state"])
			h.publish(placedDraft(order, sandbox.TokenOK))
			failed := h.next("payment.failed")
			require.Equal(t, "order_cancelled", frameworktest.Data[payments.FailedData](t, failed).Reason)
			require.Equal(t, "failed", h.payment(order)["state"])
			require.Equal(t, sandbox.Summary{}, h.ledger(order))
			h.events.Silent()
		})
	})
}

// held is a gateway whose next charge stops where the test wants it to.
type held struct {
	app.Gateway
	mu sync.Mutex
	// before and after, where set, run before and after the charge reached the
	// sandbox; an error is what the service gets to see.
	before, after func(context.Context) error
}

func (g *held) hooks() (before, after func(context.Context) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before, after = g.before, g.after
	g.before, g.after = nil, nil
	return before, after
}

func (g *held) books(t *testing.T, orderID string) sandbox.Summary {
	t.Helper()
	s, err := g.Gateway.(*sandbox.Gateway).Summarize(t.Context(), orderID)
	require.NoError(t, err)
	return s
}

func (g *held) set(before, after func(context.Context) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.before, g.after = before, after
}

func (g *held) Charge(ctx context.Context, req app.ChargeRequest) (app.Receipt, error) {
	before, after := g.hooks()
	if before != nil {
		if err := before(ctx); err != nil {
			return app.Receipt{}, err
		}
	}
	r, err := g.Gateway.Charge(ctx, req)
	if after != nil {
		if err := after(ctx); err != nil {
			return app.Receipt{}, err
		}
	}
	return r, err
}

// TestCancellationDuringTheCharge stops the charge at the gateway's door and
// behind it while the cancellation is handled from end to end.
func TestCancellationDuringTheCharge(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		gateway := &held{}
		h := start(t, db, func(s *sandbox.Gateway) app.Gateway {
			gateway.Gateway = s
			return gateway
		})
		stopAt := func(place func(func(context.Context) error)) (arrived, goOn chan struct{}) {
			arrived, goOn = make(chan struct{}), make(chan struct{})
			place(func(ctx context.Context) error {
				close(arrived)
				select {
				case <-goOn:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			return arrived, goOn
		}
		t.Run("before the gateway was asked", func(t *testing.T) {
			arrived, goOn := stopAt(func(hook func(context.Context) error) { gateway.set(hook, nil) })
			order, _ := h.place(sandbox.TokenOK)
			<-arrived
			h.cancel(order)
			require.Equal(t, "order_cancelled", frameworktest.Data[payments.FailedData](t, h.next("payment.failed")).Reason)
			close(goOn)
			h.Settled("order.placed", Name+".charge-order")
			h.events.Silent()
			require.Equal(t, "failed", h.payment(order)["state"])
			s := gateway.books(t, order)
			require.Zero(t, s.Captured)
			require.EqualValues(t, 1, s.ChargeRequests, "the charge came, and was refused as voided")
		})
		t.Run("after the gateway took the money", func(t *testing.T) {
			arrived, goOn := stopAt(func(hook func(context.Context) error) { gateway.set(nil, hook) })
			order, _ := h.place(sandbox.TokenOK)
			<-arrived
			h.cancel(order)
			h.events.All("payment.captured", "payment.refunded")
			close(goOn)
			h.Settled("order.placed", Name+".charge-order")
			h.events.Silent()
			require.Equal(t, "refunded", h.payment(order)["state"])
			s := gateway.books(t, order)
			require.EqualValues(t, 1, s.Captured)
			require.EqualValues(t, 1, s.Refunded)
		})
		t.Run("after the process lost the answer", func(t *testing.T) {
			// A crash between the charge and its commit looks like this to the
			// books: captured at the gateway, pending here.
			arrived := make(chan struct{})
			gateway.set(nil, func(ctx context.Context) error {
				close(arrived)
				return errors.New("the answer is lost")
			})
			order, _ := h.place(sandbox.TokenOK)
			<-arrived
			h.cancel(order)
			h.events.All("payment.captured", "payment.refunded")
			h.Settled("order.placed", Name+".charge-order")
			h.Settled("order.cancelled", Name+".refund-order")
			h.events.Silent()
			require.Equal(t, "refunded", h.payment(order)["state"])
			s := gateway.books(t, order)
			require.EqualValues(t, 1, s.Captured)
			require.EqualValues(t, 1, s.Refunded)
		})
	})
}

func TestRefundByHand(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db, nil)
		order, _ := h.place(sandbox.TokenOK)
		h.next("payment.captured")
		path := "/v1/payments/" + h.payment(order)["id"].(string) + "/refund"

		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				res := h.Call(http.MethodPost, path, "", apitest.With("X-Correlation-ID", "by-hand-1"))
				if res.Status != http.StatusAccepted && res.Status != http.StatusOK {
					t.Errorf("refund: %d %s", res.Status, res.Body)
				}
			})
		}
		wg.Wait()
		require.Equal(t, "by-hand-1", h.next("payment.refunded").Metadata.CorrelationID)
		h.Settled("payment.refund_requested", Name+".refund-payment")
		h.events.Silent()
		res := h.Call(http.MethodPost, path, "")
		require.Equal(t, http.StatusOK, res.Status)
		require.Equal(t, "refunded", res.Object(t)["state"])
		// The order is cancelled in the end: nothing is given back twice.
		h.cancel(order)
		h.Settled("order.cancelled", Name+".refund-order")
		h.events.Silent()
		require.Equal(t, sandbox.Summary{ChargeRequests: 1, Captured: 1, Refunded: 1, OrdersCharged: 1}, h.ledger(order))
	})
}

func TestWhatNoRetryMendsIsDeadLettered(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db, nil)
		t.Run("a second placing with another amount", func(t *testing.T) {
			order, _ := h.place(sandbox.TokenOK)
			h.next("payment.captured")
			before := h.payment(order)
			dearer := placedData(order, sandbox.TokenOK)
			dearer.Total.Amount++
			e := h.publish(placedOf(dearer))
			h.deadLettered("charge-order", e.ID)
			require.Equal(t, before, h.payment(order))
		})
		t.Run("an amount that can't be charged", func(t *testing.T) {
			free := placedData("ord_"+events.NewID(), sandbox.TokenOK)
			free.Total.Amount = 0
			e := h.publish(placedOf(free))
			h.deadLettered("charge-order", e.ID)
		})
		t.Run("a request that the gateway refuses", func(t *testing.T) {
			order, placed := h.place(sandbox.TokenInvalid)
			dead := h.deadLettered("charge-order", placed.ID)
			require.Equal(t, "1", dead.Message.Metadata.Get("dead_letter_attempts"))
			require.Equal(t, "pending", h.payment(order)["state"])
			// The dead charge leaves nothing open once the order is given up.
			h.cancel(order)
			require.Equal(t, "order_cancelled", frameworktest.Data[payments.FailedData](t, h.next("payment.failed")).Reason)
		})
		h.events.Silent()
	})
}
