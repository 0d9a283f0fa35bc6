package service

import (
	"database/sql"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/outbox"
	"github.com/headrace-go/headrace/framework/sqltx"
	events "github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/services/orders"
	"github.com/headrace-go/headrace/services/orders/internal/app"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
	"github.com/headrace-go/headrace/services/orders/internal/inbound"
	"github.com/headrace-go/headrace/services/orders/internal/outbound"
)

// Name is the service's name: the source of its events and the prefix of its
// consumer groups.
const Name = "orders"

// Conns are the open connections that the service works with. They stay the
// caller's.
type Conns struct {
	// DB, Dialect and Broker are required.
	DB      *sql.DB
	Dialect sqltx.Dialect
	Broker  broker.Broker
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
	document, err := orders.Files.ReadFile("api/openapi.yaml")
	if err != nil {
		return nil, fmt.Errorf("read the API document: %w", err)
	}
	store, keys := outbound.NewOrders(c.DB, c.Dialect), outbound.NewKeys(c.DB)
	rules := domain.Rules{Currencies: s.Orders.Currencies, MaxLines: s.Orders.MaxLines}

	a.Emits(events.Descriptors()...)
	inbound.Subscribe(a, inbound.Consumers{
		Confirm:      app.ConfirmOrder{Orders: store, Clock: c.Clock},
		CancelUnpaid: app.CancelUnpaid{Orders: store, Clock: c.Clock},
		NoteRefund:   app.NoteRefund{Orders: store, Clock: c.Clock},
	})
	a.HTTP(inbound.Routes(inbound.Deps{
		Place: app.PlaceOrder{
			Tx: a, Orders: store, Keys: keys, Rules: rules, KeyRetention: s.Orders.IdempotencyRetention, Clock: c.Clock,
		},
		Cancel:  app.CancelOrder{Tx: a, Orders: store, Clock: c.Clock},
		Read:    app.ReadOrders{Orders: store},
		Logger:  a.Logger(),
		OpenAPI: document,
	}))
	return a, a.Validate()
}
