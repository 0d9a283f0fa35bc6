package inbound

import (
	"net/http"

	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/services/orders/internal/app"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

func (a api) getOrder(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	order, err := a.Read.Get(r.Context(), id)
	if err != nil {
		return err
	}
	return httpx.WriteJSON(w, http.StatusOK, orderView(order))
}

func (a api) listOrders(w http.ResponseWriter, r *http.Request) error {
	q := httpx.ParseQuery(r)
	query := app.Query{
		CustomerID: q.ID("customer_id", domain.MaxIDBytes),
		State:      httpx.OneOf(q, "state", domain.Placed, domain.Confirmed, domain.Cancelled),
		Limit:      q.Int("limit", 1, app.MaxPageSize, 0),
	}
	after := q.Cursor("cursor")
	query.After = app.Position{PlacedAt: after.At, ID: after.ID}
	if err := q.Err(); err != nil {
		return err
	}
	page, err := a.Read.List(r.Context(), query)
	if err != nil {
		return err
	}
	body := pageBody{Orders: make([]orderBody, len(page.Orders))}
	for i, o := range page.Orders {
		body.Orders[i] = orderView(o)
	}
	if page.Next != nil {
		body.NextCursor = httpx.Cursor{At: page.Next.PlacedAt, ID: page.Next.ID}.String()
	}
	return httpx.WriteJSON(w, http.StatusOK, body)
}

// pathID returns the id in the request's path. What can't be an id is not found.
func pathID(r *http.Request) (string, error) {
	id, ok := httpx.PathID(r, "id", domain.MaxIDBytes)
	if !ok {
		return "", app.ErrNotFound
	}
	return id, nil
}
