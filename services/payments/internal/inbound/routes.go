// Package inbound leads HTTP requests and events to the use cases.
package inbound

import (
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/services/payments/internal/app"
)

// Deps are the use cases behind the routes. All are required but for Sandbox.
type Deps struct {
	Read          app.ReadPayments
	RequestRefund app.RequestRefund
	// OpenAPI is the document that /openapi.yaml serves.
	OpenAPI []byte
	// Sandbox shows the sandbox gateway's ledger. Nil: there is none to show.
	Sandbox http.Handler
}

// Routes returns the service's HTTP API.
func Routes(d Deps) http.Handler {
	a := api{d}
	on := func(h httpx.Handler) http.HandlerFunc { return h.Translate(problemOf).ServeHTTP }
	r := chi.NewRouter()
	r.Use(httpx.NoteRoute, middleware.GetHead)
	r.NotFound(httpx.NotFound)
	r.MethodNotAllowed(httpx.MethodNotAllowed)
	r.Get("/openapi.yaml", httpx.Document("application/yaml", d.OpenAPI))
	r.Route("/v1/payments", func(r chi.Router) {
		r.Use(middleware.GetHead) // the one above sees no route below a mount
		r.Get("/", on(a.listPayments))
		r.Get("/{id}", on(a.getPayment))
		r.Post("/{id}/refund", on(a.refundPayment))
	})
	if d.Sandbox != nil {
		r.Method(http.MethodGet, "/v1/sandbox/charges", d.Sandbox)
	}
	return r
}

type api struct{ Deps }
