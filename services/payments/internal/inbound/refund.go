package inbound

import (
	"net/http"

	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// refundPayment answers 202 while the refund is under way and 200 once it is
// done. It takes no body: the whole amount is given back.
func (a api) refundPayment(w http.ResponseWriter, r *http.Request) {
	id, ok := pathID(w, r)
	if !ok {
		return
	}
	p, err := a.RequestRefund.Request(r.Context(), id)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	status := http.StatusAccepted
	if p.State == domain.Refunded {
		status = http.StatusOK
	}
	writeJSON(w, status, paymentView(p))
}
