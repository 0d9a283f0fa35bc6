// Package domain holds the rules of a notification: through which states one
// send goes, what may be repeated and what may not, and how a one-time code is
// made and checked. It knows no database, no broker and no provider.
package domain

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// State is where a notification stands.
type State string

// The states of a notification.
//
// Sending means that an attempt has begun and its outcome is not yet written
// down. Pending means that the last attempt certainly sent nothing and another
// one will come. Unknown means that an attempt may have sent, may have not, and
// the channel can't be asked twice: a person decides.
const (
	Pending State = "pending"
	Sending State = "sending"
	Sent    State = "sent"
	Failed  State = "failed"
	Unknown State = "unknown"
)

// States lists every state.
func States() []State { return []State{Pending, Sending, Sent, Failed, Unknown} }

// Final tells whether no attempt follows by itself.
func (s State) Final() bool { return s == Sent || s == Failed || s == Unknown }

// Channel is a way to reach someone.
type Channel string

// The channels.
const (
	Email    Channel = "email"
	SMS      Channel = "sms"
	WhatsApp Channel = "whatsapp"
	Webhook  Channel = "webhook"
)

// Channels lists every channel.
func Channels() []Channel { return []Channel{Email, SMS, WhatsApp, Webhook} }

// Valid tells whether c is one of the channels.
func (c Channel) Valid() bool { return slices.Contains(Channels(), c) }

// Reasons that the service itself gives for a failed or unknown notification. A
// provider's refusal has a reason of its own ("smtp_550").
const (
	ReasonOutcomeUnknown = "outcome_unknown"
	ReasonNoAddress      = "no_address"
	ReasonBadAddress     = "bad_address"
	ReasonExpired        = "expired"
	// ReasonTemporary stands beside a pending one.
	ReasonTemporary = "temporary_failure"
)

// Facts are what a message tells. They hold no address and no code.
type Facts struct {
	OrderID string `json:"order_id,omitempty"`
	// Amount is in the currency's minor units.
	Amount   int64  `json:"amount,omitempty"`
	Currency string `json:"currency,omitempty"`
	// Reason is a code: "declined", "customer_request".
	Reason string `json:"reason,omitempty"`
	// CodeID names the one-time code that the message carries.
	CodeID string `json:"code_id,omitempty"`
}

// Notification is one message to one recipient over one channel. There is at
// most one for an event and a channel. Times are UTC; zero means "not yet".
type Notification struct {
	ID string
	// EventID and EventType name the event that asked for it.
	EventID   string
	EventType string
	Channel   Channel
	Template  string
	OrderID   string // empty for a one-time code
	Recipient string // empty for a webhook, whose address is configuration
	Language  string // BCP 47, lower case
	Facts     Facts

	State State
	// Reason says why it failed or is unknown, or what the last attempt met.
	Reason string
	// Reference is the provider's.
	Reference string
	// Attempts counts the attempts begun.
	Attempts int
	// Resends counts how often a person asked to send it again.
	Resends int

	CreatedAt time.Time
	UpdatedAt time.Time
	SentAt    time.Time
}

// Key is the idempotency key of the current send: stable over every attempt and
// crash, new only when a person asked to send again.
func (n Notification) Key() string { return SendKey(n.EventID, n.Channel, n.Resends) }

// Begin starts an attempt. Idempotent tells that the channel recognises a
// repeated Key. When an earlier attempt left no outcome and the channel is not
// idempotent, the notification becomes Unknown and nothing may be sent. A final
// notification stays as it is.
func (n *Notification) Begin(idempotent bool, now time.Time) {
	switch {
	case n.State.Final():
		return
	case n.State == Sending && !idempotent:
		n.State, n.Reason = Unknown, ReasonOutcomeUnknown
	default:
		n.State = Sending
		n.Attempts++
	}
	n.UpdatedAt = now
}

// NotSent writes down that the attempt certainly sent nothing.
func (n *Notification) NotSent(reason string, now time.Time) {
	if n.State == Sending {
		n.State, n.Reason, n.UpdatedAt = Pending, reason, now
	}
}

// MarkSent writes down that the channel took the message.
func (n *Notification) MarkSent(reference string, now time.Time) {
	n.State, n.Reason, n.Reference = Sent, "", reference
	n.SentAt, n.UpdatedAt = now, now
}

// MarkFailed writes down a refusal that no retry can mend.
func (n *Notification) MarkFailed(reason string, now time.Time) {
	n.State, n.Reason, n.UpdatedAt = Failed, reason, now
}

// MarkUnknown writes down that nobody can tell whether the message went out.
func (n *Notification) MarkUnknown(now time.Time) {
	n.State, n.Reason, n.UpdatedAt = Unknown, ReasonOutcomeUnknown, now
}

// ErrNotResendable is in the chain of a *ResendError.
var ErrNotResendable = errors.New("notification can't be sent again")

// ResendError says why a notification can't be sent again.
type ResendError struct {
	ID      string
	State   State
	Because string
}

// Error names the notification, its state and why.
func (e *ResendError) Error() string {
	return fmt.Sprintf("notification %s is %s: can't send again: %s", e.ID, e.State, e.Because)
}

// Is reports ErrNotResendable.
func (e *ResendError) Is(target error) bool { return target == ErrNotResendable }

// RequestResend makes a failed or unknown notification ready for one more send
// under a new key: the decision of a person who accepts that an unknown one may
// arrive twice. It fails with a *ResendError for any other state, and for a
// one-time code, of which a new one should be asked for.
func (n *Notification) RequestResend(now time.Time) error {
	switch {
	case n.Facts.CodeID != "":
		return &ResendError{ID: n.ID, State: n.State, Because: "it carries a one-time code; ask for a new code"}
	case n.State != Failed && n.State != Unknown:
		return &ResendError{ID: n.ID, State: n.State, Because: "only failed and unknown ones can be"}
	}
	n.State, n.Reason, n.UpdatedAt = Pending, "", now
	n.Resends++
	return nil
}
