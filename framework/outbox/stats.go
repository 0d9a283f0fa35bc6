package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Stats is what an outbox holds.
type Stats struct {
	// Backlog is how many rows wait to be published, those held back included.
	Backlog int64
	// Held is how many of them wait because they, or an earlier row of their key,
	// failed.
	Held int64
	// OldestAge is the age of the oldest row of the backlog; 0 when there is none.
	OldestAge time.Duration
	// Parked is how many rows were given up and wait for an operator.
	Parked int64
}

// String says it in one line.
func (s Stats) String() string {
	return fmt.Sprintf("backlog %d (%d held back), oldest %s, parked %d", s.Backlog, s.Held, s.OldestAge.Round(time.Millisecond), s.Parked)
}

// Stats counts the table's rows now.
func (r *Relay) Stats(ctx context.Context) (Stats, error) {
	st, err := r.store.stats(ctx)
	if err != nil {
		return Stats{}, err
	}
	r.remember(st)
	return st, nil
}

func (r *Relay) remember(st Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats, r.counted = st, time.Now()
}

func (r *Relay) remembered() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// troubleGrace is how long the database may fail the relay before Health does.
const troubleGrace = 10 * time.Second

// Health returns an error that says what is wrong when the relay can't do its
// work: it doesn't run, the database has not answered it for 10 s, or the oldest
// unsent row was older than StuckAfter when the rows were last counted.
func (r *Relay) Health() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.running:
		return errors.New("outbox: the relay does not run")
	case r.trouble != nil && time.Since(r.since) > troubleGrace:
		return fmt.Errorf("outbox: the database has failed the relay for %s: %w", time.Since(r.since).Round(time.Second), r.trouble)
	case r.cfg.StuckAfter > 0 && r.stats.OldestAge > r.cfg.StuckAfter:
		return fmt.Errorf("outbox: the oldest of %d unsent rows is %s old, more than %s: the broker refuses it, or the relays don't keep up", r.stats.Backlog, r.stats.OldestAge.Round(time.Second), r.cfg.StuckAfter)
	default:
		return nil
	}
}
