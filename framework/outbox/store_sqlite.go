package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework/internal/sqlitelock"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// sqliteStore has one relay at work at a time, under a lock of the operating
// system. It reads and settles in short transactions and holds none while a
// batch is being published, since SQLite has one writer.
type sqliteStore struct {
	db     *sql.DB
	opts   sqltx.Options
	lock   *sqlitelock.Lock
	strict bool

	qScout, qReady, qDue, qBlocked, qDelete, qMark, qFail, qBehind,
	qProbe, qFailures, qShut, qOpen, qFree, qStats, qPurge string
}

func newSQLiteStore(cfg RelayConfig) store {
	s := &sqliteStore{
		db:     cfg.DB,
		opts:   sqltx.Options{Dialect: cfg.Dialect, MaxElapsed: 15 * time.Second},
		lock:   sqlitelock.New(cfg.DB, cfg.Table),
		strict: cfg.StrictOrder,
	}
	q := func(text string) string {
		return strings.NewReplacer("{t}", cfg.Table, "{control}", schema.ControlTable).Replace(text)
	}
	blocking := `state = 1 AND next_attempt_at > $1`
	if s.strict {
		blocking = `(state = 1 AND next_attempt_at > $1 OR state = 2)`
	}
	s.qScout = q(`SELECT
 EXISTS (SELECT 1 FROM {t} WHERE acked = 0 AND state = 0),
 (SELECT min(next_attempt_at) - $1 FROM {t} WHERE acked = 0 AND state = 1),
 COALESCE((SELECT failures FROM {control} WHERE outbox = '{t}'), 0),
 COALESCE((SELECT not_before - $1 FROM {control} WHERE outbox = '{t}'), 0)`)
	s.qReady = q(`SELECT "offset", payload, ordering_key, attempts, EXISTS (SELECT 1 FROM {t} WHERE acked = 0 AND state = 1)
FROM {t} WHERE acked = 0 AND state = 0 ORDER BY "offset" LIMIT $1`)
	s.qDue = q(`SELECT "offset", payload, ordering_key, attempts, 1 FROM {t}
WHERE acked = 0 AND state = 1 AND next_attempt_at <= $1 ORDER BY "offset" LIMIT $2`)
	s.qBlocked = q(`SELECT ordering_key, state = 2, min("offset") FROM {t} WHERE acked = 0 AND ` + blocking + ` AND ordering_key IS NOT NULL GROUP BY 1, 2`)
	s.qDelete = q(`DELETE FROM {t} WHERE "offset" IN (SELECT value FROM json_each($1))`)
	s.qMark = q(`UPDATE {t} SET acked = 1, sent_at = $2 WHERE "offset" IN (SELECT value FROM json_each($1))`)
	s.qFail = q(`UPDATE {t} SET
 state = CASE WHEN n.park THEN 2 ELSE 1 END,
 attempts = attempts + n.attempt, strikes = strikes + n.strike,
 last_failed_at = CASE WHEN n.attempt = 1 THEN $4 ELSE last_failed_at END,
 last_error = substr(n.error, 1, 1000),
 next_attempt_at = CASE WHEN n.park THEN NULL ELSE $4 + n.delay END,
 parked_at = CASE WHEN n.park THEN $4 END,
 parked_reason = CASE WHEN n.park THEN substr(n.error, 1, 1000) END
FROM (
 SELECT f.id, f.delay, f.attempt, f.error, f.strike, f.park OR $3 > 0 AND f.attempt = 1 AND f.strikes + f.strike >= $3 AS park
 FROM (
  SELECT o."offset" AS id, j.value ->> 'delay' AS delay, j.value ->> 'attempt' AS attempt, j.value ->> 'error' AS error,
   j.value ->> 'park' AS park, o.strikes AS strikes,
   CASE WHEN j.value ->> 'strike' = 1 OR j.value ->> 'attempt' = 1 AND $2 >= 0 AND o.last_failed_at < $4 - $2 THEN 1 ELSE 0 END AS strike
  FROM json_each($1) AS j JOIN {t} AS o ON o."offset" = j.value ->> 'offset'
 ) AS f
) AS n
WHERE "offset" = n.id
RETURNING "offset", state`)
	s.qBehind = q(`UPDATE {t} SET
 state = CASE WHEN $2 THEN 2 ELSE 1 END,
 next_attempt_at = CASE WHEN NOT $2 THEN (SELECT max(h.next_attempt_at) FROM {t} AS h WHERE h.acked = 0 AND h.state = 1 AND h.ordering_key = {t}.ordering_key AND h.next_attempt_at > $3) END,
 parked_at = CASE WHEN $2 THEN $3 END,
 parked_reason = CASE WHEN $2 THEN '` + behindParked + `' END
WHERE "offset" IN (SELECT value FROM json_each($1))`)
	s.qProbe = q(`UPDATE {control} SET not_before = $2 + $1 WHERE outbox = '{t}' AND failures > 0 AND not_before <= $2`)
	s.qFailures = q(`SELECT failures FROM {control} WHERE outbox = '{t}'`)
	s.qShut = q(`INSERT INTO {control} (outbox, failures, not_before) VALUES ('{t}', 1, $2)
ON CONFLICT (outbox) DO UPDATE SET failures = max(failures + $1, 1), not_before = excluded.not_before`)
	s.qOpen = q(`UPDATE {control} SET failures = 0, not_before = NULL WHERE outbox = '{t}' AND failures > 0`)
	s.qFree = q(`UPDATE {t} SET next_attempt_at = $1 WHERE acked = 0 AND state = 1`)
	s.qStats = q(`SELECT
 (SELECT count(*) FROM {t} WHERE acked = 0 AND state = 0),
 (SELECT count(*) FROM {t} WHERE acked = 0 AND state = 1),
 (SELECT count(*) FROM {t} WHERE acked = 0 AND state = 2),
 COALESCE($1 - (SELECT min(created_at) FROM (
  SELECT * FROM (SELECT created_at FROM {t} WHERE acked = 0 AND state = 0 ORDER BY "offset" LIMIT 1)
  UNION ALL SELECT created_at FROM {t} WHERE acked = 0 AND state = 1)), 0)`)
	s.qPurge = q(`DELETE FROM {t} WHERE "offset" IN (
 SELECT "offset" FROM {t} WHERE acked = 1 AND COALESCE(sent_at, created_at) < $1 ORDER BY COALESCE(sent_at, created_at) LIMIT $2)`)
	return s
}

// sqliteNow is the present as statements know it.
const sqliteNow = `CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)`

func micros() int64 { return time.Now().UnixMicro() }

func (s *sqliteStore) scout(ctx context.Context) (scouting, error) {
	var ready bool
	var due sql.NullInt64
	var pause int64
	var found scouting
	if err := s.db.QueryRowContext(ctx, s.qScout, micros()).Scan(&ready, &due, &found.failures, &pause); err != nil {
		return scouting{}, fmt.Errorf("look for rows: %w", err)
	}
	found.add(0, ready, due, pause)
	return found, nil
}

func (s *sqliteStore) claim(ctx context.Context, _ []int, limit int) (claim, error) {
	if got, err := s.lock.Try(ctx); err != nil || !got {
		return nil, err
	}
	// The lock makes this the only process that changes the state of rows, so
	// these reads need no transaction; handlers only add rows.
	now := micros()
	batch, held, err := readRows(ctx, s.db, make([]row, 0, limit), s.qReady, limit)
	if err != nil {
		return nil, err
	}
	c := &sqliteClaim{store: s, batch: batch, more: len(batch) >= limit}
	if !held && len(batch) > 0 && !s.strict {
		return c, nil
	}
	due, _, err := readRows(ctx, s.db, nil, s.qDue, now, limit)
	if err != nil {
		return nil, err
	}
	blocked, err := blockedKeys(ctx, s.db, s.qBlocked, now)
	if err != nil {
		return nil, err
	}
	var behind map[bool][]int64
	c.batch, behind = arrange(batch, due, blocked, limit)
	c.more = c.more || len(due) >= limit
	for parked, offsets := range behind {
		if _, err := s.write(ctx, s.qBehind, asJSON(offsets), parked, now); err != nil {
			return nil, fmt.Errorf("hold rows back: %w", err)
		}
	}
	return c, nil
}

func (s *sqliteStore) write(ctx context.Context, query string, args ...any) (int64, error) {
	return writeRows(ctx, s.db, s.opts, query, args...)
}

type sqliteClaim struct {
	store *sqliteStore
	batch []row
	more  bool
}

func (c *sqliteClaim) rows() []row { return c.batch }
func (c *sqliteClaim) full() bool  { return c.more }
func (c *sqliteClaim) abandon()    {}

func (c *sqliteClaim) settle(ctx context.Context, o outcome) (parked []int64, err error) {
	if len(o.sent) == 0 && len(o.failed) == 0 {
		return nil, nil
	}
	err = sqltx.Run(ctx, c.store.db, c.store.opts, func(ctx context.Context, tx *sql.Tx) error {
		now := micros()
		if len(o.sent) > 0 {
			q, args := c.store.qDelete, []any{asJSON(o.sent)}
			if o.retain {
				q, args = c.store.qMark, append(args, now)
			}
			if _, err := tx.ExecContext(ctx, q, args...); err != nil {
				return fmt.Errorf("remove %d published rows: %w", len(o.sent), err)
			}
		}
		if len(o.failed) == 0 {
			return nil
		}
		if parked, err = fail(ctx, tx, c.store.qFail, asJSON(o.failed), o.proven.Microseconds(), o.maxAttempts, now); err != nil {
			return fmt.Errorf("hold back %d failed rows: %w", len(o.failed), err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("settle a claim: %w", err)
	}
	return parked, nil
}

func (s *sqliteStore) probe(ctx context.Context, hold time.Duration) (bool, error) {
	if got, err := s.lock.Try(ctx); err != nil || !got {
		return false, err
	}
	n, err := s.write(ctx, s.qProbe, hold.Microseconds(), micros())
	if err != nil {
		return false, fmt.Errorf("ask for a probe: %w", err)
	}
	return n > 0, nil
}

func (s *sqliteStore) shut(ctx context.Context, grow bool, delay func(int) time.Duration) error {
	failures := 0
	err := s.db.QueryRowContext(ctx, s.qFailures).Scan(&failures)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("pause the relays: %w", err)
	}
	by := 0
	if grow {
		by = 1
	}
	if _, err := s.write(ctx, s.qShut, by, micros()+delay(failures).Microseconds()); err != nil {
		return fmt.Errorf("pause the relays: %w", err)
	}
	return nil
}

func (s *sqliteStore) open(ctx context.Context) error {
	n, err := s.write(ctx, s.qOpen)
	if err == nil && n > 0 {
		_, err = s.write(ctx, s.qFree, micros())
	}
	if err != nil {
		return fmt.Errorf("end the relays' pause: %w", err)
	}
	return nil
}

func (s *sqliteStore) maintain(context.Context) error { return nil }

func (s *sqliteStore) stats(ctx context.Context) (Stats, error) {
	return scanStats(s.db.QueryRowContext(ctx, s.qStats, micros()))
}

func (s *sqliteStore) purge(ctx context.Context, age time.Duration, limit int) (int64, error) {
	n, err := s.write(ctx, s.qPurge, micros()-age.Microseconds(), limit)
	if err != nil {
		return 0, fmt.Errorf("remove sent rows: %w", err)
	}
	return n, nil
}

func (s *sqliteStore) release() error {
	if err := s.lock.Release(); err != nil {
		return fmt.Errorf("outbox: give the relay's lock back: %w", err)
	}
	return nil
}
