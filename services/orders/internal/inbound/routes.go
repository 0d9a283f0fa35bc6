// Package inbound leads HTTP requests and events to the use cases.
package inbound

import (
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/services/orders/internal/app"
)

// Deps are the use cases behind the routes. All are required.
type Deps struct {
	Place  app.PlaceOrder
	Cancel app.CancelOrder
	Read   app.ReadOrders
	// OpenAPI is the document that /openapi.yaml serves.
	OpenAPI []byte
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
	r.Route("/v1/orders", func(r chi.Router) {
		r.Use(middleware.GetHead) // the one above sees no route below a mount
		r.Post("/", on(a.placeOrder))
		r.Get("/", on(a.listOrders))
		r.Get("/{id}", on(a.getOrder))
		r.Post("/{id}/cancel", on(a.cancelOrder))
	})
	return r
}

type api struct{ Deps }
