package inbound

import (
	"net/http"
	"time"

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

func (a api) requestCode(w http.ResponseWriter, r *http.Request) {
	if a.codesOff(w) {
		return
	}
	var body codeRequest
	if !readBody(w, r, &body, true) {
		return
	}
	code, err := a.Codes.Request(r.Context(), domain.CodeRequest{
		Channel: domain.Channel(body.Channel), Recipient: body.Recipient, Language: body.Language, Purpose: body.Purpose,
	})
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusAccepted, codeBody{ID: code.ID, Channel: string(code.Channel), ExpiresAt: code.ExpiresAt.Format(time.RFC3339Nano)})
}

func (a api) verifyCode(w http.ResponseWriter, r *http.Request) {
	if a.codesOff(w) {
		return
	}
	var body verifyRequest
	if !readBody(w, r, &body, true) {
		return
	}
	var faults []fieldError
	if !validID(body.ID) {
		faults = append(faults, fieldError{Field: "id", Code: "invalid", Message: "must be the id of a code"})
	}
	// A typing slip that can't be any code costs no attempt.
	if !domain.WellFormedDigits(body.Code) {
		faults = append(faults, fieldError{Field: "code", Code: "invalid", Message: "must be 6 digits"})
	}
	if len(faults) > 0 {
		writeProblem(w, problem{Status: http.StatusUnprocessableEntity, Code: codeInvalid, Detail: "the request can't be used", Errors: faults})
		return
	}
	ok, err := a.Codes.Verify(r.Context(), body.ID, body.Purpose, body.Code)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, verifyBody{Verified: ok})
}

func (a api) codesOff(w http.ResponseWriter) bool {
	if a.Codes != nil {
		return false
	}
	writeProblem(w, problem{Status: http.StatusNotFound, Code: codeNotFound, Detail: "this service sends no one-time codes"})
	return true
}
