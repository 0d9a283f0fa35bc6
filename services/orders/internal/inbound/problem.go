package inbound

import (
	"errors"
	"net/http"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/orders/internal/app"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

const codeKeyReused framework.Code = "idempotency_key_reused"

// problemOf says how a use case's refusal is answered.
func problemOf(err error) error {
	var invalid *domain.ValidationError
	var transition *domain.TransitionError
	switch {
	case errors.As(err, &invalid):
		p := httpx.Invalid("the request breaks the rules of an order")
		for _, v := range invalid.Violations {
			p.Fields = append(p.Fields, httpx.FieldError(v))
		}
		return p
	case errors.Is(err, app.ErrNotFound):
		return &httpx.Problem{Code: framework.CodeNotFound, Detail: "no order has this id"}
	case errors.Is(err, app.ErrKeyReused):
		return &httpx.Problem{
			Status: http.StatusUnprocessableEntity, Code: codeKeyReused,
			Detail: "this Idempotency-Key came with another request before: use a new key for a new request",
			Fields: []httpx.FieldError{{Field: "Idempotency-Key", Code: "reused", Message: "came with another request before"}},
		}
	case errors.As(err, &transition):
		return &httpx.Problem{Code: framework.CodeConflict, Detail: transition.Error()}
	case errors.Is(err, sqltx.ErrCommitUnknown):
		return httpx.Unknown("it is unknown whether this took effect: send it again, with the same Idempotency-Key", err)
	}
	return err
}
