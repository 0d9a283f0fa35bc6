// Package service wires the payments service together and runs it.
package service

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/httpgateway"
)

// Settings is what the service reads at start: the profile that all services
// share, and its own section.
type Settings struct {
	config.Profile `koanf:",squash"`
	Payments       Payments `koanf:"payments"`
}

// Payments is the service's own section.
type Payments struct {
	// MaxOrderAge fails, uncharged, an order that was placed longer ago and
	// never begun to be charged. Default 0: no limit.
	MaxOrderAge time.Duration `koanf:"max_order_age"`
	Gateway     Gateway       `koanf:"gateway"`
}

// The kinds of gateway.
const (
	GatewaySandbox = "sandbox"
	GatewayHTTP    = "http"
)

// Gateway says who moves the money.
type Gateway struct {
	// Kind is "sandbox", which moves none, or "http". Required.
	Kind string `koanf:"kind"`
	// Timeout bounds one call. Required; an attempt of a handler may take three
	// times as long.
	Timeout time.Duration `koanf:"timeout"`
	HTTP    HTTPGateway   `koanf:"http"`
	Sandbox Sandbox       `koanf:"sandbox"`
}

// HTTPGateway is the provider that the http gateway asks. Zero leaves a field
// at the gateway's own default.
type HTTPGateway struct {
	// BaseURL is the provider's address: https://pay.example.com.
	BaseURL string `koanf:"base_url"`
	// APIKey is sent as a bearer token.
	APIKey config.Secret `koanf:"api_key"`
	// SigningKey signs each request with HMAC-SHA256. Empty: unsigned.
	SigningKey config.Secret `koanf:"signing_key"`
	// BreakerFailures in a row stop all calls for BreakerOpen. Defaults 5, 10 s.
	BreakerFailures int           `koanf:"breaker_failures"`
	BreakerOpen     time.Duration `koanf:"breaker_open"`
	// MaxRetryAfter caps what a provider's Retry-After is believed. Default 5 m.
	MaxRetryAfter time.Duration `koanf:"max_retry_after"`
}

// Sandbox is how the sandbox gateway behaves. Zero leaves a field at the
// gateway's own default.
type Sandbox struct {
	// Slow is how long the token tok_slow takes. Default 2 s.
	Slow time.Duration `koanf:"slow"`
	// RetryAfter is what tok_busy asks for. Default 1 s.
	RetryAfter time.Duration `koanf:"retry_after"`
	// ShowLedger serves the ledger at /v1/sandbox/charges. Default false.
	ShowLedger bool `koanf:"show_ledger"`
}

// httpConfig is the http gateway's configuration.
func (g Gateway) httpConfig(logger *slog.Logger) httpgateway.Config {
	return httpgateway.Config{
		BaseURL: g.HTTP.BaseURL, APIKey: g.HTTP.APIKey.Reveal(), SigningKey: g.HTTP.SigningKey.Reveal(), Timeout: g.Timeout,
		BreakerFailures: g.HTTP.BreakerFailures, BreakerOpen: g.HTTP.BreakerOpen, MaxRetryAfter: g.HTTP.MaxRetryAfter,
		Logger: logger,
	}
}

// Validate reports every setting of the service's own that can't work.
func (s Settings) Validate() error {
	var faults config.Faults
	bad := faults.Add
	if s.Database.Driver == "" {
		bad("database.driver", `""`, "payments keeps its payments in a database: set sqlite, postgres or mysql")
	}
	if s.Payments.MaxOrderAge < 0 {
		bad("payments.max_order_age", s.Payments.MaxOrderAge, "it must not be negative; 0 means no limit")
	}
	g := s.Payments.Gateway
	if g.Timeout <= 0 {
		bad("payments.gateway.timeout", g.Timeout, "it must be above 0, such as 5s")
	}
	switch g.Kind {
	case GatewaySandbox:
		if s.Env == "production" {
			bad("payments.gateway.kind", fmt.Sprintf("%q", g.Kind), "the sandbox moves no money, so production must not use it: set http")
		}
		if g.Sandbox.Slow < 0 {
			bad("payments.gateway.sandbox.slow", g.Sandbox.Slow, "it must not be negative")
		}
		if g.Sandbox.RetryAfter < 0 {
			bad("payments.gateway.sandbox.retry_after", g.Sandbox.RetryAfter, "it must not be negative")
		}
	case GatewayHTTP:
		if g.HTTP.BaseURL == "" {
			bad("payments.gateway.http.base_url", `""`, "the http gateway needs the provider's address, such as https://pay.example.com")
		}
		if g.HTTP.APIKey == "" {
			bad("payments.gateway.http.api_key", `""`, "the http gateway needs the provider's key")
		}
		if g.HTTP.BaseURL != "" && g.HTTP.APIKey != "" && g.Timeout > 0 {
			if err := g.httpConfig(nil).WithDefaults().Validate(); err != nil {
				faults.Join(fmt.Errorf("config: payments.gateway.http: %w", err))
			}
		}
	default:
		bad("payments.gateway.kind", fmt.Sprintf("%q", g.Kind), `it must be "sandbox" or "http"`)
	}
	return faults.Err()
}
