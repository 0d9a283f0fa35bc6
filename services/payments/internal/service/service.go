package service

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/outbox"
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

// Conns are the open connections that the service works with. They stay the
// caller's.
type Conns struct {
	// DB, Dialect, Broker and Gateway are required.
	DB      *sql.DB
	Dialect sqltx.Dialect
	Broker  broker.Broker
	Gateway app.Gateway
	// Waker tells of rows that other replicas wrote to the outbox. May be nil.
	Waker outbox.Waker
	// Logger defaults to slog.Default(), Metrics to a new registry, Tracer to
	// otel's global provider, Clock to time.Now.
	Logger  *slog.Logger
	Metrics *prometheus.Registry
	Tracer  trace.TracerProvider
	Clock   app.Clock
}

// New wires the service. It opens nothing and starts nothing; the schema must be
// current (see Migrate).
func New(s Settings, c Conns) (*framework.App, error) {
	a, err := framework.New(framework.Config{
		Service: Name, Profile: s.Profile, DB: c.DB, Dialect: c.Dialect, Broker: c.Broker, OutboxWaker: c.Waker,
		Logger: c.Logger, Metrics: c.Metrics, Tracer: c.Tracer,
	})
	if err != nil {
		return nil, err
	}
	document, err := payments.Files.ReadFile("api/openapi.yaml")
	if err != nil {
		return nil, fmt.Errorf("read the API document: %w", err)
	}
	store := outbound.NewPayments(c.DB, c.Dialect)

	a.Emits(events.Descriptors()...)
	a.Emits(app.RefundRequested.Descriptor())
	inbound.Subscribe(a, inbound.Consumers{
		Charge:        app.ChargeOrder{Gateway: c.Gateway, Payments: store, Clock: c.Clock, MaxAge: s.Payments.MaxOrderAge},
		RefundOrder:   app.RefundOrder{Gateway: c.Gateway, Payments: store, Clock: c.Clock},
		RefundPayment: app.RefundPayment{Gateway: c.Gateway, Payments: store, Clock: c.Clock},
		Timeout:       3 * s.Payments.Gateway.Timeout,
	})
	routes := inbound.Deps{
		Read:          app.ReadPayments{Payments: store},
		RequestRefund: app.RequestRefund{Tx: a, Payments: store, Clock: c.Clock},
		Logger:        a.Logger(),
		OpenAPI:       document,
	}
	if ledger, ok := c.Gateway.(http.Handler); ok && s.Payments.Gateway.Sandbox.ShowLedger {
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
