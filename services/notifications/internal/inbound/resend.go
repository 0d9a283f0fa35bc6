package inbound

import "net/http"

// resend takes no body: the id says it all.
func (a api) resend(w http.ResponseWriter, r *http.Request) {
	id, ok := pathID(w, r)
	if !ok {
		return
	}
	n, err := a.Resend.Request(r.Context(), id)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusAccepted, notificationView(n))
}
