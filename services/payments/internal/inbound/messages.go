package inbound

import (
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/services/payments/internal/app"
)

// Consumers are the use cases behind the events. All are required.
type Consumers struct {
	Charge        app.ChargeOrder
	RefundOrder   app.RefundOrder
	RefundPayment app.RefundPayment
	// Timeout bounds one attempt. It must exceed the time that the gateway takes
	// for the two calls that a late cancellation needs.
	Timeout time.Duration
}

// Subscribe registers the service's consumers with a.
func Subscribe(a *framework.App, c Consumers) {
	options := []framework.HandlerOption{framework.OrderByKey(), framework.Timeout(c.Timeout)}
	framework.HandleCall(a, orders.Placed, "charge-order", c.Charge, options...)
	framework.HandleCall(a, orders.Cancelled, "refund-order", c.RefundOrder, options...)
	framework.HandleCall(a, app.RefundRequested, "refund-payment", c.RefundPayment, options...)
}
