package service

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
	notificationevents "github.com/headrace-go/headrace/pkg/events/notifications"
	"github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/pkg/events/payments"
	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
	"github.com/headrace-go/headrace/services/notifications/internal/outbound"
	"github.com/headrace-go/headrace/services/notifications/webhook"
)

var (
	total    = events.Money{Amount: 2797, Currency: "EUR"}
	customer = orders.Customer{ID: "cus_1", Email: "ada@example.com", Phone: "+441632960961", Language: "de-AT"}
)

func placed(order string) events.Draft {
	return orders.Placed.New(order, orders.PlacedData{
		OrderID: order, Customer: customer, Lines: []orders.Line{{SKU: "BOOK", Quantity: 1, UnitPrice: total}}, Total: total, PaymentToken: "tok_ok",
	})
}

func confirmed(order string, opts ...events.DraftOption) events.Draft {
	return orders.Confirmed.New(order, orders.ConfirmedData{OrderID: order, Customer: customer, Total: total, PaymentID: "pay_1"}, opts...)
}

func cancelled(order string) events.Draft {
	return orders.Cancelled.New(order, orders.CancelledData{OrderID: order, Customer: customer, Total: total, Reason: "customer_request", PreviousState: "confirmed"})
}

func paymentFailed(order string) events.Draft {
	return payments.Failed.New(order, payments.FailedData{OrderID: order, PaymentID: "pay_1", Amount: total, Reason: "declined"})
}

func refunded(order string) events.Draft {
	return payments.Refunded.New(order, payments.RefundedData{OrderID: order, PaymentID: "pay_1", RefundID: "ref_1", Amount: total})
}

// mails reads the mails in the folder, by file name.
func (h *harness) mails() map[string]*mail.Message {
	h.t.Helper()
	files, err := filepath.Glob(filepath.Join(h.folder, "*.eml"))
	require.NoError(h.t, err)
	mails := map[string]*mail.Message{}
	for _, file := range files {
		f, err := os.Open(file)
		require.NoError(h.t, err)
		m, err := mail.ReadMessage(f)
		require.NoError(h.t, err)
		require.NoError(h.t, f.Close())
		mails[filepath.Base(file)] = m
	}
	return mails
}

// B21, this service's part: the mail's event names its parent and carries the
// journey's correlation id.
func TestCustomerGetsOneMailForAConfirmedOrder(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db, setup{})
		e := h.publish(confirmed("o-1"))
		sent := h.next("notification.sent")
		require.Equal(t, "journey-1", sent.Metadata.CorrelationID)
		require.Equal(t, e.ID, sent.Metadata.CausationID)
		require.Equal(t, "o-1", sent.Metadata.OrderingKey)
		d := frameworktest.Data[notificationevents.SentData](t, sent)
		require.Equal(t, notificationevents.SentData{
			NotificationID: d.NotificationID, EventID: e.ID, EventType: "order.confirmed", Channel: "email", Template: "order_confirmed",
			OrderID: "o-1", ProviderReference: e.ID + "-email.eml",
		}, d)

		mails := h.mails()
		require.Len(t, mails, 1)
		m := mails[e.ID+"-email.eml"]
		require.Equal(t, "<ada@example.com>", m.Header.Get("To"))

		// The same event again, and after it another one that shows the first is done.
		h.Send("order.confirmed", e)
		h.publish(confirmed("o-2"))
		h.next("notification.sent")
		h.Settled("order.confirmed", Name+".order-confirmed-email")
		h.events.Silent()
		require.Len(t, h.mails(), 2)

		list := h.list("order_id=o-1")
		require.Len(t, list, 1)
		require.Equal(t, "sent", list[0]["state"])
		require.Equal(t, "a***@example.com", list[0]["recipient"])
		require.Equal(t, "de-at", list[0]["language"])
		res := h.Call(http.MethodGet, "/v1/notifications/"+d.NotificationID, "")
		require.Equal(t, list[0], res.Object(t))
		require.Equal(t, http.StatusConflict, h.Call(http.MethodPost, "/v1/notifications/"+d.NotificationID+"/resend", "").Status)
	})
}

func TestEachEventHasItsOwnMessage(t *testing.T) {
	t.Parallel()
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{})
	h.publish(placed("o-1"))
	for event, d := range map[string]events.Draft{
		"order.confirmed": confirmed("o-1"), "order.cancelled": cancelled("o-1"), "payment.failed": paymentFailed("o-1"), "payment.refunded": refunded("o-1"),
	} {
		e := h.publish(d)
		got := frameworktest.Data[notificationevents.SentData](t, h.next("notification.sent"))
		require.Equal(t, event, got.EventType)
		require.Equal(t, e.ID, got.EventID)
	}
	require.Len(t, h.mails(), 4)
	require.Len(t, h.list("state=sent&order_id=o-1"), 4)
	h.events.Silent()
}

// The contact comes with order.placed, on another topic that may lag.
func TestPaymentEventWaitsForTheContact(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db, setup{})
		h.publish(paymentFailed("o-1"))
		h.publish(confirmed("o-2")) // goes its way meanwhile
		require.Equal(t, "order.confirmed", frameworktest.Data[notificationevents.SentData](t, h.next("notification.sent")).EventType)
		require.Empty(t, h.list("order_id=o-1"))
		h.publish(placed("o-1"))
		require.Equal(t, "payment.failed", frameworktest.Data[notificationevents.SentData](t, h.next("notification.sent")).EventType)
		require.EqualValues(t, 1, h.list("order_id=o-1")[0]["attempts"], "waiting is no attempt")
	})
}

// crash leaves the tables as a process does that died between the send and the
// commit.
func (h *harness) crash(e events.Envelope, channel domain.Channel) {
	h.t.Helper()
	h.leave(e, channel, func(n *domain.Notification) { n.Begin(false, time.Now()) })
}

// leave puts a notification of the event into the tables.
func (h *harness) leave(e events.Envelope, channel domain.Channel, change func(*domain.Notification)) {
	h.t.Helper()
	store := outbound.NewStore(h.db.DB, h.db.Dialect)
	n := domain.Notification{
		ID: events.NewID(), EventID: e.ID, EventType: e.Type, Channel: channel, Template: "order_confirmed", OrderID: "o-1",
		Recipient: customer.Email, Language: "de", Facts: domain.Facts{OrderID: "o-1", Amount: 2797, Currency: "EUR"},
		State: domain.Pending, CreatedAt: time.Now(), UpdatedAt: time.Now(),
	}
	change(&n)
	require.NoError(h.t, sqltx.Run(h.t.Context(), h.db.DB, sqltx.Options{Dialect: h.db.Dialect}, func(ctx context.Context, tx *sql.Tx) error {
		_, err := store.Add(ctx, tx, n)
		return err
	}))
}

func TestCrashBetweenSendAndCommitOnAChannelThatCannotBeAskedTwice(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		ch := &fakeChannel{}
		h := start(t, db, setup{channels: map[domain.Channel]app.Channel{domain.Email: ch}})
		e := seal(t, confirmed("o-1"))
		h.crash(e, domain.Email)
		h.Send("order.confirmed", e)

		failed := frameworktest.Data[notificationevents.FailedData](t, h.next("notification.failed"))
		require.Equal(t, domain.ReasonOutcomeUnknown, failed.Reason)
		require.Empty(t, ch.keys(), "nothing is sent a second time")
		unknown := h.list("state=unknown")
		require.Len(t, unknown, 1)
		require.Equal(t, failed.NotificationID, unknown[0]["id"])

		// A person decides.
		res := h.Call(http.MethodPost, "/v1/notifications/"+failed.NotificationID+"/resend", "")
		require.Equal(t, http.StatusAccepted, res.Status, "%s", res.Body)
		sent := frameworktest.Data[notificationevents.SentData](t, h.next("notification.sent"))
		require.Equal(t, failed.NotificationID, sent.NotificationID)
		require.Equal(t, e.ID, sent.EventID)
		require.Equal(t, []string{e.ID + "-email-r1"}, ch.keys())
		got := h.list("order_id=o-1")
		require.Len(t, got, 1)
		require.Equal(t, "sent", got[0]["state"])
		require.EqualValues(t, 1, got[0]["resends"])
		require.Equal(t, http.StatusConflict, h.Call(http.MethodPost, "/v1/notifications/"+failed.NotificationID+"/resend", "").Status)

		// The event itself, delivered once more, has nothing to add.
		h.Send("order.confirmed", e)
		h.Settled("order.confirmed", Name+".order-confirmed-email")
		h.events.Silent()
		require.Len(t, ch.keys(), 1)
	})
}

func TestCrashBetweenSendAndCommitOnAnIdempotentChannel(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		ch := &fakeChannel{idempotent: true}
		h := start(t, db, setup{channels: map[domain.Channel]app.Channel{domain.Email: ch}})
		e := seal(t, confirmed("o-1"))
		h.crash(e, domain.Email)
		h.Send("order.confirmed", e)
		h.next("notification.sent")
		require.Equal(t, []string{e.ID + "-email"}, ch.keys(), "asked again under the same key")
		require.EqualValues(t, 2, h.list("order_id=o-1")[0]["attempts"])
		h.events.Silent()
	})
}

// An event that comes back after its inbox row has expired must not do the send
// that a person asked for.
func TestEventLeavesAResendToItself(t *testing.T) {
	t.Parallel()
	ch := &fakeChannel{}
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{channels: map[domain.Channel]app.Channel{domain.Email: ch}})
	e := seal(t, confirmed("o-1"))
	h.leave(e, domain.Email, func(n *domain.Notification) { n.Resends = 1 })
	h.Send("order.confirmed", e)
	h.Settled("order.confirmed", Name+".order-confirmed-email")
	h.events.Silent()
	require.Empty(t, ch.keys())
	require.Equal(t, "pending", h.list("")[0]["state"])
}

func TestOutcomesOfASend(t *testing.T) {
	t.Parallel()
	until := func(n int, err error) func(int) error {
		return func(i int) error {
			if i < n {
				return err
			}
			return nil
		}
	}
	always := func(err error) func(int) error { return func(int) error { return err } }
	away := errors.New("connection refused")
	for name, tc := range map[string]struct {
		idempotent bool
		answer     func(int) error
		event      string
		state      string
		reason     any
		sends      int
	}{
		"mail server away, then back":          {false, until(3, away), "notification.sent", "sent", nil, 3},
		"asked for frameworktest.Timeout":      {false, until(2, &app.ThrottledError{After: time.Millisecond, Err: away}), "notification.sent", "sent", nil, 2},
		"answer lost, can't be asked twice":    {false, always(app.ErrOutcomeUnknown), "notification.failed", "unknown", domain.ReasonOutcomeUnknown, 1},
		"answer lost, same key is safe":        {true, until(3, app.ErrOutcomeUnknown), "notification.sent", "sent", nil, 3},
		"refused for good":                     {false, always(&app.RefusedError{Reason: "smtp_550"}), "notification.failed", "failed", "smtp_550", 1},
		"refused for good, idempotent channel": {true, always(&app.RefusedError{Reason: "sms_422"}), "notification.failed", "failed", "sms_422", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ch := &fakeChannel{idempotent: tc.idempotent, answer: tc.answer}
			h := start(t, frameworktest.SQLite(t, Program().Files), setup{channels: map[domain.Channel]app.Channel{domain.Email: ch}})
			e := h.publish(confirmed("o-1"))
			h.next(tc.event)
			n := h.list("order_id=o-1")[0]
			require.Equal(t, tc.state, n["state"])
			require.Equal(t, tc.reason, n["reason"])
			require.EqualValues(t, tc.sends, n["attempts"])
			require.Len(t, ch.keys(), tc.sends)
			for _, key := range ch.keys() {
				require.Equal(t, e.ID+"-email", key)
			}
			h.events.Silent()
		})
	}
}

// One channel's failure neither holds up nor repeats another's.
func TestChannelsOfOneEventAreApart(t *testing.T) {
	t.Parallel()
	email, sms := &fakeChannel{}, &fakeChannel{idempotent: true, answer: func(int) error { return errors.New("provider is down") }}
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{
		channels: map[domain.Channel]app.Channel{domain.Email: email, domain.SMS: sms},
		settings: func(s *Settings) {
			s.Delivery.MaxAttempts = 3
			s.Notifications.Rules.OrderConfirmed = []string{"sms", "email"}
		},
	})
	e := h.publish(confirmed("o-1"))
	require.Equal(t, "email", frameworktest.Data[notificationevents.SentData](t, h.next("notification.sent")).Channel)
	dead := h.AwaitDeadLetter(Name+".order-confirmed-sms", nil).Message
	require.Equal(t, e.ID, dead.UUID)
	require.Equal(t, []string{e.ID + "-email"}, email.keys())
	require.Len(t, sms.keys(), 3)
	require.Equal(t, "pending", h.list("order_id=o-1&state=pending")[0]["state"], "a replayed dead letter goes on from here")
	h.events.Silent()
}

func TestAddressThatIsMissingIsAFailureAtOnce(t *testing.T) {
	t.Parallel()
	sms := &fakeChannel{idempotent: true}
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{
		channels: map[domain.Channel]app.Channel{domain.SMS: sms},
		settings: func(s *Settings) { s.Notifications.Rules.OrderConfirmed = []string{"sms"} },
	})
	who := customer
	who.Phone = ""
	h.publish(orders.Confirmed.New("o-1", orders.ConfirmedData{OrderID: "o-1", Customer: who, Total: total, PaymentID: "pay_1"}))
	require.Equal(t, domain.ReasonNoAddress, frameworktest.Data[notificationevents.FailedData](t, h.next("notification.failed")).Reason)
	require.Empty(t, sms.keys())
}

// Rule 10: a replay of old events writes to nobody.
func TestEventThatIsTooOldIsNotTold(t *testing.T) {
	t.Parallel()
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{})
	h.publish(confirmed("o-1", events.At(time.Now().Add(-25*time.Hour))))
	h.Settled("order.confirmed", Name+".order-confirmed-email")
	h.events.Silent()
	require.Empty(t, h.list(""))
	require.Empty(t, h.mails())
}

// A payment that was never tried since its order was cancelled is no news to the
// customer, who hears of the cancellation. A receiver of the shop's is told.
func TestPaymentThatACancellationForestalledIsNotTold(t *testing.T) {
	t.Parallel()
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(receiver.Close)
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{settings: func(s *Settings) {
		s.Notifications.Webhook.URL, s.Notifications.Webhook.Secret = config.Secret(receiver.URL), "a secret of enough bytes"
		s.Notifications.Rules.PaymentFailed = []string{"email", "webhook"}
	}})
	h.publish(placed("o-1"))
	h.publish(payments.Failed.New("o-1", payments.FailedData{OrderID: "o-1", PaymentID: "pay_1", Amount: total, Reason: "order_cancelled"}))
	require.Equal(t, "webhook", frameworktest.Data[notificationevents.SentData](t, h.next("notification.sent")).Channel)
	h.events.Silent()
	require.Empty(t, h.mails())
	require.Len(t, h.list("order_id=o-1"), 1)
	require.Empty(t, h.DeadLetters(Name+".payment-failed-email"))
	skipped, err := h.App.Metrics().Gather()
	require.NoError(t, err)
	var counted float64
	for _, family := range skipped {
		if family.GetName() == "headrace_skipped_total" {
			for _, m := range family.GetMetric() {
				counted += m.GetCounter().GetValue()
			}
		}
	}
	require.InDelta(t, 1, counted, 0)
}

func TestTemplateByRule(t *testing.T) {
	t.Parallel()
	ch := &fakeChannel{}
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{
		channels: map[domain.Channel]app.Channel{domain.Email: ch},
		settings: func(s *Settings) { s.Notifications.Rules.OrderCancelled = []string{"email:payment_refunded"} },
	})
	h.publish(cancelled("o-1"))
	require.Equal(t, "payment_refunded", frameworktest.Data[notificationevents.SentData](t, h.next("notification.sent")).Template)
}

func TestLogsNameNoOne(t *testing.T) {
	t.Parallel()
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{})
	h.publish(placed("o-1"))
	h.publish(refunded("o-1"))
	h.next("notification.sent")
	require.Contains(t, h.log.String(), "notification sent")
	for _, private := range []string{customer.Email, customer.Phone, "tok_ok"} {
		require.NotContains(t, h.log.String(), private)
	}
}

// A webhook goes to a receiver of the shop's: it needs no contact of the
// customer's, and its body holds none.
func TestWebhookReachesItsReceiverSigned(t *testing.T) {
	t.Parallel()
	const secret = "a secret of enough bytes"
	got := make(chan error, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = webhook.Verify(r.Header.Get(webhook.HeaderSignature), body, time.Now(), 0, secret)
		}
		if err == nil && (strings.Contains(string(body), customer.Email) || !strings.Contains(string(body), `"order_id":"o-1"`)) {
			err = errors.New("not the body that was expected")
		}
		got <- err
	}))
	t.Cleanup(receiver.Close)
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{settings: func(s *Settings) {
		s.Notifications.Webhook.URL, s.Notifications.Webhook.Secret = config.Secret(receiver.URL), secret
		s.Notifications.Rules.PaymentFailed = []string{"webhook"}
	}})
	e := h.publish(paymentFailed("o-1"))
	require.NoError(t, <-got)
	sent := frameworktest.Data[notificationevents.SentData](t, h.next("notification.sent"))
	require.Equal(t, "webhook", sent.Channel)
	require.Equal(t, e.ID+"-webhook", sent.ProviderReference)
	h.events.Silent()
}

// B19 and B45, this service's part: what can't be read goes to the dead letters
// of each consumer, and the next event is told.
func TestEventThatCannotBeReadIsDeadLettered(t *testing.T) {
	t.Parallel()
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{})
	bad := seal(t, confirmed("o-1"))
	bad.Data = []byte(`{"order_id":"o-1","total":{"amount":"lots"}}`)
	h.Send("order.confirmed", bad)
	require.Equal(t, bad.ID, h.AwaitDeadLetter(Name+".order-confirmed-email", nil).Message.UUID)
	h.publish(confirmed("o-2"))
	require.Equal(t, "o-2", frameworktest.Data[notificationevents.SentData](t, h.next("notification.sent")).OrderID)
	h.events.Silent()
}
