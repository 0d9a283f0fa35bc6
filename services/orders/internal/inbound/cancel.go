package inbound

import (
	"net/http"

	"github.com/headrace-go/headrace/framework/httpx"
)

type cancelRequest struct {
	Reason string `json:"reason"`
}

func (a api) cancelOrder(w http.ResponseWriter, r *http.Request) error {
	var body cancelRequest
	if _, err := httpx.DecodeOptionalJSON(w, r, &body, 0); err != nil {
		return err
	}
	id, err := pathID(r)
	if err != nil {
		return err
	}
	order, err := a.Cancel.Cancel(r.Context(), id, body.Reason)
	if err != nil {
		return err
	}
	return httpx.WriteJSON(w, http.StatusOK, orderView(order))
}
