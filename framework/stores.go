package framework

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/inbox"
	"github.com/headrace-go/headrace/framework/outbox"
	"github.com/headrace-go/headrace/middleware"
)

// buildStores makes what the database holds: outbox, inbox and dedup claims.
func (a *App) buildStores() error {
	p := a.cfg.Profile
	if a.cfg.DB == nil {
		if a.dedup == nil {
			a.dedup = middleware.NewMemoryDedup(middleware.MemoryDedupConfig{Clock: a.cfg.Clock})
		}
		return nil
	}
	var err error
	if a.dedup == nil {
		if a.dedup, err = inbox.NewSQLStore(a.cfg.DB, a.cfg.Dialect); err != nil {
			return fmt.Errorf("framework: dedup store: %w", err)
		}
	}
	if a.cleaner, err = inbox.NewCleaner(inbox.CleanerConfig{
		DB: a.cfg.DB, Dialect: a.cfg.Dialect, Logger: a.logger,
		Retention: p.Dedup.Retention, RedeliveryWindow: p.Dedup.RedeliveryWindow, Interval: p.Dedup.CleanupInterval,
	}); err != nil {
		return fmt.Errorf("framework: inbox clean-up: %w", err)
	}
	a.relay, err = outbox.NewRelay(outbox.RelayConfig{
		DB: a.cfg.DB, Dialect: a.cfg.Dialect, Publisher: a.cfg.Broker.Publisher(), Probe: a.cfg.Broker.Ping, Waker: a.cfg.OutboxWaker,
		BatchSize: p.Outbox.BatchSize, Parallelism: p.Outbox.Parallelism, PublishTimeout: p.Outbox.PublishTimeout,
		PollInterval: p.Outbox.PollInterval, MaxAttempts: p.Outbox.MaxAttempts, StrictOrder: p.Outbox.StrictOrder,
		Retention: p.Outbox.Retention, StuckAfter: p.Outbox.StuckAfter,
		Metrics: a.cfg.Metrics, Logger: a.logger,
	})
	if err != nil {
		return fmt.Errorf("framework: outbox relay: %w", err)
	}
	features := a.cfg.Broker.Features()
	a.writer, err = outbox.NewWriter(outbox.WriterConfig{
		Dialect: a.cfg.Dialect, MaxBytes: eventLimit(features), MaxMetadata: features.MaxMetadataEntries,
		OnCommit: a.onCommit(),
	})
	if err != nil {
		return fmt.Errorf("framework: outbox writer: %w", err)
	}
	return nil
}

// onCommit wakes this process's relay and tells the others.
func (a *App) onCommit() func() {
	n, ok := a.cfg.OutboxWaker.(OutboxNotifier)
	if !ok {
		return a.relay.Wake
	}
	return func() {
		a.relay.Wake()
		n.Notify()
	}
}

// Relay is the outbox relay, for tests and tools that look at its backlog; nil
// without a database.
func (a *App) Relay() *outbox.Relay { return a.relay }

// malformed hands entries that are no message to the group's dead letters, in
// the same record as those of the stack.
func (a *App) malformed(h *handler) (func(context.Context, *message.Message, error) error, error) {
	poison, err := middleware.Poison(a.poisonConfig(h))
	if err != nil {
		return nil, fmt.Errorf("framework: handler %q: %w", h.name, err)
	}
	return func(ctx context.Context, raw *message.Message, reason error) error {
		a.stats.malformed.WithLabelValues(h.name).Inc()
		raw = raw.Copy()
		raw.SetContext(ctx)
		_, err := poison(func(*message.Message) ([]*message.Message, error) {
			return nil, Permanent(fmt.Errorf("%w: %w", middleware.ErrMalformed, reason))
		})(raw)
		return err
	}, nil
}
