package httpx

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/internal/problem"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/middleware"
)

// FieldError is one value of a request that can't be used.
type FieldError = problem.FieldError

// Problem is an error that says how it is answered, as RFC 9457 writes it.
type Problem struct {
	// Status is the HTTP status. Default: that of Code.
	Status int
	// Code is stable and for programs. Default: that of Status.
	Code framework.Code
	// Detail says what is wrong this time. The caller reads it.
	Detail string
	// Fields are the values that can't be used; the caller reads them too.
	Fields []FieldError
	// RetryAfter asks the caller to wait so long; it is rounded up to whole
	// seconds. 0: the answer does not say.
	RetryAfter time.Duration
	// Err is the cause: logged under a status of 500 and above, told to nobody.
	Err error
}

// Invalid is a request that was read and breaks rules: 422.
func Invalid(detail string, fields ...FieldError) *Problem {
	return &Problem{Code: framework.CodeInvalid, Detail: detail, Fields: fields}
}

// Error is the detail and the cause.
func (p *Problem) Error() string {
	text := p.Detail
	if text == "" {
		text = string(p.withDefaults().Code)
	}
	if p.Err != nil {
		text += ": " + p.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (p *Problem) Unwrap() error { return p.Err }

func (p *Problem) withDefaults() Problem {
	full := *p
	if full.Status == 0 {
		full.Status = Status(full.Code)
	}
	if full.Code == "" {
		full.Code = codeOf(full.Status)
	}
	return full
}

// statusClientGone is for the request log alone: nobody reads the answer.
const statusClientGone = 499

// WriteError answers with err as application/problem+json: a *Problem as it is,
// a *framework.Error under the status of its code. A failure that passes (a busy
// database, an expired deadline) is 503 with Retry-After; a commit whose outcome
// is unknown is 503 too, and says so. All others are 500. What is 500 or above is
// logged with its cause, which the caller is not told.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(r, err).withDefaults()
	if p.Status == statusClientGone {
		w.WriteHeader(statusClientGone)
		return
	}
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.RetryAfter.Seconds()))))
	}
	ctx := r.Context()
	logger := framework.Logger(ctx)
	switch attrs := []any{"method", r.Method, "path", r.URL.Path, "code", p.Code, "error", err}; {
	case p.Status == http.StatusServiceUnavailable:
		logger.WarnContext(ctx, "request could not be served for now", attrs...)
	case p.Status >= http.StatusInternalServerError:
		logger.ErrorContext(ctx, "request failed", attrs...)
	}
	problem.Write(w, problem.Problem{
		Status: p.Status, Code: string(p.Code), Detail: p.Detail, Errors: p.Fields,
		CorrelationID: middleware.CorrelationFrom(ctx).CorrelationID,
	})
}

func problemOf(r *http.Request, err error) *Problem {
	var (
		own   *Problem
		coded *framework.Error
	)
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &coded):
		p := &Problem{Code: framework.CodeOf(err)}
		if Status(p.Code) < http.StatusInternalServerError {
			p.Detail = err.Error()
		}
		return p
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		return &Problem{Status: statusClientGone}
	case errors.Is(err, sqltx.ErrCommitUnknown):
		return Unknown("it is unknown whether this took effect: look before you send it again", err)
	case sqltx.IsTransient(err), errors.Is(err, context.DeadlineExceeded):
		return Unavailable(err)
	}
	return &Problem{Code: framework.CodeInternal, Err: err}
}

// retryAfter is what a caller is asked to wait when something passes.
const retryAfter = time.Second

// Unavailable is a request that may succeed a little later: 503.
func Unavailable(err error) *Problem {
	return &Problem{Code: framework.CodeUnavailable, Detail: "try again shortly", RetryAfter: retryAfter, Err: err}
}

// Unknown is a request of which nobody knows whether it took effect
// (sqltx.ErrCommitUnknown): 503, with a detail that says what to do then.
func Unknown(detail string, err error) *Problem {
	return &Problem{Code: framework.CodeUnavailable, Detail: detail, RetryAfter: retryAfter, Err: err}
}

// statuses are the codes and their HTTP statuses. Of two codes with one status
// the first is the status's own.
var statuses = []struct {
	code   framework.Code
	status int
}{
	{framework.CodeMalformed, http.StatusBadRequest},
	{framework.CodeUnauthenticated, http.StatusUnauthorized},
	{framework.CodeForbidden, http.StatusForbidden},
	{framework.CodeNotFound, http.StatusNotFound},
	{framework.CodeMethodNotAllowed, http.StatusMethodNotAllowed},
	{framework.CodeConflict, http.StatusConflict},
	{framework.CodeTooLarge, http.StatusRequestEntityTooLarge},
	{framework.CodeUnsupportedMedia, http.StatusUnsupportedMediaType},
	{framework.CodeInvalid, http.StatusUnprocessableEntity},
	{framework.CodeUnprocessable, http.StatusUnprocessableEntity},
	{framework.CodeRateLimited, http.StatusTooManyRequests},
	{framework.CodeUnavailable, http.StatusServiceUnavailable},
	{framework.CodeInternal, http.StatusInternalServerError},
}

// Status returns the HTTP status of a code; an unknown one is 500.
func Status(code framework.Code) int {
	for _, s := range statuses {
		if s.code == code {
			return s.status
		}
	}
	return http.StatusInternalServerError
}

func codeOf(status int) framework.Code {
	for _, s := range statuses {
		if s.status == status {
			return s.code
		}
	}
	if status < http.StatusInternalServerError {
		return framework.CodeInvalid
	}
	return framework.CodeInternal
}
