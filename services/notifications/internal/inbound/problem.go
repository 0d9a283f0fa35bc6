package inbound

import (
	"errors"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

// problemOf says how a use case's refusal is answered.
func problemOf(err error) error {
	var (
		invalid   *domain.ValidationError
		resend    *domain.ResendError
		throttled *app.RateLimitedError
	)
	switch {
	case errors.As(err, &invalid):
		p := httpx.Invalid("the request can't be used")
		for _, v := range invalid.Violations {
			p.Fields = append(p.Fields, httpx.FieldError(v))
		}
		return p
	case errors.Is(err, app.ErrNotFound):
		return &httpx.Problem{Code: framework.CodeNotFound, Detail: "no notification has this id"}
	case errors.As(err, &resend):
		return &httpx.Problem{Code: framework.CodeConflict, Detail: resend.Error()}
	case errors.As(err, &throttled):
		return &httpx.Problem{Code: framework.CodeRateLimited, Detail: throttled.Error(), RetryAfter: max(throttled.RetryAfter, time.Second)}
	}
	return err
}
