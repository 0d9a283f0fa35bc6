package inbound

import (
	"net/http"

	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// refundPayment answers 202 while the refund is under way and 200 once it is
// done. It takes no body: the whole amount is given back.
func (a api) refundPayment(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	p, err := a.RequestRefund.Request(r.Context(), id)
	if err != nil {
		return err
	}
	status := http.StatusAccepted
	if p.State == domain.Refunded {
		status = http.StatusOK
	}
	return httpx.WriteJSON(w, status, paymentView(p))
}
