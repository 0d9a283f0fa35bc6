package outbox

import (
	"context"
	"encoding/json"
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
	sqltx.SQLite:   newSQLiteStore,
}
