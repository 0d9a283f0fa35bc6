package inbound

import (
	"net/http"

	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

func (a api) getPayment(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	p, err := a.Read.Get(r.Context(), id)
	if err != nil {
		return err
	}
	return httpx.WriteJSON(w, http.StatusOK, paymentView(p))
}

func (a api) listPayments(w http.ResponseWriter, r *http.Request) error {
	q := httpx.ParseQuery(r)
	orderID := q.String("order_id")
	if domain.CheckOrderID(orderID) != nil {
		q.Fail("order_id", "is required: the id of the order whose payment is wanted")
	}
	if err := q.Err(); err != nil {
		return err
	}
	found, err := a.Read.ListByOrder(r.Context(), orderID)
	if err != nil {
		return err
	}
	body := pageBody{Payments: make([]paymentBody, len(found))}
	for i, p := range found {
		body.Payments[i] = paymentView(p)
	}
	return httpx.WriteJSON(w, http.StatusOK, body)
}

// pathID returns the id in the request's path. What can't be an id is not found.
func pathID(r *http.Request) (string, error) {
	// The rule of an order's id keeps out what a database may refuse.
	id, ok := httpx.PathID(r, "id", domain.MaxOrderIDLength)
	if !ok {
		return "", app.ErrNotFound
	}
	return id, nil
}
