package sqldb

import (
	"context"
	"time"
)

// SetGapAge shortens the wait of closeByAge.
func (b *Broker) SetGapAge(d time.Duration) { b.gapAge = d }

// Floor is below what every group of the topic has settled.
func (b *Broker) Floor(ctx context.Context, topic string) (int64, error) {
	return b.floor(ctx, b.table(topic))
}

// Reads are the statements that a subscription runs again and again on the
// topic's table.
func (b *Broker) Reads(topic string) []string {
	q := newQueries(b.d, b.table(topic))
	return []string{q.probe, q.fresh, q.late}
}
