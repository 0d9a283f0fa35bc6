package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// floor has for each shard an offset below which the shard holds no ready row and
// never will. Without it each claim walks the index entries of all the rows that
// were deleted since the last vacuum, and the relay slows down as it works; with
// one for all shards the fastest would walk all that it is ahead of the slowest.
//
// Offsets are handed out before commit, so a row may turn up below others that
// are long gone. But its transaction has held a lock on the table since before
// the offset was handed out. So: note the highest offset that is visible, then
// who holds such a lock; once all of those are gone, every row up to the offset
// is visible or does not exist.
//
// As a net under manual changes (a sequence set back, a state reset by hand) the
// floors fall to 0 every floorReset.
type floor struct {
	db                   *sql.DB
	qMax, qHolders, qMin string

	at   [shards]atomic.Int64
	seen atomic.Int64 // the highest offset that was claimed

	mu      sync.Mutex
	noted   int64
	holders map[string]bool
	have    bool
	resetAt time.Time
}

const (
	floorInterval = 200 * time.Millisecond
	floorReset    = time.Minute
)

func (f *floor) init(db *sql.DB, table string) {
	f.db = db
	f.qMax = `SELECT COALESCE((SELECT "offset" FROM ` + table + ` ORDER BY "offset" DESC LIMIT 1), 0)`
	f.qHolders = `SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND relation = '` + table + `'::regclass AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')`
	f.qMin = `SELECT s.n - 1, (SELECT "offset" FROM ` + table + ` WHERE shard = (s.n - 1)::smallint AND acked = FALSE AND state = 0 AND "offset" >= s.floor ORDER BY shard, "offset" LIMIT 1)
FROM unnest($1::text::bigint[]) WITH ORDINALITY AS s(floor, n)`
	f.resetAt = time.Now().Add(floorReset)
}

func (f *floor) get(shard int) int64 { return f.at[shard].Load() }

// of returns the floors of the shards as an array that Postgres reads.
func (f *floor) of(of []int) string {
	all := make([]int64, len(of))
	for i, shard := range of {
		all[i] = f.get(shard)
	}
	return arrayLiteral(all)
}

// saw notes that a row was visible.
func (f *floor) saw(offset int64) {
	for {
		seen := f.seen.Load()
		if offset <= seen || f.seen.CompareAndSwap(seen, offset) {
			return
		}
	}
}

// advance moves the floor up as far as is safe now.
func (f *floor) advance(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.After(f.resetAt) {
		f.resetAt, f.have = now.Add(floorReset), false
		for shard := range f.at {
			f.at[shard].Store(0)
		}
		f.seen.Store(0)
	}
	if f.have {
		holders, err := f.lockHolders(ctx)
		if err != nil {
			return err
		}
		for h := range f.holders {
			if !holders[h] {
				delete(f.holders, h)
			}
		}
		if len(f.holders) > 0 {
			return nil
		}
		if err := f.raise(ctx); err != nil {
			return err
		}
	}
	f.have = false
	seen := f.seen.Load()
	if err := f.db.QueryRowContext(ctx, f.qMax).Scan(&f.noted); err != nil {
		return fmt.Errorf("find the highest row: %w", err)
	}
	f.noted = max(f.noted, seen)
	holders, err := f.lockHolders(ctx)
	if err != nil {
		return err
	}
	f.holders, f.have = holders, true
	return nil
}

// raise moves each shard's floor up to its lowest ready row, or past what was
// noted.
func (f *floor) raise(ctx context.Context) error {
	rows, err := f.db.QueryContext(ctx, f.qMin, f.of(allShards()))
	if err != nil {
		return fmt.Errorf("find the lowest rows: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var shard int
		var lowest sql.NullInt64
		if err := rows.Scan(&shard, &lowest); err != nil {
			return fmt.Errorf("find the lowest rows: %w", err)
		}
		to := f.noted + 1
		if lowest.Valid {
			to = min(to, lowest.Int64)
		}
		f.at[shard].Store(max(f.get(shard), to))
	}
	return rows.Err()
}

func (f *floor) lockHolders(ctx context.Context) (map[string]bool, error) {
	rows, err := f.db.QueryContext(ctx, f.qHolders)
	if err != nil {
		return nil, fmt.Errorf("find who writes to the table: %w", err)
	}
	defer rows.Close()
	holders := map[string]bool{}
	for rows.Next() {
		var h string
		if err := rows.Scan(&h); err != nil {
			return nil, fmt.Errorf("find who writes to the table: %w", err)
		}
		holders[h] = true
	}
	return holders, rows.Err()
}
