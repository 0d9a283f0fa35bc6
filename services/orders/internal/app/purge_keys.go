package app

import (
	"context"
	"log/slog"
	"time"
)

// PurgeKeys deletes idempotency keys that expired, in small batches.
type PurgeKeys struct {
	// Keys and Logger are required.
	Keys   Keys
	Logger *slog.Logger
	// Every is the pause between two rounds; 0 means 10 minutes.
	Every time.Duration
	Clock Clock
}

const purgeBatch = 500

// Run purges at once and then every round until ctx ends. A failed round is
// logged and tried again in the next one.
func (p PurgeKeys) Run(ctx context.Context) {
	every := p.Every
	if every <= 0 {
		every = 10 * time.Minute
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if n, err := p.Purge(ctx); err != nil && ctx.Err() == nil {
			p.Logger.WarnContext(ctx, "purge of idempotency keys failed", "deleted", n, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Purge deletes every key that has expired by now and returns how many.
func (p PurgeKeys) Purge(ctx context.Context) (int, error) {
	total := 0
	for {
		n, err := p.Keys.DeleteExpired(ctx, p.Clock.now(), purgeBatch)
		total += n
		if err != nil || n < purgeBatch {
			return total, err
		}
	}
}
