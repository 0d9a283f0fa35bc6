package app

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/pkg/events/payments"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

// Story is what an event says that a message can tell. Contact is nil when the
// event does not say how the customer is reached.
type Story struct {
	Facts   domain.Facts
	Contact *domain.Contact
	// Untold, where not empty, says why the customer is not told: they know, or
	// need not. A webhook still is.
	Untold string
}

// Notify sends one message over one channel for each event of a type. It is a
// framework.CallHandler.
type Notify[T any] struct {
	// Sender and Contacts are required.
	Sender   *Sender
	Contacts Contacts
	Channel  domain.Channel
	Template string
	// Tell reads the event.
	Tell func(T) Story
}

// Prepare begins an attempt. An event that its customer need not hear of is
// skipped. While the order's contact is not known yet, since
// order.placed travels on another topic, the event is put off.
func (h Notify[T]) Prepare(ctx context.Context, tx *sql.Tx, e events.Event[T]) error {
	story := h.Tell(e.Data)
	if story.Untold != "" && h.Channel != domain.Webhook {
		return framework.Skip(errors.New(story.Untold))
	}
	var contact domain.Contact
	switch {
	case story.Contact != nil:
		contact = *story.Contact
	case h.Channel != domain.Webhook:
		var err error
		contact, err = h.Contacts.Contact(ctx, tx, story.Facts.OrderID)
		if errors.Is(err, ErrNotFound) {
			return framework.Defer(err, putOff(h.Sender.Clock.now().Sub(e.Timestamp)))
		}
		if err != nil {
			return err
		}
	}
	return h.Sender.prepare(ctx, tx, domain.Notification{
		EventID: e.ID, EventType: e.Type, Channel: h.Channel, Template: h.Template, OrderID: story.Facts.OrderID,
		Recipient: contact.Address(h.Channel), Language: domain.NormalizeLanguage(contact.Language), Facts: story.Facts,
	})
}

// Call sends.
func (h Notify[T]) Call(ctx context.Context, e events.Event[T]) (Result, error) {
	n, err := h.Sender.Notifications.ForEvent(ctx, e.ID, h.Channel)
	if err != nil {
		return Result{}, err
	}
	return h.Sender.call(ctx, n, 0)
}

// Commit writes down the outcome.
func (h Notify[T]) Commit(ctx context.Context, tx *sql.Tx, e events.Event[T], r Result) error {
	n, err := h.Sender.Notifications.LockForEvent(ctx, tx, e.ID, h.Channel)
	if err != nil {
		return err
	}
	return h.Sender.commit(ctx, tx, n, r)
}

// putOff is how long an event of an age waits for the contact: short while it
// is young, since the other event is on its way, and ever longer after that.
func putOff(age time.Duration) time.Duration {
	return min(max(age/4, 200*time.Millisecond), time.Minute)
}

// TellConfirmed reads order.confirmed.
func TellConfirmed(d orders.ConfirmedData) Story {
	return Story{
		Facts:   domain.Facts{OrderID: d.OrderID, Amount: d.Total.Amount, Currency: d.Total.Currency},
		Contact: contactOf(d.OrderID, d.Customer),
	}
}

// TellCancelled reads order.cancelled.
func TellCancelled(d orders.CancelledData) Story {
	return Story{
		Facts:   domain.Facts{OrderID: d.OrderID, Amount: d.Total.Amount, Currency: d.Total.Currency, Reason: d.Reason},
		Contact: contactOf(d.OrderID, d.Customer),
	}
}

// reasonOrderCancelled is the reason of a payment.failed that no one tried to pay:
// the order was cancelled first, and its customer hears of that.
const reasonOrderCancelled = "order_cancelled"

// TellPaymentFailed reads payment.failed.
func TellPaymentFailed(d payments.FailedData) Story {
	s := Story{Facts: domain.Facts{OrderID: d.OrderID, Amount: d.Amount.Amount, Currency: d.Amount.Currency, Reason: d.Reason}}
	if d.Reason == reasonOrderCancelled {
		s.Untold = "the order was cancelled before its payment: its customer hears of the cancellation"
	}
	return s
}

// TellRefunded reads payment.refunded.
func TellRefunded(d payments.RefundedData) Story {
	return Story{Facts: domain.Facts{OrderID: d.OrderID, Amount: d.Amount.Amount, Currency: d.Amount.Currency}}
}

func contactOf(orderID string, c orders.Customer) *domain.Contact {
	return &domain.Contact{OrderID: orderID, Email: c.Email, Phone: c.Phone, Language: c.Language}
}
