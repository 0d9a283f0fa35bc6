package outbox

import (
	"context"
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

// Relay publishes the rows of an outbox. Any number of relays may run on one
// table. It is safe for concurrent use.
type Relay struct{ cfg RelayConfig }

// NewRelay makes a Relay; Run starts it.
func NewRelay(cfg RelayConfig) (*Relay, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Relay{cfg: cfg}, nil
}

// Run relays until ctx ends, then finishes the batches that are under way, which
// takes PublishTimeout at most, and returns nil. It returns an error at once
// when the relay runs already. Trouble with the database or the broker is
// logged and outlived.
func (r *Relay) Run(ctx context.Context) error { return nil }

// Wake has the relay look for rows now. It never blocks.
func (r *Relay) Wake() {}

// Flush returns nil once every row that may be published now has been, by this
// relay or another. Rows that are held back after a failure are not waited for.
// It returns an error when ctx ends first. It works while the relay runs and
// when it does not.
func (r *Relay) Flush(ctx context.Context) error { return nil }

// Stats counts the table's rows now.
func (r *Relay) Stats(ctx context.Context) (Stats, error) { return Stats{}, nil }

// Health returns an error that says what is wrong when the relay can't do its
// work: it doesn't run, the database does not answer it, or the oldest unsent
// row is older than StuckAfter.
func (r *Relay) Health() error { return nil }
