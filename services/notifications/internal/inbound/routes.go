// Package inbound leads HTTP requests and events to the use cases.
package inbound

import (
	"log/slog"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/headrace-go/headrace/services/notifications/internal/app"
)

// Deps are the use cases behind the routes. All are required but Codes.
type Deps struct {
	Read   app.ReadNotifications
	Resend app.Resend
	// Codes is nil where the service sends no one-time codes.
	Codes  *app.OneTimeCodes
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
	r.Route("/v1/notifications", func(r chi.Router) {
		r.Get("/", a.listNotifications)
		r.Get("/{id}", a.getNotification)
		r.Post("/{id}/resend", a.resend)
	})
	r.Route("/v1/codes", func(r chi.Router) {
		r.Post("/", a.requestCode)
		r.Post("/verify", a.verifyCode)
	})
	return r
}

type api struct{ Deps }

func (a api) serveDocument(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(a.OpenAPI)
}
