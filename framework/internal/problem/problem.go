// Package problem writes RFC 9457 problem details.
package problem

import (
	"encoding/json"
	"net/http"
)

// ContentType is the media type of a problem.
const ContentType = "application/problem+json"

// Problem is one error as an API tells it.
type Problem struct {
	// Type identifies the kind of problem; "about:blank" where the status says it
	// all.
	Type string `json:"type"`
	// Title is the status in words.
	Title string `json:"title"`
	// Status is the HTTP status.
	Status int `json:"status"`
	// Detail is what was wrong this time.
	Detail string `json:"detail,omitempty"`
	// Code is the failure's code.
	Code string `json:"code,omitempty"`
	// CorrelationID lets the caller name the request.
	CorrelationID string `json:"correlation_id,omitempty"`
}

// Write sends p; an empty Type and Title follow from the status.
func Write(w http.ResponseWriter, p Problem) {
	if p.Type == "" {
		p.Type = "about:blank"
	}
	if p.Title == "" {
		p.Title = http.StatusText(p.Status)
	}
	body, err := json.Marshal(p)
	if err != nil { // only strings and a number: it can't
		body = []byte(`{"type":"about:blank"}`)
	}
	h := w.Header()
	h.Set("Content-Type", ContentType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n'))
}
