package inbound

import (
	"net/http"
)

type cancelRequest struct {
	Reason string `json:"reason"`
}

func (a api) cancelOrder(w http.ResponseWriter, r *http.Request) {
	var body cancelRequest
	if !readBody(w, r, &body, false) {
		return
	}
	id, ok := pathID(w, r)
	if !ok {
		return
	}
	order, err := a.Cancel.Cancel(r.Context(), id, body.Reason)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, orderView(order))
}
