package httpgateway_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/services/payments"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/app/gatewaytest"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/httpgateway"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/httpgateway/providertest"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/sandbox"
)

var (
	price   = domain.Money{Amount: 4200, Currency: "EUR"}
	request = app.ChargeRequest{Key: "charge:order-1", OrderID: "order-1", Amount: price, Token: "tok"}
)

func TestGatewayRules(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		ledger, err := sandbox.Open(t.Context(), sandbox.Config{DB: db.DB, Dialect: db.Dialect, Logger: quiet()})
		require.NoError(t, err)
		provider := httptest.NewServer(http.StripPrefix("/pay", providertest.Handler(ledger)))
		t.Cleanup(provider.Close)
		gatewaytest.Run(t, gatewaytest.Harness{
			Gateway: open(t, provider.URL+"/pay/", nil),
			OK:      sandbox.TokenOK, Declined: sandbox.TokenDeclined, Flaky: sandbox.TokenFlaky, Lost: sandbox.TokenLost,
			DeclineReason: "declined",
		})
	})
}

// TestAnswers is the whole table of what a provider may say to a charge.
func TestAnswers(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const plain = middleware.DispositionRetry
	for name, c := range map[string]struct {
		status int
		header http.Header
		body   string
		// Of these, exactly one is set.
		captured string
		declined string
		voided   bool
		fails    string
		as       middleware.Disposition
		after    time.Duration
	}{
		"captured":                {status: 200, body: `{"id":"ch_1","status":"captured"}`, captured: "ch_1"},
		"created":                 {status: 201, body: `{"id":"ch_1","status":"captured","amount":4200,"currency":"EUR","more":{}}`, captured: "ch_1"},
		"another amount":          {status: 200, body: `{"id":"ch_1","status":"captured","amount":42}`, fails: "another amount", as: middleware.DispositionPermanent},
		"another currency":        {status: 200, body: `{"id":"ch_1","status":"captured","currency":"USD"}`, fails: "another amount", as: middleware.DispositionPermanent},
		"no id":                   {status: 200, body: `{"status":"captured"}`, fails: "has no id", as: middleware.DispositionPermanent},
		"unknown status":          {status: 200, body: `{"status":"thinking"}`, fails: `"thinking"`, as: middleware.DispositionPermanent},
		"no JSON":                 {status: 200, body: `<html>`, fails: "read the provider's answer", as: plain},
		"cut JSON":                {status: 200, body: `{"id":"ch_1","sta`, fails: "read the provider's answer", as: plain},
		"endless":                 {status: 200, body: strings.Repeat("x", 70<<10), fails: "larger than", as: plain},
		"declined":                {status: 200, body: `{"status":"declined","reason":"card_expired"}`, declined: "card_expired"},
		"declined without reason": {status: 200, body: `{"status":"declined"}`, declined: "declined"},
		"declined with prose":     {status: 200, body: `{"status":"declined","reason":"Sorry, Ada Lovelace"}`, declined: "declined"},
		"payment required":        {status: 402, body: `{"reason":"no_funds"}`, declined: "no_funds"},
		"payment required, bare":  {status: 402, declined: "declined"},
		"voided":                  {status: 200, body: `{"status":"voided"}`, voided: true},
		"redirect":                {status: 307, header: http.Header{"Location": {"/elsewhere"}}, fails: "with 307", as: middleware.DispositionPermanent},
		"bad request":             {status: 400, body: `{"reason":"amount_too_small"}`, fails: "with 400 (amount_too_small)", as: middleware.DispositionPermanent},
		"not found":               {status: 404, fails: "with 404", as: middleware.DispositionPermanent},
		"unprocessable":           {status: 422, fails: "with 422", as: middleware.DispositionPermanent},
		"unauthorized":            {status: 401, fails: "with 401", as: plain},
		"forbidden":               {status: 403, fails: "with 403", as: plain},
		"request timeout":         {status: 408, fails: "with 408", as: plain},
		"conflict":                {status: 409, fails: "with 409", as: plain},
		"too early":               {status: 425, fails: "with 425", as: plain},
		"server error":            {status: 500, fails: "with 500", as: plain},
		"gateway timeout":         {status: 504, fails: "with 504", as: plain},
		"throttled":               {status: 429, fails: "with 429", as: plain},
		"throttled, seconds":      {status: 429, header: http.Header{"Retry-After": {"7"}}, fails: "with 429", as: plain, after: 7 * time.Second},
		"throttled, date":         {status: 429, header: http.Header{"Retry-After": {"Sun, 01 Mar 2026 12:00:30 GMT"}}, fails: "with 429", as: plain, after: 30 * time.Second},
		"throttled, past date":    {status: 429, header: http.Header{"Retry-After": {"Sun, 01 Mar 2026 11:00:30 GMT"}}, fails: "with 429", as: plain},
		"throttled for a year":    {status: 429, header: http.Header{"Retry-After": {"31536000"}}, fails: "with 429", as: plain, after: time.Minute},
		"throttled, nonsense":     {status: 429, header: http.Header{"Retry-After": {"soon"}}, fails: "with 429", as: plain},
		"unavailable, seconds":    {status: 503, header: http.Header{"Retry-After": {"2"}}, fails: "with 503", as: plain, after: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, asked := answers(t, c.status, c.header, c.body)
			g := open(t, s.URL, func(cfg *httpgateway.Config) {
				cfg.MaxRetryAfter = time.Minute
				cfg.Now = func() time.Time { return now }
			})
			receipt, err := g.Charge(t.Context(), request)
			require.Equal(t, 1, asked(), "one call is one request: repeating is the stack's work")
			switch {
			case c.captured != "":
				require.NoError(t, err)
				require.Equal(t, app.Receipt{Reference: c.captured}, receipt)
			case c.declined != "":
				var declined *app.DeclinedError
				require.ErrorAs(t, err, &declined)
				require.Equal(t, c.declined, declined.Reason)
			case c.voided:
				require.ErrorIs(t, err, app.ErrVoided)
			default:
				require.ErrorContains(t, err, c.fails)
				require.NotContains(t, err.Error(), providertest.APIKey)
				disposition, after := middleware.DispositionOf(err)
				require.Equal(t, c.as, disposition)
				require.Equal(t, c.after, after)
			}
		})
	}
}

func TestVoidAndRefundRefuseStrangeAnswers(t *testing.T) {
	t.Parallel()
	s, _ := answers(t, 200, nil, `{"id":"x","status":"declined"}`)
	g := open(t, s.URL, nil)
	_, _, err := g.Void(t.Context(), "charge:order-1")
	require.ErrorContains(t, err, `void: the provider answered with the unknown status "declined"`)
	_, err = g.Refund(t.Context(), app.RefundRequest{Key: "refund:order-1", Charge: "ch_1", Amount: price})
	require.ErrorContains(t, err, `refund: the provider answered with the unknown status "declined"`)
	disposition, _ := middleware.DispositionOf(err)
	require.Equal(t, middleware.DispositionPermanent, disposition)
}

func TestEachCallHasItsOwnDeadline(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(release) })
	g := open(t, s.URL, func(c *httpgateway.Config) { c.Timeout = 30 * time.Millisecond })
	_, err := g.Charge(t.Context(), request)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, t.Context().Err())
}

// switchable answers with the status that it holds.
func switchable(t *testing.T) (url string, status, asked *atomic.Int64) {
	t.Helper()
	status, asked = new(atomic.Int64), new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(int(status.Load()))
		_, _ = io.WriteString(w, `{"id":"ch_1","status":"captured"}`)
	}))
	t.Cleanup(s.Close)
	return s.URL, status, asked
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestBreakerStopsAskingAndTriesAgain(t *testing.T) {
	t.Parallel()
	for _, code := range []int64{500, 503, 401, 403} {
		url, status, asked := switchable(t)
		const openFor = 200 * time.Millisecond
		g := open(t, url, func(c *httpgateway.Config) { c.BreakerFailures, c.BreakerOpen, c.Logger = 3, openFor, quiet() })
		status.Store(code)
		for range 3 {
			_, err := g.Charge(t.Context(), request)
			require.NotErrorIs(t, err, httpgateway.ErrOpen)
			require.Error(t, err)
		}
		opened := time.Now()
		_, err := g.Charge(t.Context(), request)
		require.ErrorIs(t, err, httpgateway.ErrOpen)
		disposition, after := middleware.DispositionOf(err)
		require.Equal(t, middleware.DispositionDefer, disposition, "an open breaker burns no attempt")
		require.Positive(t, after)
		require.LessOrEqual(t, after, openFor)
		require.EqualValues(t, 3, asked.Load())

		status.Store(200)
		require.Eventually(t, func() bool {
			_, err = g.Charge(t.Context(), request)
			return err == nil
		}, 5*time.Second, 10*time.Millisecond)
		require.GreaterOrEqual(t, time.Since(opened), openFor/2)
		require.EqualValues(t, 4, asked.Load(), "nothing was sent while it was open")
	}
}

// TestBreakerIgnoresWhatIsNoFault: answers that show a living provider, and our
// own giving up, never open the breaker.
func TestBreakerIgnoresWhatIsNoFault(t *testing.T) {
	t.Parallel()
	url, status, asked := switchable(t)
	g := open(t, url, func(c *httpgateway.Config) { c.BreakerFailures, c.Logger = 1, quiet() })
	for _, code := range []int64{402, 400, 404, 409, 422, 429} {
		status.Store(code)
		_, err := g.Charge(t.Context(), request)
		require.Error(t, err)
		require.NotErrorIs(t, err, httpgateway.ErrOpen)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := g.Charge(ctx, request)
	require.ErrorIs(t, err, context.Canceled)
	status.Store(200)
	_, err = g.Charge(t.Context(), request)
	require.NoError(t, err)
	require.EqualValues(t, 7, asked.Load())
}

func TestNewNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := httpgateway.New(httpgateway.Config{
		BaseURL: "ftp://x", APIKey: "secret key", Timeout: -1, BreakerFailures: -1, BreakerOpen: -1, MaxRetryAfter: -1,
	})
	for _, want := range []string{"BaseURL", "APIKey", "Timeout", "BreakerFailures", "BreakerOpen", "MaxRetryAfter"} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "secret key")
	_, err = httpgateway.New(httpgateway.Config{BaseURL: "https://user:pw@pay.example.com"})
	require.ErrorContains(t, err, "no user")
	require.ErrorContains(t, err, "APIKey is empty")
	require.NotContains(t, err.Error(), "pw")
}

func TestSignCoversEveryPart(t *testing.T) {
	t.Parallel()
	base := httpgateway.Sign("k", "1", "POST", "/v1/charges", "key", []byte("{}"))
	require.Len(t, base, 64)
	for _, other := range []string{
		httpgateway.Sign("x", "1", "POST", "/v1/charges", "key", []byte("{}")),
		httpgateway.Sign("k", "2", "POST", "/v1/charges", "key", []byte("{}")),
		httpgateway.Sign("k", "1", "PUT", "/v1/charges", "key", []byte("{}")),
		httpgateway.Sign("k", "1", "POST", "/v1/refunds", "key", []byte("{}")),
		httpgateway.Sign("k", "1", "POST", "/v1/charges", "other", []byte("{}")),
		httpgateway.Sign("k", "1", "POST", "/v1/charges", "key", []byte("{ }")),
	} {
		require.NotEqual(t, base, other)
	}
}
