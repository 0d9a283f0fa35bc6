// Package inbound leads HTTP requests and events to the use cases.
package inbound

import (
	"log/slog"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/headrace-go/headrace/services/orders/internal/app"
)

// Deps are the use cases behind the routes. All are required.
type Deps struct {
	Place  app.PlaceOrder
	Cancel app.CancelOrder
	Read   app.ReadOrders
	Logger *slog.Logger
	// OpenAPI is the document that /openapi.yaml serves.
	OpenAPI []byte
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
	r.Route("/v1/orders", func(r chi.Router) {
		r.Post("/", a.placeOrder)
		r.Get("/", a.listOrders)
		r.Get("/{id}", a.getOrder)
		r.Post("/{id}/cancel", a.cancelOrder)
	})
	return withPattern(r)
}

type api struct{ Deps }

func (a api) serveDocument(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(a.OpenAPI)
}
