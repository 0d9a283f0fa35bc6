// Package inbox remembers which events a handler has handled, in SQL.
//
// A handler that has a transaction writes its row there with Insert: effect,
// emitted events and row are one commit, and a copy of the event is seen as
// such. A handler that has none claims the event first: SQLStore is a
// middleware.DedupStore on the same database. Cleaner removes what is older than
// any redelivery can be.
package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/framework/sqltx"
)

// MaxKeyBytes is the longest handler name and event id that Insert takes.
const MaxKeyBytes = 255

// Insert records in tx that handler has handled the event. It returns true when
// it is the first to do so, and false when a committed transaction, or this one,
// did it before: the caller then has nothing to do but commit or roll back.
//
// While another transaction holds an uncommitted row of the same event, Insert
// waits for its end: fresh when that rolled back, a duplicate when it committed.
// Above read committed Postgres answers the latter with a serialization failure,
// and MySQL may answer with a deadlock when several wait: sqltx.Run replays both. On SQLite the wait is for the write lock and bounded
// by the busy timeout.
//
// now becomes the row's time, by which it is cleaned up.
func Insert(ctx context.Context, tx sqltx.Execer, d sqltx.Dialect, handler, eventID string, now time.Time) (fresh bool, err error) {
	q, ok := queries[d]
	if !ok {
		return false, d.Validate()
	}
	if err := checkKey("handler", handler); err != nil {
		return false, err
	}
	if err := checkKey("event id", eventID); err != nil {
		return false, err
	}
	res, err := tx.ExecContext(ctx, q.insert, handler, eventID, now.UnixMicro())
	if err != nil {
		return false, fmt.Errorf("inbox: record event %s for %s: %w", eventID, handler, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("inbox: record event %s for %s: %w", eventID, handler, err)
	}
	return n == 1, nil
}

// Handled tells whether a committed transaction, or tx itself, has recorded the
// event for handler. It waits for nobody, so it is a hint and no claim.
func Handled(ctx context.Context, tx sqltx.Execer, d sqltx.Dialect, handler, eventID string) (bool, error) {
	q, ok := queries[d]
	if !ok {
		return false, d.Validate()
	}
	var n int
	if err := tx.QueryRowContext(ctx, q.handled, handler, eventID).Scan(&n); err != nil {
		return false, fmt.Errorf("inbox: look for event %s of %s: %w", eventID, handler, err)
	}
	return n > 0, nil
}

func checkKey(what, v string) error {
	switch {
	case v == "":
		return fmt.Errorf("inbox: the %s is empty", what)
	case len(v) > MaxKeyBytes:
		return fmt.Errorf("inbox: the %s has %d bytes, more than %d: it would be cut and meet others", what, len(v), MaxKeyBytes)
	}
	for i := range len(v) {
		if v[i] < 0x20 || v[i] == 0x7f {
			return errors.New("inbox: the " + what + " holds a control character")
		}
	}
	return nil
}
