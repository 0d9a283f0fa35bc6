package service

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/program"
	"github.com/headrace-go/headrace/framework/sqltx"
	events "github.com/headrace-go/headrace/pkg/events/payments"
	"github.com/headrace-go/headrace/services/payments"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/inbound"
	"github.com/headrace-go/headrace/services/payments/internal/outbound"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/httpgateway"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/sandbox"
)

// Name is the service's name: the source of its events and the prefix of its
// consumer groups.
const Name = "payments"

// Program is the service's program.
func Program() program.Program[Settings] {
	return program.Program[Settings]{Name: Name, Files: payments.Files, Build: build, Migrate: migrateSandbox}
}

// build opens the gateway and wires the service.
func build(ctx context.Context, s Settings, base framework.Config) (*framework.App, error) {
	gateway, err := openGateway(ctx, s, base)
	if err != nil {
		return nil, err
	}
	return New(s, base, gateway)
}

// migrateSandbox brings the sandbox's own tables up to date: opening it does.
func migrateSandbox(ctx context.Context, s Settings, base framework.Config) error {
	if s.Payments.Gateway.Kind != GatewaySandbox {
		return nil
	}
	_, err := openGateway(ctx, s, base)
	return err
}

func openGateway(ctx context.Context, s Settings, base framework.Config) (app.Gateway, error) {
	gateway, err := OpenGateway(ctx, s.Payments.Gateway, base.DB, base.Dialect, base.Logger.With("service", Name))
	if err != nil {
		return nil, fmt.Errorf("open the %s gateway: %w", s.Payments.Gateway.Kind, err)
	}
	return gateway, nil
}

// New wires the service on base, which has the service's name, profile and
// connections. It opens nothing and starts nothing; the schema must be current.
func New(s Settings, base framework.Config, gateway app.Gateway) (*framework.App, error) {
	a, err := framework.New(base)
	if err != nil {
		return nil, err
	}
	document, err := payments.Files.ReadFile("api/openapi.yaml")
	if err != nil {
		return nil, fmt.Errorf("read the API document: %w", err)
	}
	store, clock := outbound.NewPayments(base.DB, base.Dialect), app.Clock(base.Clock)

	a.Emits(events.Descriptors()...)
	a.Emits(app.RefundRequested.Descriptor())
	inbound.Subscribe(a, inbound.Consumers{
		Charge:        app.ChargeOrder{Gateway: gateway, Payments: store, Clock: clock, MaxAge: s.Payments.MaxOrderAge},
		RefundOrder:   app.RefundOrder{Gateway: gateway, Payments: store, Clock: clock},
		RefundPayment: app.RefundPayment{Gateway: gateway, Payments: store, Clock: clock},
		Timeout:       3 * s.Payments.Gateway.Timeout,
	})
	routes := inbound.Deps{
		Read:          app.ReadPayments{Payments: store},
		RequestRefund: app.RequestRefund{Tx: a, Payments: store, Clock: clock},
		OpenAPI:       document,
	}
	if ledger, ok := gateway.(http.Handler); ok && s.Payments.Gateway.Sandbox.ShowLedger {
		routes.Sandbox = ledger
	}
	a.HTTP(inbound.Routes(routes))
	return a, a.Validate()
}

// OpenGateway opens the gateway that s names. The sandbox keeps its ledger in
// db and creates its tables there.
func OpenGateway(ctx context.Context, s Gateway, db *sql.DB, d sqltx.Dialect, logger *slog.Logger) (app.Gateway, error) {
	switch s.Kind {
	case GatewaySandbox:
		return sandbox.Open(ctx, sandbox.Config{
			DB: db, Dialect: d, Timeout: s.Timeout, Slow: s.Sandbox.Slow, RetryAfter: s.Sandbox.RetryAfter, Logger: logger,
		})
	case GatewayHTTP:
		return httpgateway.New(s.httpConfig(logger))
	default:
		return nil, fmt.Errorf("payments.gateway.kind is %q: it must be %q or %q", s.Kind, GatewaySandbox, GatewayHTTP)
	}
}
