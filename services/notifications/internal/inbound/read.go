package inbound

import (
	"net/http"

	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

const maxIDBytes = 128

func (a api) getNotification(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	n, err := a.Read.Get(r.Context(), id)
	if err != nil {
		return err
	}
	return httpx.WriteJSON(w, http.StatusOK, notificationView(n))
}

func (a api) listNotifications(w http.ResponseWriter, r *http.Request) error {
	q := httpx.ParseQuery(r)
	query := app.Query{
		OrderID: q.ID("order_id", maxIDBytes),
		State:   httpx.OneOf(q, "state", domain.States()...),
		Limit:   q.Int("limit", 1, app.MaxPageSize, 0),
	}
	before := q.Cursor("cursor")
	query.Before = app.Position{CreatedAt: before.At, ID: before.ID}
	if err := q.Err(); err != nil {
		return err
	}
	page, err := a.Read.List(r.Context(), query)
	if err != nil {
		return err
	}
	body := pageBody{Notifications: make([]notificationBody, len(page.Notifications))}
	for i, n := range page.Notifications {
		body.Notifications[i] = notificationView(n)
	}
	if page.Next != nil {
		body.NextCursor = httpx.Cursor{At: page.Next.CreatedAt, ID: page.Next.ID}.String()
	}
	return httpx.WriteJSON(w, http.StatusOK, body)
}

// pathID returns the id in the request's path. What can't be an id is not found.
func pathID(r *http.Request) (string, error) {
	id, ok := httpx.PathID(r, "id", maxIDBytes)
	if !ok {
		return "", app.ErrNotFound
	}
	return id, nil
}
