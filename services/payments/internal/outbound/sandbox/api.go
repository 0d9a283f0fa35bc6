package sandbox

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
)

// Limits of a page of charges.
const (
	DefaultPageSize = 100
	MaxPageSize     = 1000
)

type page struct {
	Summary Summary  `json:"summary"`
	Charges []Charge `json:"charges"`
	// NextAfter is the "after" of the next page; absent on the last.
	NextAfter string `json:"next_after,omitempty"`
}

// ServeHTTP shows the ledger: ?order_id= one order's part, ?after= and ?limit=
// (0 to 1000, default 100; 0 for the summary alone) one page of it. It is meant
// for tests and demonstrations.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	q := Query{OrderID: query.Get("order_id"), After: query.Get("after"), Limit: DefaultPageSize}
	if s := query.Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > MaxPageSize {
			answerProblem(w, http.StatusUnprocessableEntity, "invalid", "limit must be a number from 0 to "+strconv.Itoa(MaxPageSize))
			return
		}
		q.Limit = n
	}
	summary, err := g.Summarize(r.Context(), q.OrderID)
	if err != nil {
		g.fail(w, r, err)
		return
	}
	charges, err := g.Charges(r.Context(), q)
	if err != nil {
		g.fail(w, r, err)
		return
	}
	p := page{Summary: summary, Charges: charges}
	if q.Limit > 0 && len(charges) == q.Limit {
		p.NextAfter = charges[len(charges)-1].Key
	}
	answer(w, http.StatusOK, "application/json", p)
}

func (g *Gateway) fail(w http.ResponseWriter, r *http.Request, err error) {
	g.cfg.Logger.ErrorContext(r.Context(), "the sandbox's ledger could not be read", slog.Any("error", err))
	answerProblem(w, http.StatusInternalServerError, "internal", "")
}

func answerProblem(w http.ResponseWriter, status int, code, detail string) {
	body := map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "code": code}
	if detail != "" {
		body["detail"] = detail
	}
	answer(w, status, "application/problem+json", body)
}

func answer(w http.ResponseWriter, status int, contentType string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
