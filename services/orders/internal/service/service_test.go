package service

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/frameworktest/apitest"
	"github.com/headrace-go/headrace/pkg/events"
	orderevents "github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/pkg/events/payments"
)

var total = events.Money{Amount: 2797, Currency: "EUR"}

func captured(order, payment string) events.Draft {
	return payments.Captured.New(order, payments.CapturedData{OrderID: order, PaymentID: payment, Amount: total, Reference: "ch_1"})
}

func failed(order, payment string) events.Draft {
	return payments.Failed.New(order, payments.FailedData{OrderID: order, PaymentID: payment, Amount: total, Reason: "declined"})
}

func refunded(order, payment, refund string) events.Draft {
	return payments.Refunded.New(order, payments.RefundedData{OrderID: order, PaymentID: payment, RefundID: refund, Amount: total, Reference: "re_1"})
}

// B21, this service's part: one correlation id from the request through the
// events, and each event names its parent.
func TestOrderIsPlacedThenConfirmedByItsPayment(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db)
		id, placed := h.place(apitest.With("X-Correlation-ID", "journey-1"))
		require.Equal(t, "journey-1", placed.Metadata.CorrelationID)
		require.Equal(t, id, placed.Metadata.OrderingKey)
		require.Equal(t, orderevents.PlacedData{
			OrderID:  id,
			Customer: orderevents.Customer{ID: "cus_1", Email: "ada@example.com", Phone: "+441632960961", Language: "en"},
			Lines: []orderevents.Line{
				{SKU: "BOOK", Quantity: 2, UnitPrice: events.Money{Amount: 1250, Currency: "EUR"}},
				{SKU: "PEN", Quantity: 3, UnitPrice: events.Money{Amount: 99, Currency: "EUR"}},
			},
			Total: total, PaymentToken: "tok_ok",
		}, frameworktest.Data[orderevents.PlacedData](t, placed))
		require.Equal(t, "placed", h.get(id)["state"])

		capture := h.publish(placed, captured(id, "pay_1"))
		confirmed := h.next("order.confirmed")
		require.Equal(t, "journey-1", confirmed.Metadata.CorrelationID)
		require.Equal(t, capture.ID, confirmed.Metadata.CausationID)
		require.Equal(t, "pay_1", frameworktest.Data[orderevents.ConfirmedData](t, confirmed).PaymentID)
		order := h.get(id)
		require.Equal(t, "confirmed", order["state"])
		require.Equal(t, "pay_1", order["payment_id"])
		require.NotEmpty(t, order["confirmed_at"])

		// The same event again, and the same fact under another id.
		h.Send("payment.captured", capture)
		h.publish(placed, captured(id, "pay_1"))
		h.Settled("payment.captured", Name+".confirm-order")
		h.events.Silent()
		require.Equal(t, order, h.get(id))
	})
}

func TestOrderIsCancelledWhenItsPaymentFails(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db)
		id, placed := h.place()
		failure := h.publish(placed, failed(id, "pay_1"))
		cancelled := h.next("order.cancelled")
		require.Equal(t, failure.ID, cancelled.Metadata.CausationID)
		d := frameworktest.Data[orderevents.CancelledData](t, cancelled)
		require.Equal(t, "payment_failed", d.Reason)
		require.Equal(t, "placed", d.PreviousState)
		require.Empty(t, d.PaymentID)
		order := h.get(id)
		require.Equal(t, "cancelled", order["state"])
		require.Equal(t, map[string]any{"by": "payment", "reason": "declined"}, order["cancellation"])
	})
}

func TestConfirmedOrderIsCancelledAndRefunded(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db)
		id, placed := h.place()
		h.publish(placed, captured(id, "pay_1"))
		h.next("order.confirmed")

		res := h.Call(http.MethodPost, "/v1/orders/"+id+"/cancel", `{"reason":"found it cheaper"}`)
		require.Equal(t, http.StatusOK, res.Status, "%s", res.Body)
		cancelled := h.next("order.cancelled")
		d := frameworktest.Data[orderevents.CancelledData](t, cancelled)
		require.Equal(t, "customer_request", d.Reason)
		require.Equal(t, "confirmed", d.PreviousState)
		require.Equal(t, "pay_1", d.PaymentID)
		require.NotContains(t, string(cancelled.Data), "cheaper", "free text is not published")

		h.publish(cancelled, refunded(id, "pay_1", "ref_1"))
		h.Settled("payment.refunded", Name+".note-refund")
		order := h.get(id)
		require.Equal(t, "cancelled", order["state"])
		require.Equal(t, "ref_1", order["refund_id"])
		require.NotEmpty(t, order["refunded_at"])
		require.Equal(t, map[string]any{"by": "customer", "reason": "found it cheaper"}, order["cancellation"])

		// Cancelling again answers the same and tells nobody.
		again := h.Call(http.MethodPost, "/v1/orders/"+id+"/cancel", `{"reason":"another"}`)
		require.Equal(t, http.StatusOK, again.Status)
		require.Equal(t, order, again.Object(t))
		h.events.Silent()
	})
}

// Payments can be asked to give the money back while the order stands. Its word may
// overtake that of the capture.
func TestConfirmedOrderIsRefundedByHand(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db)
		id, placed := h.place()
		early := h.publish(placed, refunded(id, "pay_1", "ref_1"))
		other, otherPlaced := h.place()
		h.publish(otherPlaced, captured(other, "pay_2"))
		h.next("order.confirmed")
		h.publish(otherPlaced, refunded(other, "pay_2", "ref_2"))
		require.Eventually(t, func() bool { return h.get(other)["refund_id"] == "ref_2" }, frameworktest.Timeout, 5*time.Millisecond)
		order := h.get(other)
		require.Equal(t, "confirmed", order["state"])
		require.NotEmpty(t, order["refunded_at"])
		require.NotContains(t, h.get(id), "refund_id", "its capture is not known yet")

		h.publish(placed, captured(id, "pay_1"))
		h.next("order.confirmed")
		h.Settled("payment.refunded", Name+".note-refund")
		require.Equal(t, "ref_1", h.get(id)["refund_id"])
		h.Send("payment.refunded", early)
		h.events.Silent()
		require.Empty(t, h.DeadLetters(Name+".note-refund"))
	})
}

func TestCaptureThatCrossesTheCancellationLeavesTheOrderCancelled(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db)
		id, placed := h.place()
		require.Equal(t, http.StatusOK, h.Call(http.MethodPost, "/v1/orders/"+id+"/cancel", "").Status)
		d := frameworktest.Data[orderevents.CancelledData](t, h.next("order.cancelled"))
		require.Empty(t, d.PaymentID)
		require.Equal(t, "placed", d.PreviousState)

		h.publish(placed, captured(id, "pay_1"))
		h.Settled("payment.captured", Name+".confirm-order")
		h.events.Silent()
		order := h.get(id)
		require.Equal(t, "cancelled", order["state"])
		require.Equal(t, "pay_1", order["payment_id"])
		require.NotContains(t, order, "confirmed_at")

		h.publish(placed, refunded(id, "pay_1", "ref_1"))
		h.Settled("payment.refunded", Name+".note-refund")
		require.Equal(t, "ref_1", h.get(id)["refund_id"])
	})
}

func TestWhatTheRulesRefuseIsDeadLettered(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db)
		id, placed := h.place()
		h.publish(placed, captured(id, "pay_1"))
		h.next("order.confirmed")
		before := h.get(id)

		failure := h.publish(placed, failed(id, "pay_2"))
		dead := h.AwaitDeadLetter(Name+".cancel-unpaid-order", nil).Message
		require.Equal(t, failure.ID, dead.UUID)
		second := h.publish(placed, captured(id, "pay_2"))
		dead = h.AwaitDeadLetter(Name+".confirm-order", nil).Message
		require.Equal(t, second.ID, dead.UUID)
		h.publish(placed, refunded("no-such-order", "pay_1", "ref_1"))
		dead = h.AwaitDeadLetter(Name+".note-refund", nil).Message
		require.Equal(t, "1", dead.Metadata.Get("dead_letter_attempts"), "no retry mends it")

		require.Equal(t, before, h.get(id))
		h.events.Silent()
	})
}

func TestIdempotencyKeyPlacesOneOrderUnderConcurrency(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db)
		const senders = 8
		answers := make([]apitest.Response, senders)
		var wg sync.WaitGroup
		for i := range senders {
			wg.Go(func() {
				answers[i] = h.Call(http.MethodPost, "/v1/orders", orderBody, apitest.With("Idempotency-Key", "key-1"))
			})
		}
		wg.Wait()
		first := 0
		for _, a := range answers {
			require.Equal(t, http.StatusCreated, a.Status, "%s", a.Body)
			require.Equal(t, string(answers[0].Body), string(a.Body))
			require.Equal(t, answers[0].Header.Get("Location"), a.Header.Get("Location"))
			if a.Header.Get("Idempotency-Replayed") == "" {
				first++
			}
		}
		require.Equal(t, 1, first)
		h.next("order.placed")
		h.events.Silent()
		page := h.Call(http.MethodGet, "/v1/orders", "").Object(t)
		require.Len(t, page["orders"], 1)
	})
}

func TestIdempotencyKeyAnswersTheSameLaterAndAfterARestart(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db)
		key := apitest.With("Idempotency-Key", "key-1")
		first := h.Call(http.MethodPost, "/v1/orders", orderBody, key)
		require.Equal(t, http.StatusCreated, first.Status)
		h.next("order.placed")
		id := first.Object(t)["id"].(string)
		require.Equal(t, http.StatusOK, h.Call(http.MethodPost, "/v1/orders/"+id+"/cancel", "").Status)
		h.next("order.cancelled")

		h.Client = h.At(h.run()) // another replica, as after a crash: nothing but the database is shared
		var spaced map[string]any
		require.NoError(t, json.Unmarshal([]byte(orderBody), &spaced))
		reordered, err := json.MarshalIndent(spaced, "", "  ")
		require.NoError(t, err)
		for _, body := range []string{orderBody, string(reordered)} {
			again := h.Call(http.MethodPost, "/v1/orders", body, key)
			require.Equal(t, http.StatusCreated, again.Status)
			require.Equal(t, "true", again.Header.Get("Idempotency-Replayed"))
			require.Equal(t, string(first.Body), string(again.Body))
		}

		spaced["payment_token"] = "tok_other"
		other, err := json.Marshal(spaced)
		require.NoError(t, err)
		reused := h.Call(http.MethodPost, "/v1/orders", string(other), key)
		require.Equal(t, http.StatusUnprocessableEntity, reused.Status)
		require.Equal(t, "idempotency_key_reused", reused.Object(t)["code"])
		h.events.Silent()
	})
}

func TestRefusedRequestUsesUpNoKey(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db)
		key := apitest.With("Idempotency-Key", "key-1")
		require.Equal(t, http.StatusUnprocessableEntity, h.Call(http.MethodPost, "/v1/orders", `{}`, key).Status)
		res := h.Call(http.MethodPost, "/v1/orders", orderBody, key)
		require.Equal(t, http.StatusCreated, res.Status)
		require.Empty(t, res.Header.Get("Idempotency-Replayed"))
	})
}

// Cancellations and captures of the same orders at the same moment: every order
// ends cancelled with its payment known, and each fact is told once.
func TestCancelAndCaptureAtOnceLoseNothing(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db)
		const n = 12
		ids := make([]string, n)
		placed := make([]events.Envelope, n)
		for i := range n {
			ids[i], placed[i] = h.place()
		}
		var wg sync.WaitGroup
		for i, id := range ids {
			wg.Go(func() { h.publish(placed[i], captured(id, fmt.Sprint("pay_", i))) })
			for range 2 {
				wg.Go(func() {
					if r := h.Call(http.MethodPost, "/v1/orders/"+id+"/cancel", ""); r.Status != http.StatusOK {
						t.Errorf("cancel: %d %s", r.Status, r.Body)
					}
				})
			}
		}
		wg.Wait()
		h.Settled("payment.captured", Name+".confirm-order")
		cancels, confirms := map[string]orderevents.CancelledData{}, map[string]bool{}
		for len(cancels) < n {
			switch e := h.events.Any(); e.Type {
			case "order.cancelled":
				require.NotContains(t, cancels, e.Metadata.OrderingKey, "told twice")
				cancels[e.Metadata.OrderingKey] = frameworktest.Data[orderevents.CancelledData](t, e)
			case "order.confirmed":
				require.False(t, confirms[e.Metadata.OrderingKey], "told twice")
				confirms[e.Metadata.OrderingKey] = true
			}
		}
		for i, id := range ids {
			order := h.get(id)
			require.Equal(t, "cancelled", order["state"])
			require.Equal(t, fmt.Sprint("pay_", i), order["payment_id"])
			if cancels[id].PreviousState == "confirmed" {
				require.Equal(t, fmt.Sprint("pay_", i), cancels[id].PaymentID)
			} else {
				require.Empty(t, cancels[id].PaymentID)
				require.False(t, confirms[id], "an order cancelled from placed was never confirmed")
			}
		}
	})
}
