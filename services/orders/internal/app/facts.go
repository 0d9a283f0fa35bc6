package app

import (
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

func placedEvent(o domain.Order, paymentToken string) events.Draft {
	lines := make([]orders.Line, len(o.Lines))
	for i, l := range o.Lines {
		lines[i] = orders.Line{SKU: l.SKU, Quantity: int(l.Quantity), UnitPrice: toMoney(l.UnitPrice)}
	}
	return orders.Placed.New(o.ID, orders.PlacedData{
		OrderID: o.ID, Customer: toCustomer(o.Customer), Lines: lines, Total: toMoney(o.Total), PaymentToken: paymentToken,
	}, events.At(o.PlacedAt))
}

func confirmedEvent(o domain.Order) events.Draft {
	return orders.Confirmed.New(o.ID, orders.ConfirmedData{
		OrderID: o.ID, Customer: toCustomer(o.Customer), Total: toMoney(o.Total), PaymentID: o.PaymentID,
	}, events.At(o.ConfirmedAt))
}

func cancelledEvent(o domain.Order, previous domain.State) events.Draft {
	return orders.Cancelled.New(o.ID, orders.CancelledData{
		OrderID: o.ID, Customer: toCustomer(o.Customer), Total: toMoney(o.Total), Reason: reasonCode(o.CancelledBy),
		PaymentID: o.PaymentID, PreviousState: string(previous),
	}, events.At(o.CancelledAt))
}

// reasonCode is what order.cancelled says of its reason: a code, no free text.
func reasonCode(by domain.Canceller) string {
	if by == domain.ByPayment {
		return "payment_failed"
	}
	return "customer_request"
}

func toCustomer(c domain.Customer) orders.Customer {
	return orders.Customer{ID: c.ID, Email: c.Email, Phone: c.Phone, Language: c.Language}
}

func toMoney(m domain.Money) events.Money {
	return events.Money{Amount: m.Amount, Currency: m.Currency}
}

func fromMoney(m events.Money) domain.Money {
	return domain.Money{Amount: m.Amount, Currency: m.Currency}
}
