package service

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/program"
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

// purgeEvery is the pause between two purges of what is no longer needed.
const purgeEvery = 10 * time.Minute

// Program is the service's program.
func Program() program.Program[Settings] {
	return program.Program[Settings]{
		Name: Name, Files: notifications.Files, Defaults: Defaults(),
		Build: func(_ context.Context, s Settings, base framework.Config) (*framework.App, error) {
			return New(s, base, nil)
		},
	}
}

// New wires the service on base, which has the service's name, profile and
// connections. It opens no connection and starts nothing; the schema must be
// current. Instead replaces channels that the settings would make, for tests; it
// may be nil.
func New(s Settings, base framework.Config, instead map[domain.Channel]app.Channel) (*framework.App, error) {
	a, err := framework.New(base)
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
	maps.Copy(channels, instead)

	store, clock := outbound.NewStore(base.DB, base.Dialect), app.Clock(base.Clock)
	sender := &app.Sender{
		Tx: a, Notifications: store, Renderer: templates, Channels: channels, Logger: a.Logger(), Codes: store, Clock: clock,
	}
	codes, err := oneTimeCodes(s, a, store, clock)
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
		Read: app.ReadNotifications{Notifications: store}, Resend: app.Resend{Sender: sender}, Codes: codes, OpenAPI: document,
	}))
	a.Background("purge", framework.Every(purgeEvery, app.Purge{
		Store: store, Notifications: s.Notifications.Retention.Notifications, Contacts: s.Notifications.Retention.Contacts,
		CodeWindow: s.Notifications.Codes.Window, Clock: clock,
	}.Purge))
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
