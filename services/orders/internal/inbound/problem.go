package inbound

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/orders/internal/app"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

// Codes of problems: stable, for programs.
const (
	codeMalformed        = "malformed"
	codeInvalid          = "invalid"
	codeNotFound         = "not_found"
	codeMethodNotAllowed = "method_not_allowed"
	codeConflict         = "conflict"
	codeKeyReused        = "idempotency_key_reused"
	codeTooLarge         = "too_large"
	codeUnsupportedMedia = "unsupported_media_type"
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
	var invalid *domain.ValidationError
	var transition *domain.TransitionError
	switch {
	case errors.As(err, &invalid):
		p := problem{Status: http.StatusUnprocessableEntity, Code: codeInvalid, Detail: "the request breaks the rules of an order"}
		for _, v := range invalid.Violations {
			p.Errors = append(p.Errors, fieldError(v))
		}
		writeProblem(w, p)
	case errors.Is(err, app.ErrNotFound):
		writeProblem(w, problem{Status: http.StatusNotFound, Code: codeNotFound, Detail: "no order has this id"})
	case errors.Is(err, app.ErrKeyReused):
		writeProblem(w, problem{
			Status: http.StatusUnprocessableEntity, Code: codeKeyReused,
			Detail: "this Idempotency-Key came with another request before: use a new key for a new request",
			Errors: []fieldError{{Field: "Idempotency-Key", Code: "reused", Message: "came with another request before"}},
		})
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
			Detail: "it is unknown whether this took effect: send it again, with the same Idempotency-Key",
		})
	case sqltx.IsTransient(err), errors.Is(err, context.DeadlineExceeded):
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
	body, err := json.Marshal(p)
	if err != nil {
		w.WriteHeader(p.Status)
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n'))
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
