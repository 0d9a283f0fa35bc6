// Package inbound leads HTTP requests and events to the use cases.
package inbound

import (
	"log/slog"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/headrace-go/headrace/services/payments/internal/app"
)

// Deps are the use cases behind the routes. All are required but for Sandbox.
type Deps struct {
	Read          app.ReadPayments
	RequestRefund app.RequestRefund
	Logger        *slog.Logger
	// OpenAPI is the document that /openapi.yaml serves.
	OpenAPI []byte
	// Sandbox shows the sandbox gateway's ledger. Nil: there is none to show.
	Sandbox http.Handler
}

// Routes returns the service's HTTP API.
func Routes(d Deps) http.Handler {
	a := api{d}
	r := chi.NewRouter()
	r.NotFound(func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, problem{Status: http.StatusNotFound, Code: codeNotFound, Detail: "there is nothing at this address"})
	})
	r.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, problem{Status: http.StatusMethodNotAllowed, Code: codeMethodNotAllowed, Detail: "this address does not take " + r.Method})
	})
	r.Get("/openapi.yaml", a.serveDocument)
	r.Route("/v1/payments", func(r chi.Router) {
		r.Get("/", a.listPayments)
		r.Get("/{id}", a.getPayment)
		r.Post("/{id}/refund", a.refundPayment)
	})
	if d.Sandbox != nil {
		r.Method(http.MethodGet, "/v1/sandbox/charges", d.Sandbox)
	}
	return withPattern(r)
}

type api struct{ Deps }

func (a api) serveDocument(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(a.OpenAPI)
}
