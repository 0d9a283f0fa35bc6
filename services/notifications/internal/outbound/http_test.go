package outbound

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
	"github.com/headrace-go/headrace/services/notifications/webhook"
)

// receiver records requests and answers them by a function.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	requests []received
}

type received struct {
	header http.Header
	body   []byte
}

func receive(t *testing.T, answer http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.requests = append(r.requests, received{req.Header.Clone(), body})
		r.mu.Unlock()
		answer(w, req)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) all() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]received(nil), r.requests...)
}

func ok(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

const hookSecret = "a secret of enough bytes"

func hookTo(t *testing.T, url string, change func(*WebhookConfig)) *Webhook {
	t.Helper()
	cfg := WebhookConfig{URL: url, Secret: hookSecret, Timeout: 5 * time.Second}
	if change != nil {
		change(&cfg)
	}
	w, err := NewWebhook(cfg)
	require.NoError(t, err)
	return w
}

func TestWebhookIsSignedAndNamesItsDelivery(t *testing.T) {
	t.Parallel()
	r := receive(t, ok(""))
	w := hookTo(t, r.URL, func(c *WebhookConfig) { c.PreviousSecret = "the secret that came before" })
	require.True(t, w.Idempotent())
	m := hookMessage()
	reference, err := w.Send(t.Context(), m)
	require.NoError(t, err)
	require.Equal(t, m.Key, reference)
	_, err = w.Send(t.Context(), m)
	require.NoError(t, err)

	require.Len(t, r.all(), 2)
	for _, got := range r.all() {
		require.Equal(t, m.Key, got.header.Get(webhook.HeaderDeliveryID), "every attempt has the same id")
		require.Equal(t, "application/json", got.header.Get("Content-Type"))
		for _, secret := range []string{hookSecret, "the secret that came before"} {
			require.NoError(t, webhook.Verify(got.header.Get(webhook.HeaderSignature), got.body, time.Now(), 0, secret))
		}
		require.ErrorIs(t, webhook.Verify(got.header.Get(webhook.HeaderSignature), got.body, time.Now(), 0, "another one"), webhook.ErrMismatch)
		var body map[string]any
		require.NoError(t, json.Unmarshal(got.body, &body))
		require.Equal(t, map[string]any{
			"delivery_id": m.Key, "notification_id": "n-1", "event_id": m.EventID, "event_type": "order.cancelled", "template": "order_cancelled",
			"order_id": "o-1", "created_at": "2026-05-04T12:00:00Z", "amount": 1250.0, "currency": "EUR", "reason": "declined",
		}, body)
	}
}

func hookMessage() app.Message {
	m := mailMessage()
	m.Key = domain.SendKey(m.EventID, domain.Webhook, 0)
	m.EventType, m.Template = "order.cancelled", "order_cancelled"
	m.Facts = domain.Facts{OrderID: "o-1", Amount: 1250, Currency: "EUR", Reason: "declined"}
	return m
}

func textMessage() app.Message {
	m := mailMessage()
	m.Key, m.Recipient = domain.SendKey(m.EventID, domain.SMS, 0), "+4915112345678"
	m.Content = app.Content{Text: "Bestellung bestätigt"}
	return m
}

func TestProviderGetsTheDocumentedRequest(t *testing.T) {
	t.Parallel()
	r := receive(t, ok(`{"id":"msg-9","more":true}`))
	p, err := NewProvider(ProviderConfig{Channel: domain.SMS, URL: r.URL + "/messages", Token: "tok", Sender: "Shop"})
	require.NoError(t, err)
	require.True(t, p.Idempotent())
	m := textMessage()
	reference, err := p.Send(t.Context(), m)
	require.NoError(t, err)
	require.Equal(t, "msg-9", reference)
	got := r.all()[0]
	require.Equal(t, m.Key, got.header.Get("Idempotency-Key"))
	require.Equal(t, "Bearer tok", got.header.Get("Authorization"))
	require.JSONEq(t, `{"channel":"sms","from":"Shop","to":"+4915112345678","text":"Bestellung bestätigt",
		"template":"order_confirmed","language":"de","reference":"n-1"}`, string(got.body))
}

func TestProviderAnswerThatIsNoJSONIsStillASend(t *testing.T) {
	t.Parallel()
	r := receive(t, ok("OK"))
	p, err := NewProvider(ProviderConfig{Channel: domain.WhatsApp, URL: r.URL})
	require.NoError(t, err)
	reference, err := p.Send(t.Context(), textMessage())
	require.NoError(t, err)
	require.Empty(t, reference)
}

func TestHTTPAnswers(t *testing.T) {
	t.Parallel()
	const refused, again, throttled, unknown = "refused", "again", "throttled", "unknown"
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i+1 < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, "no such number +4915112345678")
		}
	}
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		want   string
		after  time.Duration
	}{
		"bad request":          {status(400), refused, 0},
		"gone":                 {status(410), refused, 0},
		"unprocessable":        {status(422), refused, 0},
		"moved":                {status(302, "Location", "http://127.0.0.1:1/elsewhere"), refused, 0},
		"wrong token":          {status(401), again, 0},
		"timeout":              {status(408), again, 0},
		"same key in progress": {status(409), again, 0},
		"broken":               {status(500), again, 0},
		"too many":             {status(429, "Retry-After", "7"), throttled, 7 * time.Second},
		"too many, for ages":   {status(429, "Retry-After", "999999999"), throttled, maxThrottle},
		"too many, no hint":    {status(429), again, 0},
		"too many, a bad hint": {status(429, "Retry-After", "soon"), again, 0},
		"unavailable":          {status(503, "Retry-After", "2"), throttled, 2 * time.Second},
		"dropped":              {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, unknown, 0},
		"dropped in the answer": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "99")
			w.WriteHeader(http.StatusOK)
		}, unknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := receive(t, tc.answer)
			p, err := NewProvider(ProviderConfig{Channel: domain.SMS, URL: r.URL + "/?key=s3cret"})
			require.NoError(t, err)
			_, err = p.Send(t.Context(), textMessage())
			require.Error(t, err)
			require.NotContains(t, err.Error(), "4915112345678")
			require.NotContains(t, err.Error(), "s3cret")
			var (
				no   *app.RefusedError
				wait *app.ThrottledError
			)
			require.Equal(t, tc.want == refused, errors.As(err, &no), "%v", err)
			require.Equal(t, tc.want == throttled, errors.As(err, &wait), "%v", err)
			require.Equal(t, tc.want == unknown, errors.Is(err, app.ErrOutcomeUnknown), "%v", err)
			if wait != nil {
				require.Equal(t, tc.after, wait.After)
			}
			require.NotEmpty(t, r.all())
		})
	}
}

func TestHTTPGivesUpAtItsTimeoutAndWithItsContext(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	arrived := make(chan struct{}, 2)
	r := receive(t, func(http.ResponseWriter, *http.Request) { arrived <- struct{}{}; <-hold })
	t.Cleanup(func() { close(hold) })
	w := hookTo(t, r.URL, func(c *WebhookConfig) { c.Timeout = 50 * time.Millisecond })
	_, err := w.Send(t.Context(), hookMessage())
	require.ErrorIs(t, err, app.ErrOutcomeUnknown)

	w = hookTo(t, r.URL, nil)
	<-arrived
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	_, err = w.Send(ctx, hookMessage())
	require.ErrorIs(t, err, context.Canceled)
}

func TestAddressesThatWouldLeakAreRefused(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"http://provider.example/messages", "ftp://provider.example", "provider.example", "", "http://192.0.2.1/x"} {
		_, err := NewProvider(ProviderConfig{Channel: domain.SMS, URL: url})
		require.Error(t, err, url)
		_, err = NewWebhook(WebhookConfig{URL: url, Secret: hookSecret})
		require.Error(t, err, url)
	}
	for _, url := range []string{"https://provider.example/messages", "http://127.0.0.1:9/x", "http://[::1]:9/x", "http://localhost:9/x"} {
		_, err := NewProvider(ProviderConfig{Channel: domain.SMS, URL: url})
		require.NoError(t, err, url)
	}
	_, err := NewWebhook(WebhookConfig{URL: "https://receiver.example", Secret: "short"})
	require.ErrorContains(t, err, "16")
	require.False(t, strings.Contains(err.Error(), "short"))
}
