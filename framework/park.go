package framework

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/inbox"
	"github.com/headrace-go/headrace/framework/parked"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/middleware"
)

// parkConfig is what a handler with ParkKey has; nil for another one, and
// without a database, which check refuses.
func (a *App) parkConfig(h *handler) (*middleware.ParkConfig, error) {
	if !h.policy.park || a.cfg.DB == nil {
		return nil, nil
	}
	store, err := a.parkStore(h)
	if err != nil {
		return nil, err
	}
	h.parked = store
	return &middleware.ParkConfig{
		Store:        store,
		RedriveTopic: broker.RedriveTopic(h.group),
		ID:           eventID,
		Budget:       h.policy.transient,
		Passes: func(msg *message.Message) bool {
			d, _ := middleware.DispositionOf(a.admit(h, openedFrom(msg.Context())))
			return d == middleware.DispositionSkip
		},
		Handled: func(ctx context.Context, msg *message.Message) (bool, error) {
			if h.kind == kindPlain { // its claims are no proof
				return false, nil
			}
			return inbox.Handled(ctx, a.cfg.DB, a.cfg.Dialect, h.group, eventID(msg))
		},
	}, nil
}

func (a *App) parkStore(h *handler) (*parked.Store, error) {
	return parked.NewStore(parked.Config{DB: a.cfg.DB, Dialect: a.cfg.Dialect, Group: h.group, Clock: a.cfg.Clock})
}

// leaveLine takes the event that tx handles out of its key's line, where it
// stands in one.
func (a *App) leaveLine(ctx context.Context, tx *sql.Tx, h *handler) error {
	place := middleware.ParkPlaceFrom(ctx)
	if place == nil || h.parked == nil {
		return nil
	}
	if err := h.parked.RemoveIn(ctx, tx, place.Seq); err != nil {
		return err
	}
	sqltx.AfterCommit(ctx, place.Left)
	return nil
}

// withdrawn returns a skip for what a discard sent instead of a message.
func (a *App) withdrawn(h *handler, msg *message.Message) error {
	if msg.Metadata[middleware.DeadLetterDiscarded] == "" || message.SubscribeTopicFromCtx(msg.Context()) != broker.RedriveTopic(h.group) {
		return nil
	}
	return middleware.SkipBecause(middleware.SkipDiscarded, fmt.Errorf("a dead letter of %q was discarded, which parks no keys", h.group))
}

// forgetLines drops what groups have parked whose handlers do not park any more:
// nothing would take it out, and it would hold up its keys once they do again.
func (a *App) forgetLines(ctx context.Context) {
	for _, h := range a.handlers {
		if h.policy.park {
			continue
		}
		if err := a.forgetLine(ctx, h); err != nil && ctx.Err() == nil {
			a.logger.WarnContext(ctx, "parked keys of a handler without ParkKey not looked for", "handler", h.name, "error", err)
		}
	}
}

func (a *App) forgetLine(ctx context.Context, h *handler) error {
	store, err := a.parkStore(h)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	n, err := store.Clear(ctx)
	if n > 0 {
		a.logger.WarnContext(ctx, "the handler parks no keys any more: those that were held up are free", "handler", h.name, "messages", n)
	}
	return err
}
