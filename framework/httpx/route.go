package httpx

import (
	"net/http"

	"github.com/headrace-go/headrace/framework/internal/httpapi"
)

// NoteRoute tells the App's request log, metrics and trace which route served a
// request. Routers that work on a copy of the request, as chi does, need it as
// their outermost middleware; with http.ServeMux the App sees the route without.
func NoteRoute(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Deferred, so that a handler that panics is told by its route too.
		defer func() { httpapi.SetRoute(r.Context(), r.Pattern) }()
		next.ServeHTTP(w, r)
	})
}
