package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

// RateLimitedError says that a recipient has had enough codes for now.
type RateLimitedError struct {
	// RetryAfter is when the next one may be asked for.
	RetryAfter time.Duration
}

// Error names the wait.
func (e *RateLimitedError) Error() string {
	return fmt.Sprintf("too many codes for this recipient: try again in %s", e.RetryAfter.Round(time.Second))
}

// OneTimeCodes makes, sends and verifies one-time codes.
type OneTimeCodes struct {
	// Tx, Codes and Keeper are required.
	Tx     Transactor
	Codes  Codes
	Keeper *domain.CodeKeeper
	Policy domain.CodePolicy
	Clock  Clock
}

// Request makes a code and has it sent. A request that breaks the rules is a
// *domain.ValidationError, one too many a *RateLimitedError.
func (o OneTimeCodes) Request(ctx context.Context, req domain.CodeRequest) (domain.Code, error) {
	now := o.Clock.now()
	code, err := domain.NewCode(events.NewID(), req, o.Policy, now)
	if err != nil {
		return domain.Code{}, err
	}
	if code, err = o.Keeper.Issue(code); err != nil {
		return domain.Code{}, err
	}
	err = o.Tx.Tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		issued, since, err := o.Codes.CountIssue(ctx, tx, code.RecipientHash, now, now.Add(-o.Policy.Window))
		if err != nil {
			return err
		}
		if issued > o.Policy.Limit {
			return &RateLimitedError{RetryAfter: since.Add(o.Policy.Window).Sub(now)}
		}
		if err := o.Codes.AddCode(ctx, tx, code); err != nil {
			return err
		}
		return framework.Emit(ctx, tx, CodeRequested.New(code.ID, CodeRequestedData{CodeID: code.ID, Channel: string(code.Channel)}))
	})
	if err != nil {
		return domain.Code{}, fmt.Errorf("request a code: %w", err)
	}
	return code, nil
}

// Verify tells whether digits are the code's, for the purpose that it was asked
// for. A code verifies once. Every try counts; an unknown, used, expired or too
// often tried code is false like a wrong one, in the same time.
func (o OneTimeCodes) Verify(ctx context.Context, id, purpose, digits string) (bool, error) {
	var ok bool
	err := o.Tx.Tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		ok = false
		now := o.Clock.now()
		code, err := o.Codes.CountAttempt(ctx, tx, id, now, o.Policy.MaxAttempts)
		if errors.Is(err, ErrNotFound) {
			o.Keeper.Waste(id, purpose, digits)
			return nil
		}
		if err != nil {
			return err
		}
		if !o.Keeper.Matches(code, purpose, digits) {
			return nil
		}
		ok = true
		return o.Codes.Consume(ctx, tx, id, now)
	})
	if err != nil {
		return false, fmt.Errorf("verify a code: %w", err)
	}
	return ok, nil
}

// SendCode sends the message that carries a code. It is a
// framework.CallHandler.
type SendCode struct {
	// Sender is required, with its Codes and Keeper.
	Sender *Sender
}

// Prepare begins an attempt. A code that has expired meanwhile is not sent.
func (h SendCode) Prepare(ctx context.Context, tx *sql.Tx, e events.Event[CodeRequestedData]) error {
	code, err := h.Sender.Codes.Code(ctx, tx, e.Data.CodeID)
	if errors.Is(err, ErrNotFound) {
		return framework.Skip(err)
	}
	if err != nil {
		return err
	}
	n := domain.Notification{
		EventID: e.ID, EventType: e.Type, Channel: code.Channel, Template: CodeTemplate,
		Recipient: code.Recipient, Language: code.Language, Facts: domain.Facts{CodeID: code.ID},
	}
	if !code.ExpiresAt.After(h.Sender.Clock.now()) {
		n.Reason = domain.ReasonExpired
	}
	return h.Sender.prepare(ctx, tx, n)
}

// Call sends.
func (h SendCode) Call(ctx context.Context, e events.Event[CodeRequestedData]) (Result, error) {
	n, err := h.Sender.Notifications.ForEvent(ctx, e.ID, domain.Channel(e.Data.Channel))
	if err != nil {
		return Result{}, err
	}
	return h.Sender.call(ctx, n, 0)
}

// Commit writes down the outcome and forgets the digits.
func (h SendCode) Commit(ctx context.Context, tx *sql.Tx, e events.Event[CodeRequestedData], r Result) error {
	n, err := h.Sender.Notifications.LockForEvent(ctx, tx, e.ID, domain.Channel(e.Data.Channel))
	if err != nil {
		return err
	}
	return h.Sender.commit(ctx, tx, n, r)
}
