package service

import (
	"context"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/program"
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

// purgeEvery is the pause between two purges of expired idempotency keys.
const purgeEvery = 10 * time.Minute

// Program is the service's program.
func Program() program.Program[Settings] {
	return program.Program[Settings]{Name: Name, Files: orders.Files, Build: New}
}

// maxEventBytes is the largest event of the service: the longest order, with what
// a line, the customer and the envelope take at most.
func maxEventBytes(lines int) int { return 8<<10 + lines*512 }

// New wires the service on base, which has the service's name, profile and
// connections. It opens nothing and starts nothing; the schema must be current.
func New(_ context.Context, s Settings, base framework.Config) (*framework.App, error) {
	base.MaxEventBytes = maxEventBytes(s.Orders.MaxLines)
	a, err := framework.New(base)
	if err != nil {
		return nil, err
	}
	document, err := orders.Files.ReadFile("api/openapi.yaml")
	if err != nil {
		return nil, fmt.Errorf("read the API document: %w", err)
	}
	store, keys := outbound.NewOrders(base.DB, base.Dialect), outbound.NewKeys(base.DB, base.Dialect)
	rules := domain.Rules{Currencies: s.Orders.Currencies, MaxLines: s.Orders.MaxLines}
	clock := app.Clock(base.Clock)

	a.Emits(events.Descriptors()...)
	inbound.Subscribe(a, inbound.Consumers{
		Confirm:      app.ConfirmOrder{Orders: store, Clock: clock},
		CancelUnpaid: app.CancelUnpaid{Orders: store, Clock: clock},
		NoteRefund:   app.NoteRefund{Orders: store, Clock: clock},
	})
	a.HTTP(inbound.Routes(inbound.Deps{
		Place: app.PlaceOrder{
			Tx: a, Orders: store, Keys: keys, Rules: rules, KeyRetention: s.Orders.IdempotencyRetention, Clock: clock,
		},
		Cancel:  app.CancelOrder{Tx: a, Orders: store, Clock: clock},
		Read:    app.ReadOrders{Orders: store},
		OpenAPI: document,
	}))
	a.Background("purge-keys", framework.Every(purgeEvery, app.PurgeKeys{Keys: keys, Clock: clock}.Purge))
	return a, a.Validate()
}
