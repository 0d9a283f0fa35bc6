package inbound

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/headrace-go/headrace/services/orders/internal/app"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

func (a api) getOrder(w http.ResponseWriter, r *http.Request) {
	id, ok := pathID(w, r)
	if !ok {
		return
	}
	order, err := a.Read.Get(r.Context(), id)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, orderView(order))
}

func (a api) listOrders(w http.ResponseWriter, r *http.Request) {
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
	body := pageBody{Orders: make([]orderBody, len(page.Orders))}
	for i, o := range page.Orders {
		body.Orders[i] = orderView(o)
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
	q := app.Query{CustomerID: values.Get("customer_id"), State: domain.State(values.Get("state"))}
	if q.CustomerID != "" && !validID(q.CustomerID) {
		bad("customer_id", "must be printable ASCII without blanks, of at most "+strconv.Itoa(domain.MaxIDBytes)+" bytes")
	}
	if q.State != "" && !q.State.Valid() {
		bad("state", "must be placed, confirmed or cancelled")
	}
	if s := values.Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > app.MaxPageSize {
			bad("limit", "must be a number from 1 to "+strconv.Itoa(app.MaxPageSize))
		}
		q.Limit = n
	}
	if s := values.Get("cursor"); s != "" {
		after, ok := decodeCursor(s)
		if !ok {
			bad("cursor", "must be the next_cursor of an earlier page")
		}
		q.After = after
	}
	return q, faults
}

// A cursor is opaque to clients; the leading "1" is its version.
func encodeCursor(p app.Position) string {
	return base64.RawURLEncoding.EncodeToString([]byte("1." + strconv.FormatInt(p.PlacedAt.UnixMicro(), 10) + "." + p.ID))
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
	return app.Position{PlacedAt: time.UnixMicro(us).UTC(), ID: id}, true
}

// pathID returns the id in the request's path. What can't be an id is not found.
func pathID(w http.ResponseWriter, r *http.Request) (string, bool) {
	id := chi.URLParam(r, "id")
	if !validID(id) {
		writeProblem(w, problem{Status: http.StatusNotFound, Code: codeNotFound, Detail: "no order has this id"})
		return "", false
	}
	return id, true
}

// validID keeps out what no id of ours contains and a database may refuse.
func validID(id string) bool {
	if id == "" || len(id) > domain.MaxIDBytes {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] >= 0x7f {
			return false
		}
	}
	return true
}
