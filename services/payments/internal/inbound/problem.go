package inbound

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// Codes of problems: stable, for programs.
const (
	codeInvalid          = "invalid"
	codeNotFound         = "not_found"
	codeMethodNotAllowed = "method_not_allowed"
	codeConflict         = "conflict"
	codeUnavailable      = "unavailable"
	codeInternal         = "internal"
)

// problem is an RFC 9457 problem document.
type problem struct {
	Type          string       `json:"type"`
	Title         string       `json:"title"`
	Status        int          `json:"status"`
	Code          string       `json:"code"`
	Detail        string       `json:"detail,omitempty"`
	CorrelationID string       `json:"correlation_id,omitempty"`
	Errors        []fieldError `json:"errors,omitempty"`
}

type fieldError struct {
	Field   string `json:"field"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// fail answers with the problem that err is. What the client can't mend is
// logged and not told.
func (a api) fail(w http.ResponseWriter, r *http.Request, err error) {
	var transition *domain.TransitionError
	switch {
	case errors.Is(err, app.ErrNotFound):
		writeProblem(w, problem{Status: http.StatusNotFound, Code: codeNotFound, Detail: "no payment has this id"})
	case errors.As(err, &transition):
		writeProblem(w, problem{Status: http.StatusConflict, Code: codeConflict, Detail: transition.Error()})
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		// The client is gone; the status is for the request log alone.
		w.WriteHeader(499)
	case errors.Is(err, sqltx.ErrCommitUnknown):
		a.Logger.WarnContext(r.Context(), "outcome of a commit is unknown", "method", r.Method, "path", r.URL.Path, "error", err)
		w.Header().Set("Retry-After", "1")
		writeProblem(w, problem{
			Status: http.StatusServiceUnavailable, Code: codeUnavailable,
			Detail: "it is unknown whether this took effect: send it again, nothing is refunded twice",
		})
	case sqltx.IsTransient(err), errors.Is(err, context.DeadlineExceeded), errors.Is(err, app.ErrChanged):
		a.Logger.WarnContext(r.Context(), "request could not be served for now", "method", r.Method, "path", r.URL.Path, "error", err)
		w.Header().Set("Retry-After", "1")
		writeProblem(w, problem{Status: http.StatusServiceUnavailable, Code: codeUnavailable, Detail: "try again shortly"})
	default:
		a.Logger.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		writeProblem(w, problem{Status: http.StatusInternalServerError, Code: codeInternal})
	}
}

func writeProblem(w http.ResponseWriter, p problem) {
	p.Type = "about:blank"
	p.Title = http.StatusText(p.Status)
	p.CorrelationID = w.Header().Get("X-Correlation-ID")
	writeBody(w, p.Status, "application/problem+json", p)
}

func writeJSON(w http.ResponseWriter, status int, v any) { writeBody(w, status, "application/json", v) }

func writeBody(w http.ResponseWriter, status int, contentType string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
