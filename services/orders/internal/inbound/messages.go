package inbound

import (
	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/pkg/events/payments"
	"github.com/headrace-go/headrace/services/orders/internal/app"
)

// Consumers are the use cases behind the events. All are required.
type Consumers struct {
	Confirm      app.ConfirmOrder
	CancelUnpaid app.CancelUnpaid
	NoteRefund   app.NoteRefund
}

// Subscribe registers the service's consumers with a.
func Subscribe(a *framework.App, c Consumers) {
	framework.HandleTx(a, payments.Captured, "confirm-order", c.Confirm.Handle, framework.OrderByKey())
	framework.HandleTx(a, payments.Failed, "cancel-unpaid-order", c.CancelUnpaid.Handle, framework.OrderByKey())
	framework.HandleTx(a, payments.Refunded, "note-refund", c.NoteRefund.Handle, framework.OrderByKey())
}
