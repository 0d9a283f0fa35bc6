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
	events "github.com/headrace-go/headrace/pkg/events/notifications"
	"github.com/headrace-go/headrace/services/notifications"
	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
	"github.com/headrace-go/headrace/services/notifications/internal/inbound"
	"github.com/headrace-go/headrace/services/notifications/internal/outbound"
)

// Name is the service's name: the source of its events and the prefix of its
// consumer groups.
const Name = "notifications"

// Conns are the open connections that the service works with. They stay the
// caller's.
type Conns struct {
	// DB, Dialect and Broker are required.
	DB      *sql.DB
	Dialect sqltx.Dialect
	Broker  broker.Broker
	// Waker tells of rows that other replicas wrote to the outbox. May be nil.
	Waker outbox.Waker
	// Channels replaces channels that the settings would make, for tests. May be
	// nil.
	Channels map[domain.Channel]app.Channel
	// Logger defaults to slog.Default(), Metrics to a new registry, Tracer to
	// otel's global provider, Clock to time.Now.
	Logger  *slog.Logger
	Metrics *prometheus.Registry
	Tracer  trace.TracerProvider
	Clock   app.Clock
}

// New wires the service. It opens no connection and starts nothing; the schema
// must be current (see Migrate).
func New(s Settings, c Conns) (*framework.App, error) {
	a, err := framework.New(framework.Config{
		Service: Name, Profile: s.Profile, DB: c.DB, Dialect: c.Dialect, Broker: c.Broker, OutboxWaker: c.Waker,
		Logger: c.Logger, Metrics: c.Metrics, Tracer: c.Tracer,
	})
	if err != nil {
		return nil, err
	}
	document, err := notifications.Files.ReadFile("api/openapi.yaml")
	if err != nil {
		return nil, fmt.Errorf("read the API document: %w", err)
	}
	routes, err := s.routes()
	if err != nil {
		return nil, err
	}
	templates, err := outbound.LoadTemplates(s.Notifications.Brand)
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		if r.Channel != domain.Webhook && !templates.Has(r.Channel, r.Template) {
			return nil, fmt.Errorf("event %s goes to %s with template %q, which does not exist in %q: write it or name another", r.Event, r.Channel, r.Template, domain.FallbackLanguage)
		}
	}
	channels, err := openChannels(s, a.Logger())
	if err != nil {
		return nil, err
	}
	for name, ch := range c.Channels {
		channels[name] = ch
	}

	store := outbound.NewStore(c.DB, c.Dialect)
	sender := &app.Sender{
		Tx: a, Notifications: store, Renderer: templates, Channels: channels, Logger: a.Logger(), Codes: store, Clock: c.Clock,
	}
	codes, err := oneTimeCodes(s, a, store, c.Clock)
	if err != nil {
		return nil, err
	}
	if codes != nil {
		sender.Keeper = codes.Keeper
	}

	a.Emits(events.Descriptors()...)
	a.Emits(app.ResendRequested.Descriptor(), app.CodeRequested.Descriptor())
	err = inbound.Subscribe(a, inbound.Consumers{
		Remember: app.RememberContact{Contacts: store}, Sender: sender, Contacts: store, Routes: routes,
		MaxAge: s.Notifications.MaxAge, CodeTTL: s.Notifications.Codes.TTL, Options: sendOptions(s),
	})
	if err != nil {
		return nil, err
	}
	a.HTTP(inbound.Routes(inbound.Deps{
		Read: app.ReadNotifications{Notifications: store}, Resend: app.Resend{Sender: sender}, Codes: codes,
		Logger: a.Logger(), OpenAPI: document,
	}))
	return a, a.Validate()
}

// oneTimeCodes returns nil where they are off.
func oneTimeCodes(s Settings, tx app.Transactor, store *outbound.Store, clock app.Clock) (*app.OneTimeCodes, error) {
	c := s.Notifications.Codes
	if !c.Enabled {
		return nil, nil
	}
	keeper, err := domain.NewCodeKeeper([]byte(c.Secret.Reveal()))
	if err != nil {
		return nil, fmt.Errorf("set up one-time codes: %w", err)
	}
	return &app.OneTimeCodes{
		Tx: tx, Codes: store, Keeper: keeper, Clock: clock,
		Policy: domain.CodePolicy{
			Channels: s.codeChannels(), TTL: c.TTL, MaxAttempts: c.MaxAttempts, Limit: c.Limit, Window: c.Window,
		},
	}, nil
}
