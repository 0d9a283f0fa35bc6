// Package httpx is what a service's HTTP handlers share: strict JSON in, JSON
// out, paths and queries that are checked, and errors as application/problem+json
// under the status that their code asks for.
//
// A Handler returns its error instead of writing it. What it returns is told by
// its kind: a *Problem as it is, a *framework.Error under its code, and anything
// else in a way that tells the caller no more than whether to try again. A
// service translates its own errors in one place (Handler.Translate).
package httpx

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// Handler is an http.Handler that may fail: its error is written by WriteError,
// so a handler returns before it has answered, or nil.
type Handler func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP runs h.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		WriteError(w, r, err)
	}
}

// Translate returns h with its errors passed through fn: the one place where a
// service says which of its errors becomes which problem.
func (h Handler) Translate(fn func(error) error) Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := h(w, r); err != nil {
			return fn(err)
		}
		return nil
	}
}

// WriteJSON answers with v.
func WriteJSON(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("httpx: encode the answer: %w", err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, err = w.Write(append(body, '\n'))
	return err
}

// Document serves a document of the service's, such as its OpenAPI description
// ("application/yaml").
func Document(contentType string, body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(body)
	}
}

// NotFound answers a request for an address that there is not, for a router's
// own 404.
func NotFound(w http.ResponseWriter, r *http.Request) {
	WriteError(w, r, &Problem{Status: http.StatusNotFound, Detail: "there is nothing at this address"})
}

// MethodNotAllowed answers a request with a method that its address does not
// take, for a router's own 405.
func MethodNotAllowed(w http.ResponseWriter, r *http.Request) {
	WriteError(w, r, &Problem{Status: http.StatusMethodNotAllowed, Detail: "this address does not take " + r.Method})
}
