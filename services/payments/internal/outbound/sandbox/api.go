package sandbox

import (
	"net/http"

	"github.com/headrace-go/headrace/framework/httpx"
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
	httpx.Handler(g.show).ServeHTTP(w, r)
}

func (g *Gateway) show(w http.ResponseWriter, r *http.Request) error {
	asked := httpx.ParseQuery(r)
	q := Query{OrderID: asked.String("order_id"), After: asked.String("after"), Limit: asked.Int("limit", 0, MaxPageSize, DefaultPageSize)}
	if err := asked.Err(); err != nil {
		return err
	}
	summary, err := g.Summarize(r.Context(), q.OrderID)
	if err != nil {
		return err
	}
	charges, err := g.Charges(r.Context(), q)
	if err != nil {
		return err
	}
	p := page{Summary: summary, Charges: charges}
	if q.Limit > 0 && len(charges) == q.Limit {
		p.NextAfter = charges[len(charges)-1].Key
	}
	return httpx.WriteJSON(w, http.StatusOK, p)
}
