package inbound

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/pkg/events/payments"
	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

// Route leads the events of one type to one channel.
type Route struct {
	// Event is the event's type: "order.confirmed".
	Event    string
	Channel  domain.Channel
	Template string
}

// Handler is the name of the route's consumer: "order-confirmed-email".
func (r Route) Handler() string {
	return strings.NewReplacer(".", "-", "_", "-").Replace(r.Event) + "-" + string(r.Channel)
}

// RoutableEvents lists the events that a Route can name.
func RoutableEvents() []string {
	return []string{orders.Confirmed.Name(), orders.Cancelled.Name(), payments.Failed.Name(), payments.Refunded.Name()}
}

// Consumers are the use cases behind the events. All are required.
type Consumers struct {
	Remember app.RememberContact
	Sender   *app.Sender
	Contacts app.Contacts
	Routes   []Route
	// MaxAge is how old an event may be for its message to make sense.
	MaxAge time.Duration
	// CodeTTL is how long a one-time code is valid.
	CodeTTL time.Duration
	// Options are the policy of everything that uses a channel.
	Options func(channels ...domain.Channel) []framework.HandlerOption
}

// Subscribe registers the service's consumers with a. Each route is a consumer
// of its own, with its own group: what one channel does never repeats another.
func Subscribe(a *framework.App, c Consumers) error {
	framework.HandleTx(a, orders.Placed, "remember-contact", c.Remember.Handle)
	for _, r := range c.Routes {
		switch r.Event {
		case orders.Confirmed.Name():
			notify(a, c, r, orders.Confirmed, app.TellConfirmed)
		case orders.Cancelled.Name():
			notify(a, c, r, orders.Cancelled, app.TellCancelled)
		case payments.Failed.Name():
			notify(a, c, r, payments.Failed, app.TellPaymentFailed)
		case payments.Refunded.Name():
			notify(a, c, r, payments.Refunded, app.TellRefunded)
		default:
			return fmt.Errorf("no message is made of event %q: use one of %s", r.Event, strings.Join(RoutableEvents(), ", "))
		}
	}
	var channels []domain.Channel
	for name := range c.Sender.Channels {
		channels = append(channels, name)
	}
	slices.Sort(channels)
	framework.HandleCall[app.ResendRequestedData, app.Result](a, app.ResendRequested, "resend", app.Resend{Sender: c.Sender}, c.Options(channels...)...)
	if c.Sender.Keeper != nil {
		framework.HandleCall[app.CodeRequestedData, app.Result](a, app.CodeRequested, "send-code", app.SendCode{Sender: c.Sender},
			append(c.Options(channels...), framework.MaxAge(c.CodeTTL))...)
	}
	return nil
}

func notify[T any](a *framework.App, c Consumers, r Route, t events.Type[T], tell func(T) app.Story) {
	h := app.Notify[T]{Sender: c.Sender, Contacts: c.Contacts, Channel: r.Channel, Template: r.Template, Tell: tell}
	framework.HandleCall[T, app.Result](a, t, r.Handler(), h, append(c.Options(r.Channel), framework.MaxAge(c.MaxAge))...)
}
