// Package httpx is what a service's HTTP handlers share: strict JSON in, JSON
// out, and errors as application/problem+json with the status that their code
// asks for.
package httpx

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/internal/problem"
	"github.com/headrace-go/headrace/middleware"
)

// DefaultMaxBytes bounds a JSON body where the caller sets no limit.
const DefaultMaxBytes = 1 << 20

// DecodeJSON reads one JSON value of at most maxBytes (0: DefaultMaxBytes) into
// v. An unknown field, a wrong type, more than one value, an empty body and
// another content type are a *framework.Error with CodeInvalid that says what is
// wrong and never repeats the body; too many bytes are CodeTooLarge.
func DecodeJSON(w http.ResponseWriter, r *http.Request, v any, maxBytes int64) error {
	if maxBytes <= 0 {
		maxBytes = DefaultMaxBytes
	}
	if ct := r.Header.Get("Content-Type"); ct != "" {
		media, _, err := mime.ParseMediaType(ct)
		if err != nil || media != "application/json" && !strings.HasSuffix(media, "+json") {
			return framework.Errorf(framework.CodeInvalid, "the content type is %q: send application/json", ct)
		}
	}
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBytes))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return bodyError(err)
	}
	if err := dec.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			return bodyError(err)
		}
		return framework.Errorf(framework.CodeInvalid, "the body holds more than one JSON value")
	}
	return nil
}

func bodyError(err error) error {
	var (
		syntax   *json.SyntaxError
		typ      *json.UnmarshalTypeError
		tooLarge *http.MaxBytesError
	)
	switch {
	case errors.As(err, &tooLarge):
		return framework.Errorf(framework.CodeTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	case errors.Is(err, io.EOF):
		return framework.Errorf(framework.CodeInvalid, "the body is empty: send a JSON value")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return framework.Errorf(framework.CodeInvalid, "the body ends in the middle of a JSON value")
	case errors.As(err, &syntax):
		return framework.Errorf(framework.CodeInvalid, "the body is not valid JSON at byte %d", syntax.Offset)
	case errors.As(err, &typ):
		field := typ.Field
		if field == "" {
			field = "the body"
		}
		return framework.Errorf(framework.CodeInvalid, "%s is a JSON %s: it must be %s", field, typ.Value, typ.Type)
	case strings.HasPrefix(err.Error(), "json: unknown field "):
		return framework.Errorf(framework.CodeInvalid, "unknown field %s", strings.TrimPrefix(err.Error(), "json: unknown field "))
	}
	return &framework.Error{Code: framework.CodeInvalid, Op: "read the body", Err: errors.New("it can't be read")}
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

// WriteError answers with err as application/problem+json under the status of
// its code. The text of an internal or unavailable error is logged, and not told
// to the caller.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	code := framework.CodeOf(err)
	status := Status(code)
	detail := ""
	if status < http.StatusInternalServerError {
		detail = err.Error()
	} else {
		framework.Logger(r.Context()).ErrorContext(r.Context(), "request failed", "code", code, "error", err)
	}
	problem.Write(w, problem.Problem{
		Status: status, Code: string(code), Detail: detail,
		CorrelationID: middleware.CorrelationFrom(r.Context()).CorrelationID,
	})
}

// Status returns the HTTP status of a code; an unknown one is 500.
func Status(code framework.Code) int {
	switch code {
	case framework.CodeInvalid:
		return http.StatusBadRequest
	case framework.CodeUnauthenticated:
		return http.StatusUnauthorized
	case framework.CodeForbidden:
		return http.StatusForbidden
	case framework.CodeNotFound:
		return http.StatusNotFound
	case framework.CodeConflict:
		return http.StatusConflict
	case framework.CodeUnprocessable:
		return http.StatusUnprocessableEntity
	case framework.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case framework.CodeRateLimited:
		return http.StatusTooManyRequests
	case framework.CodeUnavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// Handler is an http.Handler that may fail: its error is written by WriteError,
// so a handler returns before it has answered, or nil.
type Handler func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP runs h.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		WriteError(w, r, err)
	}
}
