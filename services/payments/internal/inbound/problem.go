package inbound

import (
	"errors"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// problemOf says how a use case's refusal is answered.
func problemOf(err error) error {
	var transition *domain.TransitionError
	switch {
	case errors.Is(err, app.ErrNotFound):
		return &httpx.Problem{Code: framework.CodeNotFound, Detail: "no payment has this id"}
	case errors.As(err, &transition):
		return &httpx.Problem{Code: framework.CodeConflict, Detail: transition.Error()}
	case errors.Is(err, sqltx.ErrCommitUnknown):
		return httpx.Unknown("it is unknown whether this took effect: send it again, nothing is refunded twice", err)
	case errors.Is(err, app.ErrChanged):
		return httpx.Unavailable(err)
	}
	return err
}
