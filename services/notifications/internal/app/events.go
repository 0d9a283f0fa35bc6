package app

import (
	"errors"

	"github.com/headrace-go/headrace/pkg/events"
)

// The events that the service writes for itself alone, so that a request over
// HTTP only writes and the send is a consumer's work.
var (
	// CodeRequested: someone asked for a one-time code, which is ready to send.
	CodeRequested = events.Define[CodeRequestedData]("notification.code_requested", "1.0")
	// ResendRequested: a person decided to send a notification again.
	ResendRequested = events.Define[ResendRequestedData]("notification.resend_requested", "1.0")
)

// CodeRequestedData is the data of notification.code_requested. It holds
// neither the code nor the recipient.
type CodeRequestedData struct {
	CodeID  string `json:"code_id"`
	Channel string `json:"channel"`
}

// Validate reports each required field that is missing.
func (d CodeRequestedData) Validate() error {
	return errors.Join(events.Require("code_id", d.CodeID), events.Require("channel", d.Channel))
}

// ResendRequestedData is the data of notification.resend_requested.
type ResendRequestedData struct {
	NotificationID string `json:"notification_id"`
	// Resend counts the requests for this notification, this one included.
	Resend int `json:"resend"`
}

// Validate reports each required field that is missing.
func (d ResendRequestedData) Validate() error {
	if d.Resend < 1 {
		return errors.Join(events.Require("notification_id", d.NotificationID), errors.New("resend is below 1"))
	}
	return events.Require("notification_id", d.NotificationID)
}
