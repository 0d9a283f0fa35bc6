package inbound

import (
	"net/http"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

type codeRequest struct {
	Channel   string `json:"channel"`
	Recipient string `json:"recipient"`
	Language  string `json:"language"`
	Purpose   string `json:"purpose"`
}

type codeBody struct {
	ID        string `json:"id"`
	Channel   string `json:"channel"`
	ExpiresAt string `json:"expires_at"`
}

type verifyRequest struct {
	ID      string `json:"id"`
	Code    string `json:"code"`
	Purpose string `json:"purpose"`
}

type verifyBody struct {
	Verified bool `json:"verified"`
}

func (a api) requestCode(w http.ResponseWriter, r *http.Request) error {
	if a.Codes == nil {
		return errCodesOff
	}
	var body codeRequest
	if err := httpx.DecodeJSON(w, r, &body, 0); err != nil {
		return err
	}
	code, err := a.Codes.Request(r.Context(), domain.CodeRequest{
		Channel: domain.Channel(body.Channel), Recipient: body.Recipient, Language: body.Language, Purpose: body.Purpose,
	})
	if err != nil {
		return err
	}
	return httpx.WriteJSON(w, http.StatusAccepted, codeBody{ID: code.ID, Channel: string(code.Channel), ExpiresAt: code.ExpiresAt.Format(time.RFC3339Nano)})
}

func (a api) verifyCode(w http.ResponseWriter, r *http.Request) error {
	if a.Codes == nil {
		return errCodesOff
	}
	var body verifyRequest
	if err := httpx.DecodeJSON(w, r, &body, 0); err != nil {
		return err
	}
	var faults []httpx.FieldError
	if !httpx.ValidID(body.ID, maxIDBytes) {
		faults = append(faults, httpx.FieldError{Field: "id", Code: "invalid", Message: "must be the id of a code"})
	}
	// A typing slip that can't be any code costs no attempt.
	if !domain.WellFormedDigits(body.Code) {
		faults = append(faults, httpx.FieldError{Field: "code", Code: "invalid", Message: "must be 6 digits"})
	}
	if len(faults) > 0 {
		return httpx.Invalid("the request can't be used", faults...)
	}
	ok, err := a.Codes.Verify(r.Context(), body.ID, body.Purpose, body.Code)
	if err != nil {
		return err
	}
	return httpx.WriteJSON(w, http.StatusOK, verifyBody{Verified: ok})
}

var errCodesOff = framework.Errorf(framework.CodeNotFound, "this service sends no one-time codes")
