package app

import "context"

// PurgeKeys deletes idempotency keys that expired, in small batches.
type PurgeKeys struct {
	// Keys is required.
	Keys  Keys
	Clock Clock
}

const purgeBatch = 500

// Purge deletes every key that has expired by now.
func (p PurgeKeys) Purge(ctx context.Context) error {
	for {
		n, err := p.Keys.DeleteExpired(ctx, p.Clock.now(), purgeBatch)
		if err != nil || n < purgeBatch {
			return err
		}
	}
}
