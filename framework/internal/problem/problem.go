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
	// Errors name the values that can't be used.
	Errors []FieldError `json:"errors,omitempty"`
}

// FieldError is one value of a request that can't be used.
type FieldError struct {
	// Field is the value's path as the caller wrote it: "lines[0].quantity".
	Field string `json:"field"`
	// Code is stable and for programs: "required".
	Code string `json:"code"`
	// Message is for people. It never repeats the value.
	Message string `json:"message"`
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
