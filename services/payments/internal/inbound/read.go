package inbound

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

func (a api) getPayment(w http.ResponseWriter, r *http.Request) {
	id, ok := pathID(w, r)
	if !ok {
		return
	}
	p, err := a.Read.Get(r.Context(), id)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, paymentView(p))
}

func (a api) listPayments(w http.ResponseWriter, r *http.Request) {
	orderID := r.URL.Query().Get("order_id")
	if domain.CheckOrderID(orderID) != nil {
		writeProblem(w, problem{
			Status: http.StatusUnprocessableEntity, Code: codeInvalid, Detail: "the query can't be used",
			Errors: []fieldError{{Field: "order_id", Code: "invalid", Message: "is required: the id of the order whose payment is wanted"}},
		})
		return
	}
	found, err := a.Read.ListByOrder(r.Context(), orderID)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	body := pageBody{Payments: make([]paymentBody, len(found))}
	for i, p := range found {
		body.Payments[i] = paymentView(p)
	}
	writeJSON(w, http.StatusOK, body)
}

// pathID returns the id in the request's path. What can't be an id is not found.
func pathID(w http.ResponseWriter, r *http.Request) (string, bool) {
	id := chi.URLParam(r, "id")
	// The rule of an order's id keeps out what a database may refuse.
	if domain.CheckOrderID(id) != nil {
		writeProblem(w, problem{Status: http.StatusNotFound, Code: codeNotFound, Detail: "no payment has this id"})
		return "", false
	}
	return id, true
}
