package inbound

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"
)

// withPattern tells the layers around the router, which log and measure, what
// route served a request: the router notes it on a copy of the request alone.
func withPattern(router chi.Router) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		route := chi.NewRouteContext()
		route.Routes = router
		defer func() { r.Pattern = route.RoutePattern() }()
		router.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), chi.RouteCtxKey, route)))
	})
}
