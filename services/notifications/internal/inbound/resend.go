package inbound

import (
	"net/http"

	"github.com/headrace-go/headrace/framework/httpx"
)

// resend takes no body: the id says it all.
func (a api) resend(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	n, err := a.Resend.Request(r.Context(), id)
	if err != nil {
		return err
	}
	return httpx.WriteJSON(w, http.StatusAccepted, notificationView(n))
}
