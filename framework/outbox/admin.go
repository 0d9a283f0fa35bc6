package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
)

// AdminConfig configures an Admin. The zero value of a field means its default.
type AdminConfig struct {
	// DB is the database. Required.
	DB *sql.DB
	// Dialect is the database's. Required.
	Dialect sqltx.Dialect
	// Table holds the rows. Default schema.OutboxTable.
	Table string
}

// Admin is the operators' side of an outbox: what it holds, and what becomes of
// the rows that its relays have given up. It works beside running relays, and
// when none runs. It is safe for concurrent use.
type Admin struct {
	cfg   AdminConfig
	store store
	q     adminQueries
}

// NewAdmin makes an Admin.
func NewAdmin(cfg AdminConfig) (*Admin, error) {
	set(&cfg.Table, schema.OutboxTable)
	errs := []error{cfg.Dialect.Validate()}
	if cfg.DB == nil {
		errs = append(errs, errors.New("outbox: DB is nil: hand in the service's database"))
	}
	if !tableName.MatchString(cfg.Table) {
		errs = append(errs, fmt.Errorf("outbox: Table is %q: use letters, digits and underscores, 63 at most", cfg.Table))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Admin{
		cfg:   cfg,
		store: stores[cfg.Dialect](RelayConfig{DB: cfg.DB, Dialect: cfg.Dialect, Table: cfg.Table}),
		q:     newAdminQueries(cfg),
	}, nil
}

// Status is the state of an outbox.
type Status struct {
	Stats
	// Outage tells that the broker is taken to be out: it took nothing when it
	// was last tried.
	Outage bool
	// ResumesIn is how long the relays still wait before they try it again.
	ResumesIn time.Duration
}

// Status counts the rows now.
func (a *Admin) Status(ctx context.Context) (Status, error) {
	st, err := a.store.stats(ctx)
	if err != nil {
		return Status{}, err
	}
	found, err := a.store.scout(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("outbox: %w", err)
	}
	return Status{Stats: st, Outage: found.failures > 0, ResumesIn: found.pause}, nil
}

// Filter chooses parked rows. A field that is set must match, with any one of
// its values; the zero Filter chooses all.
type Filter struct {
	// Offsets are the rows' numbers.
	Offsets []int64
	// IDs are message ids: a message's UUID or its event id.
	IDs []string
	// Topics are destinations; a row that can't be read has none.
	Topics []string
	// Keys are ordering keys.
	Keys []string
	// Reason is a part of the reason for which the row was parked.
	Reason string
	// ParkedBefore and ParkedSince bound when.
	ParkedBefore, ParkedSince time.Time
	// Limit is the most rows chosen, the oldest ones. 0: no limit.
	Limit int
}

func (f Filter) matches(p ParkedRow) bool {
	in := func(want []string, have ...string) bool {
		return len(want) == 0 || slices.ContainsFunc(have, func(h string) bool { return h != "" && slices.Contains(want, h) })
	}
	return (len(f.Offsets) == 0 || slices.Contains(f.Offsets, p.Offset)) &&
		in(f.IDs, p.ID, p.EventID) && in(f.Topics, p.Topic) && in(f.Keys, p.Key) &&
		strings.Contains(p.Reason, f.Reason) &&
		(f.ParkedBefore.IsZero() || p.ParkedAt.Before(f.ParkedBefore)) &&
		(f.ParkedSince.IsZero() || !p.ParkedAt.Before(f.ParkedSince))
}

// ParkedRow is a row that the relays have given up.
type ParkedRow struct {
	Offset int64 `json:"offset"`
	// ID is the message's UUID, or the row's where the message can't be read.
	ID string `json:"id"`
	// EventID and Type are the event's, where the message is one.
	EventID string `json:"event_id,omitempty"`
	Type    string `json:"type,omitempty"`
	Topic   string `json:"topic,omitempty"`
	Key     string `json:"key,omitempty"`
	// Bytes is the size of the payload.
	Bytes    int    `json:"bytes"`
	Attempts int    `json:"attempts"`
	Reason   string `json:"reason"`
	// Behind tells that nothing is wrong with the row itself: an earlier one of
	// its key is parked, and order is strict.
	Behind    bool      `json:"behind,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	ParkedAt  time.Time `json:"parked_at"`
}

// adminPage is how many rows are read, and changed in one transaction, at once.
const adminPage = 500

// Parked yields the parked rows that f chooses, the oldest first. It reads in
// pages, so what changes meanwhile may be seen or not.
func (a *Admin) Parked(ctx context.Context, f Filter) iter.Seq2[ParkedRow, error] {
	return func(yield func(ParkedRow, error) bool) {
		left := f.Limit
		for from := int64(0); ; {
			page, err := a.page(ctx, from)
			if err != nil {
				yield(ParkedRow{}, err)
				return
			}
			for _, p := range page {
				if !f.matches(p) {
					continue
				}
				if !yield(p, nil) {
					return
				}
				if left--; left == 0 {
					return
				}
			}
			if len(page) < adminPage {
				return
			}
			from = page[len(page)-1].Offset
		}
	}
}

func (a *Admin) page(ctx context.Context, from int64) ([]ParkedRow, error) {
	rows, err := a.cfg.DB.QueryContext(ctx, a.q.page, from, adminPage)
	if err != nil {
		return nil, fmt.Errorf("outbox: read the parked rows: %w", err)
	}
	defer rows.Close()
	var page []ParkedRow
	for rows.Next() {
		var p ParkedRow
		var payload sql.RawBytes
		var key, reason sql.NullString
		var created, parked sql.NullInt64
		if err := rows.Scan(&p.Offset, &p.ID, &payload, &key, &p.Attempts, &reason, &created, &parked); err != nil {
			return nil, fmt.Errorf("outbox: read the parked rows: %w", err)
		}
		p.Key, p.Reason, p.Behind = key.String, reason.String, reason.String == behindParked
		p.CreatedAt, p.ParkedAt = time.UnixMicro(created.Int64).UTC(), time.UnixMicro(parked.Int64).UTC()
		p.Bytes = len(payload)
		if topic, msg, err := decodeEnvelope(payload); err == nil {
			p.Topic, p.ID, p.Bytes = topic, msg.UUID, len(msg.Payload)
			p.EventID, p.Type = msg.Metadata[events.KeyID], msg.Metadata[events.KeyType]
		}
		page = append(page, p)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("outbox: read the parked rows: %w", err)
	}
	return page, nil
}

// retryDelay is what a row that is given another chance waits. It must exceed
// the time that the statement and its commit take, so that a relay that is
// reading rows at that moment still sees the row as one that blocks its key.
const retryDelay = time.Second

// Retry gives the chosen rows a new life: they count as never failed and are
// published after a second, before the later rows of their keys. It returns how
// many rows that were. Rows that were parked only behind one of them go on too
// and are not counted. The change is made in small transactions; after an error
// the rows counted have it.
func (a *Admin) Retry(ctx context.Context, f Filter) (int, error) {
	return a.each(ctx, f, func(ctx context.Context, offsets []int64) (int64, error) {
		return a.write(ctx, a.q.retry+list(offsets))
	})
}

// Discard deletes the chosen rows for good and returns how many that were. Rows
// that were parked only behind one of them go on, as with Retry.
func (a *Admin) Discard(ctx context.Context, f Filter) (int, error) {
	return a.each(ctx, f, func(ctx context.Context, offsets []int64) (int64, error) {
		return a.write(ctx, a.q.discard+list(offsets))
	})
}

func (a *Admin) each(ctx context.Context, f Filter, change func(context.Context, []int64) (int64, error)) (n int, err error) {
	keys := map[string]bool{}
	var batch []int64
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		changed, err := change(ctx, batch)
		if err != nil {
			return fmt.Errorf("outbox: change %d parked rows: %w", len(batch), err)
		}
		n += int(changed)
		batch = batch[:0]
		return nil
	}
	for p, err := range a.Parked(ctx, f) {
		if err != nil {
			return n, err
		}
		batch = append(batch, p.Offset)
		if p.Key != "" {
			keys[p.Key] = true
		}
		if len(batch) == adminPage {
			if err := flush(); err != nil {
				return n, err
			}
		}
	}
	if err := flush(); err != nil {
		return n, err
	}
	return n, a.release(ctx, keys)
}

// release lets the rows of the keys go on that are parked behind a row which is
// parked no more.
func (a *Admin) release(ctx context.Context, keys map[string]bool) error {
	if len(keys) == 0 {
		return nil
	}
	stuck := map[string]bool{}
	var free []int64
	for p, err := range a.Parked(ctx, Filter{}) {
		switch {
		case err != nil:
			return err
		case !keys[p.Key]:
		case !p.Behind:
			stuck[p.Key] = true
		case !stuck[p.Key]:
			free = append(free, p.Offset)
		}
	}
	for part := range slices.Chunk(free, adminPage) {
		if _, err := a.write(ctx, a.q.retry+list(part)); err != nil {
			return fmt.Errorf("outbox: let %d rows go on that were behind a parked one: %w", len(part), err)
		}
	}
	return nil
}

func (a *Admin) write(ctx context.Context, query string) (int64, error) {
	o := sqltx.Options{Dialect: a.cfg.Dialect, MaxElapsed: 15 * time.Second}
	if a.cfg.Dialect == sqltx.MySQL {
		o.Isolation = sql.LevelReadCommitted // no gap locks
	}
	return writeRows(ctx, a.cfg.DB, o, query)
}

// adminQueries are what differs between dialects. Retry and discard end where a
// list of offsets follows.
type adminQueries struct{ page, retry, discard string }

func newAdminQueries(cfg AdminConfig) adminQueries {
	offset, now, micros, place := `"offset"`, mysqlNow, func(column string) string { return column }, `$1`
	limit := `$2`
	switch cfg.Dialect {
	case sqltx.Postgres:
		now = `clock_timestamp()`
		micros = func(column string) string { return `(extract(epoch from ` + column + `) * 1000000)::bigint` }
	case sqltx.MySQL:
		offset, place, limit = "`offset`", `?`, `?`
	default:
		now = sqliteNow
	}
	due := fmt.Sprint(now, ` + `, retryDelay.Microseconds())
	if cfg.Dialect == sqltx.Postgres {
		due = fmt.Sprintf(`%s + %d * interval '1 microsecond'`, now, retryDelay.Microseconds())
	}
	// A row that was parked comes back as one that is held: held rows are found
	// however far below the floor of the relays they are, and block their key
	// until they are out.
	return adminQueries{
		page: `SELECT ` + offset + `, uuid, payload, ordering_key, attempts, parked_reason, ` + micros(`created_at`) + `, ` + micros(`parked_at`) +
			` FROM ` + cfg.Table + ` WHERE acked = FALSE AND state = 2 AND ` + offset + ` > ` + place + ` ORDER BY ` + offset + ` LIMIT ` + limit,
		retry: `UPDATE ` + cfg.Table + ` SET state = 1, attempts = 0, strikes = 0, last_failed_at = NULL, parked_at = NULL, parked_reason = NULL, next_attempt_at = ` + due +
			` WHERE acked = FALSE AND state = 2 AND ` + offset + ` IN `,
		discard: `DELETE FROM ` + cfg.Table + ` WHERE acked = FALSE AND state = 2 AND ` + offset + ` IN `,
	}
}
