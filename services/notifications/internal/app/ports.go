// Package app holds the use cases of the notifications service: who is told
// what over which channel, at most once; one-time codes; and what a person may
// look at and decide.
package app

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

// ErrNotFound is in the chain of an error about something that is not there.
var ErrNotFound = errors.New("not found")

// Transactor runs fn in one transaction, which it commits when fn returns nil.
// Fn may run more than once.
type Transactor interface {
	Tx(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error
}

// Contacts keeps how the customer of an order is reached.
type Contacts interface {
	// SaveContact writes c, unless a contact that became known later is there.
	SaveContact(ctx context.Context, tx *sql.Tx, c domain.Contact) error
	// Contact fails with ErrNotFound when the order is not known.
	Contact(ctx context.Context, tx *sql.Tx, orderID string) (domain.Contact, error)
}

// Notifications keeps every notification.
type Notifications interface {
	// Add writes n unless there is one for its event and channel, and tells
	// whether it wrote.
	Add(ctx context.Context, tx *sql.Tx, n domain.Notification) (added bool, err error)
	// LockForEvent returns the notification of an event and channel, locked
	// until the transaction ends, or ErrNotFound.
	LockForEvent(ctx context.Context, tx *sql.Tx, eventID string, channel domain.Channel) (domain.Notification, error)
	// Lock returns a notification by id, locked until the transaction ends, or
	// ErrNotFound.
	Lock(ctx context.Context, tx *sql.Tx, id string) (domain.Notification, error)
	// ForEvent returns the notification of an event and channel, or ErrNotFound.
	ForEvent(ctx context.Context, eventID string, channel domain.Channel) (domain.Notification, error)
	// Get returns a notification by id, or ErrNotFound.
	Get(ctx context.Context, id string) (domain.Notification, error)
	// Save overwrites what may change of a notification that was locked in tx.
	Save(ctx context.Context, tx *sql.Tx, n domain.Notification) error
	// List returns the newest first, up to q.Limit.
	List(ctx context.Context, q Query) ([]domain.Notification, error)
}

// Codes keeps one-time codes and counts them by recipient.
type Codes interface {
	// CountIssue counts one more code for a recipient and returns how many
	// there are in the current window and when the window began. A window that
	// began at or before expired is over, and a new one begins at now.
	CountIssue(ctx context.Context, tx *sql.Tx, recipientHash string, now, expired time.Time) (issued int, since time.Time, err error)
	AddCode(ctx context.Context, tx *sql.Tx, c domain.Code) error
	// Code returns a code, or ErrNotFound.
	Code(ctx context.Context, tx *sql.Tx, id string) (domain.Code, error)
	// CountAttempt counts one attempt at a code that is neither used nor
	// expired at now and has had fewer than max attempts, and returns it,
	// locked until the transaction ends. Any other code is ErrNotFound.
	CountAttempt(ctx context.Context, tx *sql.Tx, id string, now time.Time, max int) (domain.Code, error)
	// Consume marks a code used and wipes its sealed digits.
	Consume(ctx context.Context, tx *sql.Tx, id string, now time.Time) error
	// Wipe forgets a code's sealed digits.
	Wipe(ctx context.Context, tx *sql.Tx, id string) error
}

// Purger deletes what is no longer needed, up to limit rows a call, and returns
// how many rows it deleted.
type Purger interface {
	PurgeNotifications(ctx context.Context, before time.Time, limit int) (int, error)
	PurgeContacts(ctx context.Context, before time.Time, limit int) (int, error)
	PurgeCodes(ctx context.Context, expiredBefore time.Time, limit int) (int, error)
	PurgeCodeLimits(ctx context.Context, before time.Time, limit int) (int, error)
}

// Query selects notifications.
type Query struct {
	OrderID string       // empty: any
	State   domain.State // empty: any
	// Before continues after the last one of an earlier page; zero starts at
	// the newest.
	Before Position
	Limit  int
}

// Position is a place in the list of notifications.
type Position struct {
	CreatedAt time.Time
	ID        string
}

// Message is one rendered message on its way out.
type Message struct {
	// Key is the idempotency key of this send.
	Key            string
	NotificationID string
	EventID        string
	EventType      string
	Template       string
	OrderID        string
	Recipient      string
	Language       string
	Facts          domain.Facts
	// CreatedAt is when the notification was first prepared: the same in every
	// attempt.
	CreatedAt time.Time
	Content   Content
}

// Content is what a template made. A channel without text (the webhook) has
// none.
type Content struct {
	Subject string
	Text    string
	HTML    string
}

// Channel hands one message to the outside world. It is safe for concurrent
// use, gives up when ctx ends, and puts no address and no content in an error.
//
// A nil error means that the message was taken, and reference is what the other
// side calls it. The errors:
//   - *RefusedError: nothing was sent and no retry will help.
//   - ErrOutcomeUnknown: it may have been sent.
//   - *ThrottledError: nothing was taken; not before a given delay.
//   - anything else: a channel that is not idempotent has certainly sent
//     nothing; an idempotent one may be asked again under the same key.
type Channel interface {
	// Idempotent tells whether a repeated Message.Key sends nothing twice.
	Idempotent() bool
	Send(ctx context.Context, m Message) (reference string, err error)
}

// Renderer makes a message's content.
type Renderer interface {
	// Has tells whether a template exists for a channel, in the fallback
	// language at least.
	Has(channel domain.Channel, template string) bool
	// Render writes the template in the first language of the recipient's
	// fallback chain that has it.
	Render(channel domain.Channel, template, language string, v View) (Content, error)
}

// View is what a template may show.
type View struct {
	Facts domain.Facts
	// Code and ValidMinutes are set for a one-time code.
	Code         string
	ValidMinutes int
}

// ErrOutcomeUnknown says that a channel lost the connection at the one moment
// where the message may have been taken.
var ErrOutcomeUnknown = errors.New("outcome unknown")

// RefusedError says that the other side will never take the message.
type RefusedError struct {
	// Reason is a short code without personal data: "smtp_550".
	Reason string
}

// Error names the reason.
func (e *RefusedError) Error() string { return "refused: " + e.Reason }

// ThrottledError says that the other side asks for patience.
type ThrottledError struct {
	After time.Duration
	Err   error
}

// Error is what the other side answered.
func (e *ThrottledError) Error() string { return e.Err.Error() }

// Unwrap returns what the other side answered.
func (e *ThrottledError) Unwrap() error { return e.Err }

// Clock tells the time. Nil means time.Now.
type Clock func() time.Time

// now returns the time as the store keeps it: UTC, in microseconds.
func (c Clock) now() time.Time {
	if c == nil {
		c = time.Now
	}
	return c().UTC().Truncate(time.Microsecond)
}
