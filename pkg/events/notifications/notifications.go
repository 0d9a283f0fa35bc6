// Package notifications holds the events that the notifications service owns.
// The ordering key of each is the order's id.
package notifications

import (
	"errors"

	"github.com/headrace-go/headrace/pkg/events"
)

// The events of a notification.
var (
	// Sent: a provider has accepted the message.
	Sent = events.Define[SentData]("notification.sent", "1.0")
	// Failed: the message will not be sent.
	Failed = events.Define[FailedData]("notification.failed", "1.0")
)

// Descriptors returns all event types of this package.
func Descriptors() []events.Descriptor {
	return []events.Descriptor{Sent.Descriptor(), Failed.Descriptor()}
}

// SentData is the data of notification.sent. It names no recipient.
type SentData struct {
	NotificationID string `json:"notification_id"`
	// EventID and EventType name the event that the notification is about.
	EventID   string `json:"event_id"`
	EventType string `json:"event_type"`
	// Channel is how it was sent: "email", "sms", "whatsapp", "webhook".
	Channel  string `json:"channel"`
	Template string `json:"template"`
	// OrderID is empty for a notification that is about no order.
	OrderID string `json:"order_id"`
	// ProviderReference is the provider's own id of the message, if it gave one.
	ProviderReference string `json:"provider_reference"`
}

// Validate reports each required field that is missing.
func (d SentData) Validate() error {
	return required(d.NotificationID, d.EventID, d.EventType, d.Channel, d.Template)
}

// FailedData is the data of notification.failed. It names no recipient.
type FailedData struct {
	NotificationID string `json:"notification_id"`
	// EventID and EventType name the event that the notification is about.
	EventID   string `json:"event_id"`
	EventType string `json:"event_type"`
	// Channel is how it should have been sent.
	Channel  string `json:"channel"`
	Template string `json:"template"`
	// OrderID is empty for a notification that is about no order.
	OrderID string `json:"order_id"`
	// Reason is a short code, such as "rejected_by_provider".
	Reason string `json:"reason"`
}

// Validate reports each required field that is missing.
func (d FailedData) Validate() error {
	return errors.Join(required(d.NotificationID, d.EventID, d.EventType, d.Channel, d.Template),
		events.Require("reason", d.Reason))
}

func required(notificationID, eventID, eventType, channel, template string) error {
	return errors.Join(
		events.Require("notification_id", notificationID), events.Require("event_id", eventID),
		events.Require("event_type", eventType), events.Require("channel", channel), events.Require("template", template))
}
