package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/sqltx"
)

// Values of the column state.
//
//	0  ready
//	1  held: waits for next_attempt_at, itself or behind a row of its key
//	2  parked
const stateParked = 2

// behindParked is the parked_reason of a row that is parked only because an
// earlier one of its key is.
const behindParked = "behind a parked row of its ordering key"

// row is one row of the outbox.
type row struct {
	offset   int64
	key      string // "" has no order
	attempts int
	topic    string
	msg      *message.Message
	corrupt  error // why the envelope can't be read
}

// store is what differs between databases. Its methods are safe for concurrent
// use.
type store interface {
	// scout looks where there is work.
	scout(ctx context.Context) (scouting, error)
	// claim takes up to limit rows of the shards, or of those among them that no
	// other relay works on. Nil means that it could get none of the shards.
	claim(ctx context.Context, shards []int, limit int) (claim, error)
	// probe takes the right to try a broker that took nothing before; false means
	// that another relay has it or that the pause still runs. The right lapses
	// after hold.
	probe(ctx context.Context, hold time.Duration) (bool, error)
	// shut makes all relays pause. Failures become at least 1, and one more than
	// before when grow is true; delay maps what they were to the pause.
	shut(ctx context.Context, grow bool, delay func(failures int) time.Duration) error
	// open ends the pause and makes every held row due.
	open(ctx context.Context) error
	// maintain lets the store do what it does from time to time while rows flow.
	maintain(ctx context.Context) error
	stats(ctx context.Context) (Stats, error)
	// purge removes up to limit rows that were sent longer ago than age.
	purge(ctx context.Context, age time.Duration, limit int) (int64, error)
	// release gives back what the store holds outside a claim.
	release() error
}

// scouting is what scout found.
type scouting struct {
	// shards have rows to publish now.
	shards []int
	// nextDue is when the next held row is due; 0 when there is none.
	nextDue time.Duration
	// failures is above 0 while the broker is taken to be out.
	failures int
	// pause is how long the relays' common pause still runs.
	pause time.Duration
}

// claim is a batch that no other relay works on until it is settled or
// abandoned.
type claim interface {
	// rows are in the order in which they are to be published.
	rows() []row
	// full tells whether there may be more rows where these came from.
	full() bool
	// settle records what became of the rows, and returns the offsets of those
	// that were parked.
	settle(ctx context.Context, o outcome) (parked []int64, err error)
	// abandon lets the rows go as they were. After settle it does nothing.
	abandon()
}

// outcome is what became of a claim's rows.
type outcome struct {
	sent   []int64
	failed []failure
	// proven is how long ago the broker was last seen to take a message; negative
	// when it was not.
	proven      time.Duration
	maxAttempts int
	retain      bool // mark sent rows instead of deleting them
}

// failure is what becomes of a row that was not published.
type failure struct {
	Offset int64 `json:"offset"`
	// Delay is how long the row is held back, in microseconds.
	Delay int64 `json:"delay"`
	// Attempt is 1 when the row itself failed, 0 when it waits behind another.
	Attempt int `json:"attempt"`
	// Strike is 1 when the broker took others of the same batch.
	Strike int `json:"strike"`
	// Park gives the row up.
	Park bool `json:"park"`
	// Error says why.
	Error string `json:"error"`
}

// fail runs a statement that holds rows back and returns those that it parked.
func fail(ctx context.Context, tx sqltx.Execer, query string, args ...any) (parked []int64, err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var offset int64
		var state int
		if err := rows.Scan(&offset, &state); err != nil {
			return nil, err
		}
		if state == stateParked {
			parked = append(parked, offset)
		}
	}
	return parked, rows.Err()
}

// scoutRows runs a query that gives each shard's ready, nextDue, failures and
// pause.
func scoutRows(ctx context.Context, db *sql.DB, query string, args ...any) (scouting, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return scouting{}, fmt.Errorf("look for rows: %w", err)
	}
	defer rows.Close()
	var found scouting
	for rows.Next() {
		var shard int
		var ready bool
		var due sql.NullInt64
		var pause int64
		if err := rows.Scan(&shard, &ready, &due, &found.failures, &pause); err != nil {
			return scouting{}, fmt.Errorf("look for rows: %w", err)
		}
		found.add(shard, ready, due, pause)
	}
	if err := rows.Err(); err != nil {
		return scouting{}, fmt.Errorf("look for rows: %w", err)
	}
	return found, nil
}

func (f *scouting) add(shard int, ready bool, due sql.NullInt64, pause int64) {
	f.pause = time.Duration(max(pause, 0)) * time.Microsecond
	if ready || due.Valid && due.Int64 <= 0 {
		f.shards = append(f.shards, shard)
	}
	if due.Valid && due.Int64 > 0 {
		in := time.Duration(due.Int64) * time.Microsecond
		if f.nextDue == 0 || in < f.nextDue {
			f.nextDue = in
		}
	}
}

// readRows appends the rows of a query to batch; the query's last column is
// returned as that of its last row.
func readRows(ctx context.Context, db sqltx.Execer, batch []row, query string, args ...any) (_ []row, last bool, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, false, fmt.Errorf("read rows: %w", err)
	}
	defer rows.Close()
	var payload sql.RawBytes
	var key sql.NullString
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.offset, &payload, &key, &r.attempts, &last); err != nil {
			return nil, false, fmt.Errorf("read rows: %w", err)
		}
		r.key = key.String
		r.topic, r.msg, r.corrupt = decodeEnvelope(payload)
		batch = append(batch, r)
	}
	if err := rows.Err(); err != nil {
		return nil, false, fmt.Errorf("read rows: %w", err)
	}
	return batch, last, nil
}

// blockedKeys runs a query that gives each key, whether the rows that block it
// are parked, and the lowest offset of those.
func blockedKeys(ctx context.Context, db sqltx.Execer, query string, args ...any) (map[string]block, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the keys held back: %w", err)
	}
	defer rows.Close()
	blocked := map[string]block{}
	for rows.Next() {
		var key string
		var parked bool
		var from int64
		if err := rows.Scan(&key, &parked, &from); err != nil {
			return nil, fmt.Errorf("read the keys held back: %w", err)
		}
		b, ok := blocked[key]
		if !ok {
			b = block{held: never, parked: never}
		}
		if parked {
			b.parked = from
		} else {
			b.held = from
		}
		blocked[key] = b
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the keys held back: %w", err)
	}
	return blocked, nil
}

// writeRows runs one statement in a transaction of its own.
func writeRows(ctx context.Context, db *sql.DB, opts sqltx.Options, query string, args ...any) (n int64, err error) {
	err = sqltx.Run(ctx, db, opts, func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		n, err = res.RowsAffected()
		return err
	})
	return n, err
}

func scanOffsets(rows *sql.Rows, err error) ([]int64, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var offsets []int64
	for rows.Next() {
		var o int64
		if err := rows.Scan(&o); err != nil {
			return nil, err
		}
		offsets = append(offsets, o)
	}
	return offsets, rows.Err()
}

// offsets and failures travel as one JSON parameter, which every driver takes.
func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil { // numbers, strings and booleans alone
		return "[]"
	}
	return string(b)
}

var stores = map[sqltx.Dialect]func(RelayConfig) store{
	sqltx.Postgres: newPostgresStore,
	sqltx.MySQL:    newMySQLStore,
	sqltx.SQLite:   newSQLiteStore,
}
