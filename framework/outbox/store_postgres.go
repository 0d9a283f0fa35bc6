package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework/schema"
)

// postgresStore claims with advisory locks that belong to the claim's
// transaction: a relay that dies lets go at once.
type postgresStore struct {
	db     *sql.DB
	table  string
	class  int32 // of the advisory locks
	strict bool
	floor  floor

	qScout, qLock, qReady, qDue, qBlocked, qDelete, qMark, qFail, qBehind,
	qProbe, qFailures, qShut, qOpen, qFree, qStats, qPurge string
}

func newPostgresStore(cfg RelayConfig) store {
	s := &postgresStore{
		db:     cfg.DB,
		table:  cfg.Table,
		class:  int32(fnv32("headrace.outbox." + cfg.Table)),
		strict: cfg.StrictOrder,
	}
	s.floor.init(s.db, s.table)
	q := func(text string) string {
		return strings.NewReplacer("{t}", cfg.Table, "{control}", schema.ControlTable, "{last}", strconv.Itoa(shards-1)).Replace(text)
	}
	blocking := `state = 1 AND next_attempt_at > now()`
	if s.strict {
		blocking = `(state = 1 AND next_attempt_at > now() OR state = 2)`
	}
	// Every look at the table goes through a partial index in its order, however
	// old the planner's statistics are: hence ORDER BY ... LIMIT 1 in place of
	// EXISTS and min, and the settings that come with the lock.
	s.qScout = q(`SELECT s.shard,
 (SELECT 1 FROM {t} WHERE shard = s.shard AND acked = FALSE AND state = 0 AND "offset" >= s.floor ORDER BY shard, "offset" LIMIT 1) IS NOT NULL,
 (SELECT (extract(epoch from next_attempt_at - now()) * 1000000)::bigint FROM {t} WHERE shard = s.shard AND acked = FALSE AND state = 1 ORDER BY shard, next_attempt_at LIMIT 1),
 COALESCE(c.failures, 0),
 COALESCE((extract(epoch from c.not_before - now()) * 1000000)::bigint, 0)
FROM (SELECT (n - 1)::smallint AS shard, floor FROM unnest($1::text::bigint[]) WITH ORDINALITY AS f(floor, n)) AS s LEFT JOIN {control} c ON c.outbox = '{t}'`)
	s.qLock = q(`SELECT s.shard, (SELECT set_config('enable_seqscan', 'off', TRUE) || set_config('enable_bitmapscan', 'off', TRUE)
 || set_config('enable_sort', 'off', TRUE) || set_config('jit', 'off', TRUE))
FROM unnest($2::text::integer[]) AS s(shard) WHERE pg_try_advisory_xact_lock($1, s.shard)`)
	s.qReady = q(`SELECT r."offset", r.payload, r.ordering_key, r.attempts,
 (SELECT 1 FROM {t} WHERE shard = ANY ($1::text::smallint[]) AND acked = FALSE AND state = 1 LIMIT 1) IS NOT NULL
FROM unnest($1::text::smallint[], $2::text::bigint[]) AS s(shard, floor) CROSS JOIN LATERAL
 (SELECT "offset", payload, ordering_key, attempts FROM {t} WHERE shard = s.shard AND acked = FALSE AND state = 0 AND "offset" >= s.floor
  ORDER BY shard, "offset" LIMIT $3) AS r`)
	// By offset and not by time: of a key's rows that are due the first must be
	// among those that fit.
	s.qDue = q(`SELECT r."offset", r.payload, r.ordering_key, r.attempts, TRUE
FROM unnest($1::text::smallint[]) AS s(shard) CROSS JOIN LATERAL
 (SELECT "offset", payload, ordering_key, attempts FROM {t} WHERE shard = s.shard AND acked = FALSE AND state = 1 AND next_attempt_at <= now()
  ORDER BY shard, "offset" LIMIT $2) AS r`)
	s.qBlocked = q(`SELECT ordering_key, state = 2, min("offset") FROM {t}
WHERE shard = ANY ($1::text::smallint[]) AND acked = FALSE AND ` + blocking + ` AND ordering_key IS NOT NULL GROUP BY 1, 2`)
	s.qDelete = q(`DELETE FROM {t} WHERE "offset" = ANY ($1::text::bigint[])`)
	s.qMark = q(`UPDATE {t} SET acked = TRUE, sent_at = now() WHERE "offset" = ANY ($1::text::bigint[])`)
	s.qFail = q(`UPDATE {t} AS t SET
 state = CASE WHEN n.park THEN 2 ELSE 1 END,
 attempts = t.attempts + n.attempt, strikes = t.strikes + n.strike,
 last_failed_at = CASE WHEN n.attempt = 1 THEN clock_timestamp() ELSE t.last_failed_at END,
 last_error = left(n.error, 1000),
 next_attempt_at = CASE WHEN n.park THEN NULL ELSE clock_timestamp() + n.delay * interval '1 microsecond' END,
 parked_at = CASE WHEN n.park THEN clock_timestamp() END,
 parked_reason = CASE WHEN n.park THEN left(n.error, 1000) END
FROM (
 SELECT f."offset", f.delay, f.attempt, f.error, f.strike2 AS strike, f.park OR $3 > 0 AND f.attempt = 1 AND f.strikes + f.strike2 >= $3 AS park
 FROM (
  SELECT j."offset", j.delay, j.attempt, j.error, j.park, o.strikes,
   CASE WHEN j.strike = 1 OR j.attempt = 1 AND $2::bigint >= 0 AND o.last_failed_at < clock_timestamp() - $2::bigint * interval '1 microsecond' THEN 1 ELSE 0 END AS strike2
  FROM json_to_recordset($1::text::json) AS j("offset" bigint, delay bigint, attempt int, strike int, park boolean, error text)
  JOIN {t} o ON o."offset" = j."offset"
 ) AS f
) AS n
WHERE t."offset" = n."offset"
RETURNING t."offset", t.state`)
	s.qBehind = q(`UPDATE {t} AS t SET
 state = CASE WHEN $3 THEN 2 ELSE 1 END,
 next_attempt_at = CASE WHEN NOT $3 THEN (SELECT max(h.next_attempt_at) FROM {t} h WHERE h.shard = t.shard AND h.acked = FALSE AND h.state = 1 AND h.ordering_key = t.ordering_key AND h.next_attempt_at > now()) END,
 parked_at = CASE WHEN $3 THEN now() END,
 parked_reason = CASE WHEN $3 THEN '` + behindParked + `' END
WHERE t."offset" = ANY ($1::text::bigint[]) AND t.shard = ANY ($2::text::smallint[])`)
	s.qProbe = q(`UPDATE {control} SET not_before = now() + $1::bigint * interval '1 microsecond' WHERE outbox = '{t}' AND failures > 0 AND not_before <= now()`)
	s.qFailures = q(`SELECT failures FROM {control} WHERE outbox = '{t}'`)
	s.qShut = q(`INSERT INTO {control} (outbox, failures, not_before) VALUES ('{t}', 1, now() + $2::bigint * interval '1 microsecond')
ON CONFLICT (outbox) DO UPDATE SET failures = GREATEST({control}.failures + $1::integer, 1), not_before = excluded.not_before`)
	s.qOpen = q(`UPDATE {control} SET failures = 0, not_before = NULL WHERE outbox = '{t}' AND failures > 0`)
	s.qFree = q(`UPDATE {t} SET next_attempt_at = now() WHERE acked = FALSE AND state = 1`)
	s.qStats = q(`SELECT
 (SELECT count(*) FROM {t} WHERE acked = FALSE AND state = 0),
 (SELECT count(*) FROM {t} WHERE acked = FALSE AND state = 1),
 (SELECT count(*) FROM {t} WHERE acked = FALSE AND state = 2),
 COALESCE((extract(epoch from now() - LEAST(
  (SELECT min(r.created_at) FROM generate_series(0, {last}) AS s(shard) CROSS JOIN LATERAL
   (SELECT created_at FROM {t} WHERE shard = s.shard AND acked = FALSE AND state = 0 ORDER BY shard, "offset" LIMIT 1) AS r),
  (SELECT min(created_at) FROM {t} WHERE acked = FALSE AND state = 1))) * 1000000)::bigint, 0)`)
	s.qPurge = q(`DELETE FROM {t} WHERE acked = TRUE AND "offset" = ANY (ARRAY(
 SELECT "offset" FROM {t} WHERE acked = TRUE AND COALESCE(sent_at, created_at) < now() - $1::bigint * interval '1 microsecond'
 ORDER BY COALESCE(sent_at, created_at) LIMIT $2 FOR UPDATE SKIP LOCKED))`)
	return s
}

func fnv32(s string) uint32 {
	h := uint32(2166136261)
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h
}

func (s *postgresStore) scout(ctx context.Context) (scouting, error) {
	return scoutRows(ctx, s.db, s.qScout, s.floor.of(allShards()))
}

func (s *postgresStore) claim(ctx context.Context, want []int, limit int) (_ claim, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("begin a claim: %w", err)
	}
	c := &postgresClaim{store: s, tx: tx}
	defer func() {
		if err != nil {
			c.abandon()
		}
	}()
	got, err := s.lock(ctx, tx, want)
	if err != nil {
		return nil, err
	}
	if len(got) == 0 {
		c.abandon()
		return nil, nil
	}
	// The snapshot of each statement from here on is younger than the lock, so it
	// sees what the shard's last relay did.
	c.shards = arrayLiteral(got)
	perShard := max(limit/len(got), 1)
	var held bool
	c.batch, held, err = readRows(ctx, tx, make([]row, 0, limit), s.qReady, c.shards, s.floor.of(got), perShard)
	if err != nil {
		return nil, err
	}
	c.more = len(c.batch) >= perShard
	if n := len(c.batch); n > 0 {
		s.floor.saw(c.batch[n-1].offset)
	}
	if held || len(c.batch) == 0 || s.strict {
		if err := c.sortOutHeld(ctx, perShard); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (s *postgresStore) lock(ctx context.Context, tx *sql.Tx, want []int) ([]int, error) {
	rows, err := tx.QueryContext(ctx, s.qLock, s.class, arrayLiteral(want))
	if err != nil {
		return nil, fmt.Errorf("lock shards %v: %w", want, err)
	}
	defer rows.Close()
	var got []int
	var settings sql.RawBytes
	for rows.Next() {
		var shard int
		if err := rows.Scan(&shard, &settings); err != nil {
			return nil, fmt.Errorf("lock shards %v: %w", want, err)
		}
		got = append(got, shard)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("lock shards %v: %w", want, err)
	}
	return got, nil
}

// sortOutHeld adds the held rows that are due and takes out the rows whose key
// is blocked by one that is not.
func (c *postgresClaim) sortOutHeld(ctx context.Context, perShard int) error {
	s := c.store
	due, _, err := readRows(ctx, c.tx, nil, s.qDue, c.shards, perShard)
	if err != nil {
		return err
	}
	blocked, err := blockedKeys(ctx, c.tx, s.qBlocked, c.shards)
	if err != nil {
		return err
	}
	var behind map[bool][]int64
	c.batch, behind = arrange(c.batch, due, blocked, perShard)
	c.more = c.more || len(due) >= perShard
	for parked, offsets := range behind {
		if _, err := c.tx.ExecContext(ctx, s.qBehind, arrayLiteral(offsets), c.shards, parked); err != nil {
			return fmt.Errorf("hold rows back: %w", err)
		}
	}
	return nil
}

type postgresClaim struct {
	store  *postgresStore
	tx     *sql.Tx
	shards string
	batch  []row
	more   bool
	done   bool
}

func (c *postgresClaim) rows() []row { return c.batch }
func (c *postgresClaim) full() bool  { return c.more }

func (c *postgresClaim) settle(ctx context.Context, o outcome) ([]int64, error) {
	if c.done {
		return nil, errors.New("settle: the claim is over")
	}
	parked, err := c.apply(ctx, o)
	if err != nil {
		c.abandon()
		return nil, err
	}
	c.done = true
	if err := c.tx.Commit(); err != nil {
		return nil, fmt.Errorf("commit a claim: %w", err)
	}
	return parked, nil
}

func (c *postgresClaim) apply(ctx context.Context, o outcome) ([]int64, error) {
	if len(o.sent) > 0 {
		q := c.store.qDelete
		if o.retain {
			q = c.store.qMark
		}
		if _, err := c.tx.ExecContext(ctx, q, arrayLiteral(o.sent)); err != nil {
			return nil, fmt.Errorf("remove %d published rows: %w", len(o.sent), err)
		}
	}
	if len(o.failed) == 0 {
		return nil, nil
	}
	parked, err := fail(ctx, c.tx, c.store.qFail, asJSON(o.failed), o.proven.Microseconds(), o.maxAttempts)
	if err != nil {
		return nil, fmt.Errorf("hold back %d failed rows: %w", len(o.failed), err)
	}
	return parked, nil
}

func (c *postgresClaim) abandon() {
	if !c.done {
		c.done = true
		_ = c.tx.Rollback()
	}
}

func (s *postgresStore) probe(ctx context.Context, hold time.Duration) (bool, error) {
	res, err := s.db.ExecContext(ctx, s.qProbe, hold.Microseconds())
	if err != nil {
		return false, fmt.Errorf("ask for a probe: %w", err)
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

func (s *postgresStore) shut(ctx context.Context, grow bool, delay func(int) time.Duration) error {
	failures := 0
	err := s.db.QueryRowContext(ctx, s.qFailures).Scan(&failures)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("pause the relays: %w", err)
	}
	by := 0
	if grow {
		by = 1
	}
	if _, err := s.db.ExecContext(ctx, s.qShut, by, delay(failures).Microseconds()); err != nil {
		return fmt.Errorf("pause the relays: %w", err)
	}
	return nil
}

func (s *postgresStore) open(ctx context.Context) error {
	res, err := s.db.ExecContext(ctx, s.qOpen)
	if err != nil {
		return fmt.Errorf("end the relays' pause: %w", err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err
	}
	if _, err := s.db.ExecContext(ctx, s.qFree); err != nil {
		return fmt.Errorf("end the relays' pause: %w", err)
	}
	return nil
}

func (s *postgresStore) maintain(ctx context.Context) error { return s.floor.advance(ctx) }

func (s *postgresStore) stats(ctx context.Context) (Stats, error) {
	return scanStats(s.db.QueryRowContext(ctx, s.qStats))
}

func scanStats(r *sql.Row) (Stats, error) {
	var st Stats
	var ready, age int64
	if err := r.Scan(&ready, &st.Held, &st.Parked, &age); err != nil {
		return Stats{}, fmt.Errorf("outbox: count the rows: %w", err)
	}
	st.Backlog = ready + st.Held
	st.OldestAge = time.Duration(max(age, 0)) * time.Microsecond
	return st, nil
}

func (s *postgresStore) purge(ctx context.Context, age time.Duration, limit int) (int64, error) {
	res, err := s.db.ExecContext(ctx, s.qPurge, age.Microseconds(), limit)
	if err != nil {
		return 0, fmt.Errorf("remove sent rows: %w", err)
	}
	return res.RowsAffected()
}

func (s *postgresStore) release() error { return nil }

// arrayLiteral writes a Postgres array, which every driver takes as text.
func arrayLiteral[T int | int64](v []T) string {
	b := make([]byte, 0, 2+8*len(v))
	b = append(b, '{')
	for i, n := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return string(append(b, '}'))
}
