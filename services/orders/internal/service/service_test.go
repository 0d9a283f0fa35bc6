package service

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/pkg/events"
	orderevents "github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/pkg/events/payments"
	"github.com/headrace-go/headrace/services/orders/internal/testdb"
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

func data[T any](t *testing.T, e events.Envelope) T {
	t.Helper()
	var d T
	require.NoError(t, json.Unmarshal(e.Data, &d))
	return d
}

// B21, this service's part: one correlation id from the request through the
// events, and each event names its parent.
func TestOrderIsPlacedThenConfirmedByItsPayment(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		h := start(t, db)
		id, placed := h.place(header{"X-Correlation-ID", "journey-1"})
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
		}, data[orderevents.PlacedData](t, placed))
		require.Equal(t, "placed", h.get(id)["state"])

		capture := h.publish(placed, captured(id, "pay_1"))
		confirmed := h.next("order.confirmed")
		require.Equal(t, "journey-1", confirmed.Metadata.CorrelationID)
		require.Equal(t, capture.ID, confirmed.Metadata.CausationID)
		require.Equal(t, "pay_1", data[orderevents.ConfirmedData](t, confirmed).PaymentID)
		order := h.get(id)
		require.Equal(t, "confirmed", order["state"])
		require.Equal(t, "pay_1", order["payment_id"])
		require.NotEmpty(t, order["confirmed_at"])

		// The same event again, and the same fact under another id.
		h.send("payment.captured", capture)
		h.publish(placed, captured(id, "pay_1"))
		h.settled("payment.captured", "confirm-order")
		h.silent()
		require.Equal(t, order, h.get(id))
	})
}

func TestOrderIsCancelledWhenItsPaymentFails(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		h := start(t, db)
		id, placed := h.place()
		failure := h.publish(placed, failed(id, "pay_1"))
		cancelled := h.next("order.cancelled")
		require.Equal(t, failure.ID, cancelled.Metadata.CausationID)
		d := data[orderevents.CancelledData](t, cancelled)
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
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		h := start(t, db)
		id, placed := h.place()
		h.publish(placed, captured(id, "pay_1"))
		h.next("order.confirmed")

		res := h.call(http.MethodPost, "/v1/orders/"+id+"/cancel", `{"reason":"found it cheaper"}`)
		require.Equal(t, http.StatusOK, res.status, "%s", res.body)
		cancelled := h.next("order.cancelled")
		d := data[orderevents.CancelledData](t, cancelled)
		require.Equal(t, "customer_request", d.Reason)
		require.Equal(t, "confirmed", d.PreviousState)
		require.Equal(t, "pay_1", d.PaymentID)
		require.NotContains(t, string(cancelled.Data), "cheaper", "free text is not published")

		h.publish(cancelled, refunded(id, "pay_1", "ref_1"))
		h.settled("payment.refunded", "note-refund")
		order := h.get(id)
		require.Equal(t, "cancelled", order["state"])
		require.Equal(t, "ref_1", order["refund_id"])
		require.NotEmpty(t, order["refunded_at"])
		require.Equal(t, map[string]any{"by": "customer", "reason": "found it cheaper"}, order["cancellation"])

		// Cancelling again answers the same and tells nobody.
		again := h.call(http.MethodPost, "/v1/orders/"+id+"/cancel", `{"reason":"another"}`)
		require.Equal(t, http.StatusOK, again.status)
		require.Equal(t, order, again.object(t))
		h.silent()
	})
}

func TestCaptureThatCrossesTheCancellationLeavesTheOrderCancelled(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		h := start(t, db)
		id, placed := h.place()
		require.Equal(t, http.StatusOK, h.call(http.MethodPost, "/v1/orders/"+id+"/cancel", "").status)
		d := data[orderevents.CancelledData](t, h.next("order.cancelled"))
		require.Empty(t, d.PaymentID)
		require.Equal(t, "placed", d.PreviousState)

		h.publish(placed, captured(id, "pay_1"))
		h.settled("payment.captured", "confirm-order")
		h.silent()
		order := h.get(id)
		require.Equal(t, "cancelled", order["state"])
		require.Equal(t, "pay_1", order["payment_id"])
		require.NotContains(t, order, "confirmed_at")

		h.publish(placed, refunded(id, "pay_1", "ref_1"))
		h.settled("payment.refunded", "note-refund")
		require.Equal(t, "ref_1", h.get(id)["refund_id"])
	})
}

func TestWhatTheRulesRefuseIsDeadLettered(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		h := start(t, db)
		id, placed := h.place()
		h.publish(placed, captured(id, "pay_1"))
		h.next("order.confirmed")
		before := h.get(id)

		failure := h.publish(placed, failed(id, "pay_2"))
		dead := h.deadLetter("cancel-unpaid-order")
		require.Equal(t, failure.ID, dead.UUID)
		second := h.publish(placed, captured(id, "pay_2"))
		dead = h.deadLetter("confirm-order")
		require.Equal(t, second.ID, dead.UUID)
		h.publish(placed, refunded("no-such-order", "pay_1", "ref_1"))
		dead = h.deadLetter("note-refund")
		require.Equal(t, "1", dead.Metadata.Get("dead_letter_attempts"), "no retry mends it")

		require.Equal(t, before, h.get(id))
		h.silent()
	})
}

func TestIdempotencyKeyPlacesOneOrderUnderConcurrency(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		h := start(t, db)
		const senders = 8
		answers := make([]response, senders)
		var wg sync.WaitGroup
		for i := range senders {
			wg.Go(func() {
				answers[i] = h.call(http.MethodPost, "/v1/orders", orderBody, header{"Idempotency-Key", "key-1"})
			})
		}
		wg.Wait()
		first := 0
		for _, a := range answers {
			require.Equal(t, http.StatusCreated, a.status, "%s", a.body)
			require.Equal(t, string(answers[0].body), string(a.body))
			require.Equal(t, answers[0].header.Get("Location"), a.header.Get("Location"))
			if a.header.Get("Idempotency-Replayed") == "" {
				first++
			}
		}
		require.Equal(t, 1, first)
		h.next("order.placed")
		h.silent()
		page := h.call(http.MethodGet, "/v1/orders", "").object(t)
		require.Len(t, page["orders"], 1)
	})
}

func TestIdempotencyKeyAnswersTheSameLaterAndAfterARestart(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		h := start(t, db)
		key := header{"Idempotency-Key", "key-1"}
		first := h.call(http.MethodPost, "/v1/orders", orderBody, key)
		require.Equal(t, http.StatusCreated, first.status)
		h.next("order.placed")
		id := first.object(t)["id"].(string)
		require.Equal(t, http.StatusOK, h.call(http.MethodPost, "/v1/orders/"+id+"/cancel", "").status)
		h.next("order.cancelled")

		h.run() // another replica, as after a crash: nothing but the database is shared
		var spaced map[string]any
		require.NoError(t, json.Unmarshal([]byte(orderBody), &spaced))
		reordered, err := json.MarshalIndent(spaced, "", "  ")
		require.NoError(t, err)
		for _, body := range []string{orderBody, string(reordered)} {
			again := h.call(http.MethodPost, "/v1/orders", body, key)
			require.Equal(t, http.StatusCreated, again.status)
			require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
			require.Equal(t, string(first.body), string(again.body))
		}

		spaced["payment_token"] = "tok_other"
		other, err := json.Marshal(spaced)
		require.NoError(t, err)
		reused := h.call(http.MethodPost, "/v1/orders", string(other), key)
		require.Equal(t, http.StatusUnprocessableEntity, reused.status)
		require.Equal(t, "idempotency_key_reused", reused.object(t)["code"])
		h.silent()
	})
}

func TestRefusedRequestUsesUpNoKey(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		h := start(t, db)
		key := header{"Idempotency-Key", "key-1"}
		require.Equal(t, http.StatusUnprocessableEntity, h.call(http.MethodPost, "/v1/orders", `{}`, key).status)
		res := h.call(http.MethodPost, "/v1/orders", orderBody, key)
		require.Equal(t, http.StatusCreated, res.status)
		require.Empty(t, res.header.Get("Idempotency-Replayed"))
	})
}

// Cancellations and captures of the same orders at the same moment: every order
// ends cancelled with its payment known, and each fact is told once.
func TestCancelAndCaptureAtOnceLoseNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
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
					if r := h.call(http.MethodPost, "/v1/orders/"+id+"/cancel", ""); r.status != http.StatusOK {
						t.Errorf("cancel: %d %s", r.status, r.body)
					}
				})
			}
		}
		wg.Wait()
		h.settled("payment.captured", "confirm-order")
		cancels, confirms := map[string]orderevents.CancelledData{}, map[string]bool{}
		for len(cancels) < n {
			switch e := <-h.events; e.Type {
			case "order.cancelled":
				require.NotContains(t, cancels, e.Metadata.OrderingKey, "told twice")
				cancels[e.Metadata.OrderingKey] = data[orderevents.CancelledData](t, e)
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
