// Package httpgateway is a payment gateway that speaks JSON over HTTP to a
// provider.
//
// # What the provider must do
//
//	POST {base}/v1/charges  {"order_id","amount","currency","payment_token"}
//	  200 {"id","status":"captured"}   or {"status":"declined","reason"}   or {"status":"voided"}
//	POST {base}/v1/voids    {"charge_key"}
//	  200 {"status":"voided"}          or {"status":"captured","id"}
//	POST {base}/v1/refunds  {"charge_id","amount","currency"}
//	  200 {"id","status":"refunded"}
//
// Every request carries an Idempotency-Key that the provider must honour for as
// long as the service may redeliver an event; a charge must be refused once its
// key was voided. A captured or refunded answer may repeat amount and currency:
// they are then compared.
//
// # Authentication
//
// Authorization: Bearer <api key>. With a signing key also X-Timestamp (Unix
// seconds) and X-Signature: hex HMAC-SHA256 of
// "<timestamp>.<method>.<path>.<idempotency key>.<body>".
//
// # How answers are read
//
//	402                      the charge is declined; "reason" says why
//	408, 425, 409            asked again within the retry budget
//	429, 503 + Retry-After   asked again, not before that
//	401, 403                 our credentials are wrong: counted by the breaker, asked again
//	other 4xx                permanent: the event goes to the dead letters
//	5xx, no answer in time   counted by the breaker, asked again
//
// While the breaker is open nothing is sent, and events are given back to the
// broker uncounted until it closes.
package httpgateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// Config says which provider to ask and how. The zero value of a field means
// its default, unless it is required.
type Config struct {
	// BaseURL is the provider's address: https://pay.example.com. Required.
	BaseURL string
	// APIKey is sent as a bearer token. Required. It is never logged.
	APIKey string
	// SigningKey signs requests; empty means unsigned. It is never logged.
	SigningKey string
	// Timeout bounds one request, from dialling to the last byte of the answer.
	// Default 5 s; keep it below the handler's timeout.
	Timeout time.Duration
	// BreakerFailures is how many failures in a row open the breaker. Default 5.
	BreakerFailures int
	// BreakerOpen is how long the breaker stays open before one request may
	// try. Default 10 s.
	BreakerOpen time.Duration
	// MaxRetryAfter caps what a provider's Retry-After is believed. Default 5
	// minutes.
	MaxRetryAfter time.Duration
	// Client sends the requests. Default: a client of its own that follows no
	// redirects.
	Client *http.Client
	// Logger receives the breaker's changes. Default slog.Default().
	Logger *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// WithDefaults returns c with its defaults filled in.
func (c Config) WithDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.BreakerFailures == 0 {
		c.BreakerFailures = 5
	}
	if c.BreakerOpen == 0 {
		c.BreakerOpen = 10 * time.Second
	}
	if c.MaxRetryAfter == 0 {
		c.MaxRetryAfter = 5 * time.Minute
	}
	if c.Client == nil {
		c.Client = &http.Client{
			Transport: http.DefaultTransport.(*http.Transport).Clone(),
			// A redirected POST would lose its body, or carry the API key elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Validate reports every field that can't work, by name and remedy.
func (c Config) Validate() error {
	var errs []error
	u, err := url.Parse(c.BaseURL)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http"):
		errs = append(errs, errors.New("httpgateway: BaseURL must be an http or https address such as https://pay.example.com"))
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		errs = append(errs, errors.New("httpgateway: BaseURL must hold no user, query or fragment: the key belongs into APIKey"))
	}
	if c.APIKey == "" {
		errs = append(errs, errors.New("httpgateway: APIKey is empty: set the provider's key"))
	}
	if strings.ContainsFunc(c.APIKey, func(r rune) bool { return r <= ' ' || r > '~' }) {
		errs = append(errs, errors.New("httpgateway: APIKey holds a space or a character that a header can't carry"))
	}
	if c.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("httpgateway: Timeout is %s: it must be above 0", c.Timeout))
	}
	if c.BreakerFailures < 1 {
		errs = append(errs, fmt.Errorf("httpgateway: BreakerFailures is %d: it must be 1 or more", c.BreakerFailures))
	}
	if c.BreakerOpen <= 0 {
		errs = append(errs, fmt.Errorf("httpgateway: BreakerOpen is %s: it must be above 0", c.BreakerOpen))
	}
	if c.MaxRetryAfter <= 0 {
		errs = append(errs, fmt.Errorf("httpgateway: MaxRetryAfter is %s: it must be above 0", c.MaxRetryAfter))
	}
	return errors.Join(errs...)
}

// Gateway is app.Gateway over HTTP. It is safe for concurrent use.
type Gateway struct {
	cfg     Config
	breaker *breaker
}

var _ app.Gateway = (*Gateway)(nil)

// New returns a gateway. It sends nothing yet. A wrong config is an error that
// names the field and the remedy.
func New(cfg Config) (*Gateway, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.BaseURL = strings.TrimRight(cfg.BaseURL, "/")
	return &Gateway{cfg: cfg, breaker: newBreaker(cfg)}, nil
}

type chargeBody struct {
	OrderID      string `json:"order_id"`
	Amount       int64  `json:"amount"`
	Currency     string `json:"currency"`
	PaymentToken string `json:"payment_token"`
}

type voidBody struct {
	ChargeKey string `json:"charge_key"`
}

type refundBody struct {
	ChargeID string `json:"charge_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

// Charge takes the amount.
func (g *Gateway) Charge(ctx context.Context, req app.ChargeRequest) (app.Receipt, error) {
	a, err := g.ask(ctx, "/v1/charges", req.Key, chargeBody{
		OrderID: req.OrderID, Amount: req.Amount.Amount, Currency: req.Amount.Currency, PaymentToken: req.Token,
	})
	if err != nil {
		return app.Receipt{}, err
	}
	switch a.Status {
	case "captured":
		return a.receipt("charge", req.Amount)
	case "declined":
		return app.Receipt{}, &app.DeclinedError{Reason: a.reason()}
	case "voided":
		return app.Receipt{}, app.ErrVoided
	default:
		return app.Receipt{}, a.unexpected("charge")
	}
}

// Void makes sure that no charge under the key follows.
func (g *Gateway) Void(ctx context.Context, chargeKey string) (app.Receipt, bool, error) {
	a, err := g.ask(ctx, "/v1/voids", "void:"+chargeKey, voidBody{ChargeKey: chargeKey})
	if err != nil {
		return app.Receipt{}, false, err
	}
	switch a.Status {
	case "captured":
		r, err := a.receipt("void", domain.Money{})
		return r, err == nil, err
	case "voided":
		return app.Receipt{}, false, nil
	default:
		return app.Receipt{}, false, a.unexpected("void")
	}
}

// Refund gives the whole amount back.
func (g *Gateway) Refund(ctx context.Context, req app.RefundRequest) (app.Receipt, error) {
	a, err := g.ask(ctx, "/v1/refunds", req.Key, refundBody{
		ChargeID: req.Charge, Amount: req.Amount.Amount, Currency: req.Amount.Currency,
	})
	if err != nil {
		return app.Receipt{}, err
	}
	if a.Status != "refunded" {
		return app.Receipt{}, a.unexpected("refund")
	}
	return a.receipt("refund", req.Amount)
}
