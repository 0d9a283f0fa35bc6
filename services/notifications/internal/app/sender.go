package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/notifications"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

// CodeTemplate is the template of the message that carries a one-time code.
const CodeTemplate = "one_time_code"

// Sender takes one notification through its states, so that it goes out at most
// once. It works in the three steps of a framework.CallHandler:
//
//   - prepare writes that an attempt begins. When an earlier attempt left no
//     outcome (the process died between the send and the commit) and the channel
//     is not idempotent, it ends there: the notification is unknown, and a
//     person decides.
//   - call sends, with no transaction open. What certainly sent nothing is
//     written down at once, so that the next attempt may send.
//   - commit writes the outcome and tells of it, in one commit with the inbox
//     row.
type Sender struct {
	// Tx, Notifications, Renderer, Channels and Logger are required.
	Tx            Transactor
	Notifications Notifications
	Renderer      Renderer
	Channels      map[domain.Channel]Channel
	Logger        *slog.Logger
	// Codes and Keeper are required where one-time codes are sent.
	Codes  Codes
	Keeper *domain.CodeKeeper
	Clock  Clock
}

// Result is what became of one call.
type Result struct {
	// state is Sent, Failed or Unknown; empty when there was nothing to do
	// because another delivery or a person came first.
	state     domain.State
	reference string
	reason    string
	resends   int
}

// channel returns a configured channel, or an error that no retry can mend.
func (s *Sender) channel(name domain.Channel) (Channel, error) {
	ch, ok := s.Channels[name]
	if !ok {
		return nil, framework.Permanent(fmt.Errorf("channel %s is not configured: set it up, then replay the dead letter", name))
	}
	return ch, nil
}

// prepare begins the first or another attempt at n, which has no state yet.
func (s *Sender) prepare(ctx context.Context, tx *sql.Tx, n domain.Notification) error {
	ch, err := s.channel(n.Channel)
	if err != nil {
		return err
	}
	now := s.Clock.now()
	n.ID, n.State, n.CreatedAt = events.NewID(), domain.Pending, now
	if n.Reason == "" {
		n.Reason = domain.CheckAddress(n.Channel, n.Recipient)
	}
	if n.Reason != "" {
		n.MarkFailed(n.Reason, now)
	} else {
		n.Begin(ch.Idempotent(), now)
	}
	added, err := s.Notifications.Add(ctx, tx, n)
	switch {
	case err != nil:
		return err
	case !added:
		if n, err = s.Notifications.LockForEvent(ctx, tx, n.EventID, n.Channel); err != nil {
			return err
		}
		if n.Resends > 0 {
			// A person took over: the event has nothing more to say.
			return framework.ErrDone
		}
		return s.again(ctx, tx, n)
	case n.State == domain.Failed:
		return s.end(ctx, tx, n)
	}
	return nil
}

// again begins another attempt at n, which is locked in tx.
func (s *Sender) again(ctx context.Context, tx *sql.Tx, n domain.Notification) error {
	if n.State.Final() {
		return framework.ErrDone
	}
	ch, err := s.channel(n.Channel)
	if err != nil {
		return err
	}
	n.Begin(ch.Idempotent(), s.Clock.now())
	if err := s.Notifications.Save(ctx, tx, n); err != nil {
		return err
	}
	if n.State == domain.Unknown {
		s.Logger.WarnContext(ctx, "an earlier attempt left no outcome: a person must decide", "notification", n.ID, "channel", n.Channel)
		return s.end(ctx, tx, n)
	}
	return nil
}

// end tells of a notification that ended before a call.
func (s *Sender) end(ctx context.Context, tx *sql.Tx, n domain.Notification) error {
	if err := s.tell(ctx, tx, n, Result{state: n.State, reason: n.Reason}); err != nil {
		return err
	}
	return framework.ErrDone
}

// call sends n as it was read after prepare.
func (s *Sender) call(ctx context.Context, n domain.Notification, resends int) (Result, error) {
	if n.State != domain.Sending || n.Resends != resends {
		return Result{}, nil
	}
	ch, err := s.channel(n.Channel)
	if err != nil {
		return Result{}, errors.Join(err, s.notSent(ctx, n))
	}
	content, err := s.render(ctx, n)
	if err != nil {
		if errors.Is(err, domain.ErrCodeGone) || errors.Is(err, ErrNotFound) {
			return Result{state: domain.Failed, reason: domain.ReasonExpired, resends: resends}, nil
		}
		return Result{}, errors.Join(err, s.notSent(ctx, n))
	}
	reference, err := ch.Send(ctx, Message{
		Key: n.Key(), NotificationID: n.ID, EventID: n.EventID, EventType: n.EventType, Template: n.Template,
		OrderID: n.OrderID, Recipient: n.Recipient, Language: n.Language, Facts: n.Facts, CreatedAt: n.CreatedAt, Content: content,
	})
	var (
		refused   *RefusedError
		throttled *ThrottledError
	)
	switch {
	case err == nil:
		return Result{state: domain.Sent, reference: reference, resends: resends}, nil
	case errors.As(err, &refused):
		return Result{state: domain.Failed, reason: refused.Reason, resends: resends}, nil
	case errors.Is(err, ErrOutcomeUnknown) && !ch.Idempotent():
		return Result{state: domain.Unknown, reason: domain.ReasonOutcomeUnknown, resends: resends}, nil
	case errors.Is(err, ErrOutcomeUnknown):
		return Result{}, fmt.Errorf("send over %s: %w", n.Channel, err)
	}
	err = errors.Join(fmt.Errorf("send over %s: %w", n.Channel, err), s.notSent(ctx, n))
	if errors.As(err, &throttled) {
		return Result{}, framework.RetryAfter(err, throttled.After)
	}
	return Result{}, err
}

func (s *Sender) render(ctx context.Context, n domain.Notification) (Content, error) {
	if n.Channel == domain.Webhook {
		return Content{}, nil
	}
	v := View{Facts: n.Facts}
	if n.Facts.CodeID != "" {
		var code domain.Code
		err := s.Tx.Tx(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
			code, err = s.Codes.Code(ctx, tx, n.Facts.CodeID)
			return err
		})
		if err != nil {
			return Content{}, err
		}
		if v.Code, err = s.Keeper.Open(code); err != nil {
			return Content{}, err
		}
		v.ValidMinutes = int(code.ExpiresAt.Sub(code.CreatedAt) / time.Minute)
	}
	c, err := s.Renderer.Render(n.Channel, n.Template, n.Language, v)
	if err != nil {
		return Content{}, framework.Permanent(err)
	}
	return c, nil
}

// noteTimeout bounds writing down that nothing was sent.
const noteTimeout = 5 * time.Second

// notSent writes down that n's attempt certainly sent nothing. It uses a
// context of its own, since the attempt's may be what ended it. Should it fail,
// the next attempt finds the attempt open and errs towards not sending twice.
func (s *Sender) notSent(ctx context.Context, n domain.Notification) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	err := s.Tx.Tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		now, err := s.Notifications.Lock(ctx, tx, n.ID)
		if err != nil {
			return err
		}
		if now.Attempts != n.Attempts || now.Resends != n.Resends {
			return nil // another attempt has begun: its word counts
		}
		now.NotSent(domain.ReasonTemporary, s.Clock.now())
		return s.Notifications.Save(ctx, tx, now)
	})
	if err != nil {
		return fmt.Errorf("note that nothing was sent: %w", err)
	}
	return nil
}

// commit writes down what became of n, which is locked in tx, and tells of it.
func (s *Sender) commit(ctx context.Context, tx *sql.Tx, n domain.Notification, r Result) error {
	if r.state == "" {
		return nil
	}
	// What is sent is sent, and a person's later request has its own outcome.
	if n.Resends == r.resends && n.State != domain.Sent {
		now := s.Clock.now()
		switch r.state {
		case domain.Sent:
			n.MarkSent(r.reference, now)
		case domain.Unknown:
			n.MarkUnknown(now)
		default:
			n.MarkFailed(r.reason, now)
		}
		if err := s.Notifications.Save(ctx, tx, n); err != nil {
			return err
		}
	}
	s.Logger.InfoContext(ctx, "notification "+string(r.state), "notification", n.ID, "channel", n.Channel, "template", n.Template,
		"attempts", n.Attempts, "reason", r.reason)
	return s.tell(ctx, tx, n, r)
}

// tell emits notification.sent or notification.failed.
func (s *Sender) tell(ctx context.Context, tx *sql.Tx, n domain.Notification, r Result) error {
	if n.Facts.CodeID != "" {
		if err := s.Codes.Wipe(ctx, tx, n.Facts.CodeID); err != nil {
			return err
		}
	}
	key := n.OrderID
	if key == "" {
		key = n.ID
	}
	if r.state == domain.Sent {
		return framework.Emit(ctx, tx, notifications.Sent.New(key, notifications.SentData{
			NotificationID: n.ID, EventID: n.EventID, EventType: n.EventType, Channel: string(n.Channel), Template: n.Template,
			OrderID: n.OrderID, ProviderReference: r.reference,
		}))
	}
	return framework.Emit(ctx, tx, notifications.Failed.New(key, notifications.FailedData{
		NotificationID: n.ID, EventID: n.EventID, EventType: n.EventType, Channel: string(n.Channel), Template: n.Template,
		OrderID: n.OrderID, Reason: r.reason,
	}))
}
