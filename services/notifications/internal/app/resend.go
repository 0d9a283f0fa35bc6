package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

// Resend sends a failed or unknown notification again when a person decides so.
// It is also the framework.CallHandler that does the send.
type Resend struct {
	// Sender is required.
	Sender *Sender
}

// Request notes the decision and returns the notification as it is then. An
// unknown id is ErrNotFound, a notification in another state a
// *domain.ResendError.
func (r Resend) Request(ctx context.Context, id string) (domain.Notification, error) {
	var n domain.Notification
	err := r.Sender.Tx.Tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var err error
		if n, err = r.Sender.Notifications.Lock(ctx, tx, id); err != nil {
			return err
		}
		if err := n.RequestResend(r.Sender.Clock.now()); err != nil {
			return err
		}
		if err := r.Sender.Notifications.Save(ctx, tx, n); err != nil {
			return err
		}
		return framework.Emit(ctx, tx, ResendRequested.New(n.ID, ResendRequestedData{NotificationID: n.ID, Resend: n.Resends}))
	})
	if err != nil {
		return domain.Notification{}, fmt.Errorf("request a resend: %w", err)
	}
	return n, nil
}

// Prepare begins an attempt at the resend.
func (r Resend) Prepare(ctx context.Context, tx *sql.Tx, e events.Event[ResendRequestedData]) error {
	n, err := r.Sender.Notifications.Lock(ctx, tx, e.Data.NotificationID)
	if errors.Is(err, ErrNotFound) {
		return framework.Skip(err)
	}
	if err != nil {
		return err
	}
	if n.Resends != e.Data.Resend {
		return framework.ErrDone // a later request has taken over
	}
	return r.Sender.again(ctx, tx, n)
}

// Call sends.
func (r Resend) Call(ctx context.Context, e events.Event[ResendRequestedData]) (Result, error) {
	n, err := r.Sender.Notifications.Get(ctx, e.Data.NotificationID)
	if err != nil {
		return Result{}, err
	}
	return r.Sender.call(ctx, n, e.Data.Resend)
}

// Commit writes down the outcome.
func (r Resend) Commit(ctx context.Context, tx *sql.Tx, e events.Event[ResendRequestedData], res Result) error {
	n, err := r.Sender.Notifications.Lock(ctx, tx, e.Data.NotificationID)
	if err != nil {
		return err
	}
	return r.Sender.commit(ctx, tx, n, res)
}
