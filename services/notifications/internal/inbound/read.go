package inbound

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

const maxIDBytes = 128

func (a api) getNotification(w http.ResponseWriter, r *http.Request) {
	id, ok := pathID(w, r)
	if !ok {
		return
	}
	n, err := a.Read.Get(r.Context(), id)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, notificationView(n))
}

func (a api) listNotifications(w http.ResponseWriter, r *http.Request) {
	q, faults := parseQuery(r)
	if len(faults) > 0 {
		writeProblem(w, problem{
			Status: http.StatusUnprocessableEntity, Code: codeInvalid, Detail: "the query can't be used", Errors: faults,
		})
		return
	}
	page, err := a.Read.List(r.Context(), q)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	body := pageBody{Notifications: make([]notificationBody, len(page.Notifications))}
	for i, n := range page.Notifications {
		body.Notifications[i] = notificationView(n)
	}
	if page.Next != nil {
		body.NextCursor = encodeCursor(*page.Next)
	}
	writeJSON(w, http.StatusOK, body)
}

func parseQuery(r *http.Request) (app.Query, []fieldError) {
	var faults []fieldError
	bad := func(field, message string) {
		faults = append(faults, fieldError{Field: field, Code: "invalid", Message: message})
	}
	values := r.URL.Query()
	q := app.Query{OrderID: values.Get("order_id"), State: domain.State(values.Get("state"))}
	if q.OrderID != "" && !validID(q.OrderID) {
		bad("order_id", "must be printable ASCII without blanks, of at most "+strconv.Itoa(maxIDBytes)+" bytes")
	}
	if q.State != "" && !q.State.Valid() {
		bad("state", "must be pending, sending, sent, failed or unknown")
	}
	if s := values.Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > app.MaxPageSize {
			bad("limit", "must be a number from 1 to "+strconv.Itoa(app.MaxPageSize))
		}
		q.Limit = n
	}
	if s := values.Get("cursor"); s != "" {
		before, ok := decodeCursor(s)
		if !ok {
			bad("cursor", "must be the next_cursor of an earlier page")
		}
		q.Before = before
	}
	return q, faults
}

// A cursor is opaque to clients; the leading "1" is its version.
func encodeCursor(p app.Position) string {
	return base64.RawURLEncoding.EncodeToString([]byte("1." + strconv.FormatInt(p.CreatedAt.UnixMicro(), 10) + "." + p.ID))
}

func decodeCursor(s string) (app.Position, bool) {
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return app.Position{}, false
	}
	rest, ok := strings.CutPrefix(string(raw), "1.")
	if !ok {
		return app.Position{}, false
	}
	at, id, ok := strings.Cut(rest, ".")
	us, err := strconv.ParseInt(at, 10, 64)
	if !ok || err != nil || !validID(id) {
		return app.Position{}, false
	}
	return app.Position{CreatedAt: time.UnixMicro(us).UTC(), ID: id}, true
}

// pathID returns the id in the request's path. What can't be an id is not found.
func pathID(w http.ResponseWriter, r *http.Request) (string, bool) {
	id := chi.URLParam(r, "id")
	if !validID(id) {
		writeProblem(w, notFound)
		return "", false
	}
	return id, true
}

// validID keeps out what no id of ours contains and a database may refuse.
func validID(id string) bool {
	if id == "" || len(id) > maxIDBytes {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] >= 0x7f {
			return false
		}
	}
	return true
}
