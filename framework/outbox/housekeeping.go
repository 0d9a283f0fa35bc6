package outbox

import (
	"context"
	"time"
)

// listen turns another process's news into wakes. While the waker is in trouble
// the relay polls.
func (r *Relay) listen(ctx context.Context) {
	pause := time.Duration(0)
	for ctx.Err() == nil {
		err := r.cfg.Waker.Wait(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			if pause > 0 {
				pause = 0
				r.cfg.Logger.InfoContext(ctx, "outbox: the relay is woken again by other processes", "table", r.cfg.Table)
			}
			r.Wake()
			continue
		}
		if pause == 0 {
			r.cfg.Logger.WarnContext(ctx, "outbox: the relay is not woken by other processes for now; it polls", "table", r.cfg.Table, "poll", r.cfg.PollInterval, "error", err)
			pause = troubleMin
		}
		if !sleep(ctx, jitter(pause)) {
			return
		}
		pause = min(2*pause, troubleMax)
	}
}

// maintain lets the store advance while rows flow.
func (r *Relay) maintain(ctx context.Context) {
	last := int64(0)
	idle := false
	for sleep(ctx, floorInterval) {
		now := r.relayed.Load()
		if now == last && idle {
			continue
		}
		idle = now == last
		last = now
		if err := r.store.maintain(ctx); err != nil && ctx.Err() == nil {
			r.cfg.Logger.DebugContext(ctx, "outbox: maintenance failed; it is tried again", "table", r.cfg.Table, "error", err)
		}
	}
}

const purgeBatch = 1000

// housekeep counts rows, and removes those whose retention is over.
func (r *Relay) housekeep(ctx context.Context) {
	for {
		if st, err := r.store.stats(ctx); err == nil {
			r.remember(st)
		} else if ctx.Err() == nil {
			r.cfg.Logger.WarnContext(ctx, "outbox: counting rows failed; it is tried again", "table", r.cfg.Table, "error", err)
		}
		if err := r.purge(ctx); err != nil && ctx.Err() == nil {
			r.cfg.Logger.WarnContext(ctx, "outbox: removing sent rows failed; it is tried again", "table", r.cfg.Table, "error", err)
		}
		if !sleep(ctx, jitter(r.cfg.StatsInterval)) {
			return
		}
	}
}

// purge removes sent rows in small transactions, so that writers and relays
// never wait long.
func (r *Relay) purge(ctx context.Context) error {
	if r.cfg.Retention == 0 {
		return nil
	}
	for ctx.Err() == nil {
		n, err := r.store.purge(ctx, r.cfg.Retention, purgeBatch)
		if err != nil || n < purgeBatch {
			return err
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
