// Package inbound leads HTTP requests and events to the use cases.
package inbound

import (
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/services/notifications/internal/app"
)

// Deps are the use cases behind the routes. All are required but Codes.
type Deps struct {
	Read   app.ReadNotifications
	Resend app.Resend
	// Codes is nil where the service sends no one-time codes.
	Codes *app.OneTimeCodes
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
	r.Route("/v1/notifications", func(r chi.Router) {
		r.Use(middleware.GetHead) // the one above sees no route below a mount
		r.Get("/", on(a.listNotifications))
		r.Get("/{id}", on(a.getNotification))
		r.Post("/{id}/resend", on(a.resend))
	})
	r.Route("/v1/codes", func(r chi.Router) {
		r.Post("/", on(a.requestCode))
		r.Post("/verify", on(a.verifyCode))
	})
	return r
}

type api struct{ Deps }
