package app

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Purge deletes what is no longer needed, in small batches: personal data is
// not kept for ever.
type Purge struct {
	// Store and Logger are required.
	Store  Purger
	Logger *slog.Logger
	// Notifications and Contacts are how long each is kept. Those that wait for
	// an attempt or for a person are kept longer.
	Notifications, Contacts time.Duration
	// CodeWindow is the rate limit's window.
	CodeWindow time.Duration
	// Every is the pause between two rounds; 0 means 10 minutes.
	Every time.Duration
	Clock Clock
}

const (
	purgeBatch = 500
	// codeGrace keeps an expired code for a while, for whoever looks into a
	// complaint.
	codeGrace = 24 * time.Hour
)

// Run purges at once and then every round until ctx ends. A failed round is
// logged and tried again in the next one.
func (p Purge) Run(ctx context.Context) {
	every := p.Every
	if every <= 0 {
		every = 10 * time.Minute
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if n, err := p.Purge(ctx); err != nil && ctx.Err() == nil {
			p.Logger.WarnContext(ctx, "purge failed", "deleted", n, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Purge deletes all that is due by now and returns how many rows.
func (p Purge) Purge(ctx context.Context) (int, error) {
	now := p.Clock.now()
	total := 0
	var errs []error
	for _, step := range []struct {
		purge  func(context.Context, time.Time, int) (int, error)
		before time.Time
	}{
		{p.Store.PurgeCodes, now.Add(-codeGrace)},
		{p.Store.PurgeCodeLimits, now.Add(-p.CodeWindow)},
		{p.Store.PurgeContacts, now.Add(-p.Contacts)},
		{p.Store.PurgeNotifications, now.Add(-p.Notifications)},
	} {
		for {
			n, err := step.purge(ctx, step.before, purgeBatch)
			total += n
			errs = append(errs, err)
			if err != nil || n < purgeBatch {
				break
			}
		}
	}
	return total, errors.Join(errs...)
}
