package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// mysqlStore claims with named locks that belong to the claim's connection: a
// relay that dies lets go at once. It has no transaction open while a batch is
// being published, so InnoDB can purge what was deleted.
type mysqlStore struct {
	db     *sql.DB
	table  string
	strict bool
	opts   sqltx.Options

	qScout, qProbe, qFailures, qShut, qOpen, qFree, qStats, qPurgeable, qFail string
}

// mysqlNow is the server's clock, whatever the session's time zone.
const mysqlNow = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`

func newMySQLStore(cfg RelayConfig) store {
	s := &mysqlStore{
		db:     cfg.DB,
		table:  cfg.Table,
		strict: cfg.StrictOrder,
		// Without gap locks: what relays do must not stop writers.
		opts: sqltx.Options{Dialect: cfg.Dialect, Isolation: sql.LevelReadCommitted, MaxElapsed: 15 * time.Second},
	}
	s.qScout = s.union(allShards(), `SELECT {shard},
 EXISTS (SELECT 1 FROM {t} FORCE INDEX (due) WHERE acked = FALSE AND state = 0 AND shard = {shard} AND next_attempt_at IS NULL),
 (SELECT next_attempt_at FROM {t} FORCE INDEX (due) WHERE acked = FALSE AND state = 1 AND shard = {shard} ORDER BY next_attempt_at LIMIT 1) - {now},
 COALESCE((SELECT failures FROM {control} WHERE outbox = '{name}'), 0),
 COALESCE((SELECT not_before - {now} FROM {control} WHERE outbox = '{name}'), 0)`)
	s.qProbe = s.fill(`UPDATE {control} SET not_before = {now} + ? WHERE outbox = '{name}' AND failures > 0 AND not_before <= {now}`)
	s.qFailures = s.fill(`SELECT failures FROM {control} WHERE outbox = '{name}'`)
	s.qShut = s.fill(`INSERT INTO {control} (outbox, failures, not_before) VALUES ('{name}', 1, {now} + ?)
ON DUPLICATE KEY UPDATE failures = GREATEST(failures + ?, 1), not_before = VALUES(not_before)`)
	s.qOpen = s.fill(`UPDATE {control} SET failures = 0, not_before = NULL WHERE outbox = '{name}' AND failures > 0`)
	s.qFree = s.fill(`UPDATE {t} SET next_attempt_at = {now} WHERE acked = FALSE AND state = 1`)
	s.qStats = s.fill(`SELECT
 (SELECT COUNT(*) FROM {t} WHERE acked = FALSE AND state = 0),
 (SELECT COUNT(*) FROM {t} WHERE acked = FALSE AND state = 1),
 (SELECT COUNT(*) FROM {t} WHERE acked = FALSE AND state = 2),
 COALESCE({now} - (SELECT MIN(oldest.created_at) FROM (` +
		s.union(allShards(), `SELECT created_at FROM {t} FORCE INDEX (due) WHERE acked = FALSE AND state = 0 AND shard = {shard} AND next_attempt_at IS NULL ORDER BY {o} LIMIT 1`) +
		` UNION ALL (SELECT created_at FROM {t} WHERE acked = FALSE AND state = 1)) AS oldest), 0)`)
	s.qPurgeable = s.fill(`SELECT {o} FROM {t} WHERE acked = TRUE AND sent_at < {now} - ? ORDER BY sent_at LIMIT ? FOR UPDATE SKIP LOCKED`)
	s.qFail = s.fill(`UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
  id BIGINT PATH '$.id', state SMALLINT PATH '$.state', attempt INT PATH '$.attempt', strike INT PATH '$.strike',
  due BIGINT PATH '$.due', error TEXT PATH '$.error')) AS n STRAIGHT_JOIN {t} AS t ON t.{o} = n.id SET
 t.state = n.state, t.attempts = t.attempts + n.attempt, t.strikes = t.strikes + n.strike,
 t.last_failed_at = CASE WHEN n.attempt = 1 THEN {now} ELSE t.last_failed_at END,
 t.last_error = LEFT(n.error, 1000), t.next_attempt_at = n.due,
 t.parked_at = CASE WHEN n.state = 2 THEN {now} END,
 t.parked_reason = CASE WHEN n.state = 2 THEN LEFT(n.error, 1000) END`)
	return s
}

func allShards() []int {
	all := make([]int, shards)
	for i := range all {
		all[i] = i
	}
	return all
}

func (s *mysqlStore) fill(text string) string {
	return strings.NewReplacer("{t}", "`"+s.table+"`", "{name}", s.table, "{control}", schema.ControlTable,
		"{o}", "`offset`", "{now}", mysqlNow).Replace(text)
}

// union makes one branch for each shard: the optimizer then always goes through
// the index, whatever its statistics say.
func (s *mysqlStore) union(of []int, branch string) string {
	parts := make([]string, len(of))
	for i, shard := range of {
		parts[i] = "(" + strings.ReplaceAll(branch, "{shard}", strconv.Itoa(shard)) + ")"
	}
	return s.fill(strings.Join(parts, "\nUNION ALL "))
}

// list writes numbers for IN. They stand in the text, since the driver would
// prepare a statement for parameters.
func list[T int | int64](v []T) string {
	b := make([]byte, 0, 2+8*len(v))
	b = append(b, '(')
	for i, n := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return string(append(b, ')'))
}

func (s *mysqlStore) scout(ctx context.Context) (scouting, error) {
	return scoutRows(ctx, s.db, s.qScout)
}

func (s *mysqlStore) lockName(shard int) string {
	return s.fill(`CONCAT('headrace.', MD5(CONCAT(DATABASE(), '.{name}')), '.', ` + strconv.Itoa(shard) + `)`)
}

func (s *mysqlStore) claim(ctx context.Context, want []int, limit int) (_ claim, err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin a claim: %w", err)
	}
	c := &mysqlClaim{store: s, conn: conn}
	defer func() {
		if err != nil {
			c.abandon()
		}
	}()
	now, err := c.lock(ctx, want)
	if err != nil {
		return nil, err
	}
	if len(c.shards) == 0 {
		c.abandon()
		return nil, nil
	}
	// Each statement from here on reads what was committed before it began, so it
	// sees what the shard's last relay did.
	perShard := max(limit/len(c.shards), 1)
	in := list(c.shards)
	batch, held, err := readRows(ctx, conn, make([]row, 0, limit), s.union(c.shards, `SELECT {o}, payload, ordering_key, attempts,
 EXISTS (SELECT 1 FROM {t} FORCE INDEX (due) WHERE acked = FALSE AND state = 1 AND shard IN `+in+`)
FROM {t} FORCE INDEX (due) WHERE acked = FALSE AND state = 0 AND shard = {shard} AND next_attempt_at IS NULL ORDER BY {o} LIMIT `+strconv.Itoa(perShard)))
	if err != nil {
		return nil, err
	}
	c.batch, c.more = batch, len(batch) >= perShard
	if held || len(batch) == 0 || s.strict {
		if err := c.sortOutHeld(ctx, in, now, perShard); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (s *mysqlStore) write(ctx context.Context, query string, args ...any) (int64, error) {
	return writeRows(ctx, s.db, s.opts, query, args...)
}

type mysqlClaim struct {
	store  *mysqlStore
	conn   *sql.Conn
	shards []int
	batch  []row
	more   bool
	done   bool
}

// lock takes what it can get of the shards, and returns the server's time before
// anything was read.
func (c *mysqlClaim) lock(ctx context.Context, want []int) (now int64, err error) {
	var q strings.Builder
	q.WriteString(`SELECT ` + mysqlNow)
	got := make([]sql.NullBool, len(want))
	into := []any{&now}
	for i, shard := range want {
		q.WriteString(`, GET_LOCK(` + c.store.lockName(shard) + `, 0)`)
		into = append(into, &got[i])
	}
	// Should the answer be lost, the connection is closed, and its locks with it.
	c.shards = want
	if err := c.conn.QueryRowContext(ctx, q.String()).Scan(into...); err != nil {
		return 0, fmt.Errorf("lock shards %v: %w", want, err)
	}
	c.shards = nil
	for i, shard := range want {
		if got[i].Bool {
			c.shards = append(c.shards, shard)
		}
	}
	return now, nil
}

// sortOutHeld adds the held rows that are due and takes out the rows whose key
// is blocked by one that is not.
func (c *mysqlClaim) sortOutHeld(ctx context.Context, in string, now int64, perShard int) error {
	s := c.store
	at := strconv.FormatInt(now, 10)
	due, _, err := readRows(ctx, c.conn, nil, s.union(c.shards, `SELECT {o}, payload, ordering_key, attempts, TRUE FROM {t} FORCE INDEX (due)
 WHERE acked = FALSE AND state = 1 AND shard = {shard} AND next_attempt_at <= `+at+` ORDER BY {o} LIMIT `+strconv.Itoa(perShard)))
	if err != nil {
		return err
	}
	blocking := `state = 1 AND next_attempt_at > ` + at
	if s.strict {
		blocking = `(` + blocking + ` OR state = 2)`
	}
	blocked, err := blockedKeys(ctx, c.conn, s.fill(`SELECT ordering_key, state = 2, MIN({o}) FROM {t}
 WHERE acked = FALSE AND shard IN `+in+` AND `+blocking+` AND ordering_key IS NOT NULL GROUP BY ordering_key, state = 2`))
	if err != nil {
		return err
	}
	var behind map[bool][]int64
	c.batch, behind = arrange(c.batch, due, blocked, perShard)
	c.more = c.more || len(due) >= perShard
	for parked, offsets := range behind {
		q := `UPDATE {t} SET state = 2, next_attempt_at = NULL, parked_at = {now}, parked_reason = '` + behindParked + `' WHERE {o} IN ` + list(offsets)
		if !parked {
			q = `UPDATE {t} AS t JOIN (SELECT ordering_key, MAX(next_attempt_at) AS due FROM {t}
 WHERE acked = FALSE AND state = 1 AND shard IN ` + in + ` AND next_attempt_at > ` + at + ` AND ordering_key IS NOT NULL GROUP BY ordering_key) AS h
 ON h.ordering_key = t.ordering_key SET t.state = 1, t.next_attempt_at = h.due WHERE t.{o} IN ` + list(offsets)
		}
		if err := c.inTx(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, s.fill(q))
			return err
		}); err != nil {
			return fmt.Errorf("hold rows back: %w", err)
		}
	}
	return nil
}

// inTx runs fn in a transaction on the claim's own connection.
func (c *mysqlClaim) inTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := c.conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

func (c *mysqlClaim) rows() []row { return c.batch }
func (c *mysqlClaim) full() bool  { return c.more }

func (c *mysqlClaim) settle(ctx context.Context, o outcome) (parked []int64, err error) {
	if c.done {
		return nil, errors.New("settle: the claim is over")
	}
	defer c.abandon()
	switch {
	case len(o.failed) > 0:
		err = c.inTx(ctx, func(tx *sql.Tx) error {
			if err := c.remove(ctx, tx, o); err != nil {
				return err
			}
			parked, err = c.hold(ctx, tx, o)
			return err
		})
	case len(o.sent) > 0:
		err = c.remove(ctx, c.conn, o)
	}
	if err != nil {
		return nil, fmt.Errorf("settle a claim: %w", err)
	}
	return parked, nil
}

func (c *mysqlClaim) remove(ctx context.Context, db sqltx.Execer, o outcome) error {
	if len(o.sent) == 0 {
		return nil
	}
	// Through the primary key alone: a scan would wait for writers' rows.
	q := `DELETE t FROM {t} AS t FORCE INDEX (PRIMARY) WHERE t.{o} IN `
	if o.retain {
		q = `UPDATE {t} FORCE INDEX (PRIMARY) SET acked = TRUE, sent_at = {now} WHERE {o} IN `
	}
	if _, err := db.ExecContext(ctx, c.store.fill(q)+list(o.sent)); err != nil {
		return fmt.Errorf("remove %d published rows: %w", len(o.sent), err)
	}
	return nil
}

// held is what qFail writes about a row.
type heldRow struct {
	ID      int64  `json:"id"`
	State   int    `json:"state"`
	Attempt int    `json:"attempt"`
	Strike  int    `json:"strike"`
	Due     *int64 `json:"due"`
	Error   string `json:"error"`
}

// hold reads what the rows had before and writes what they have now. The claim's
// lock keeps other relays from them in between.
func (c *mysqlClaim) hold(ctx context.Context, tx *sql.Tx, o outcome) (parked []int64, err error) {
	byOffset := make(map[int64]failure, len(o.failed))
	offsets := make([]int64, 0, len(o.failed))
	for _, f := range o.failed {
		byOffset[f.Offset] = f
		offsets = append(offsets, f.Offset)
	}
	rows, err := tx.QueryContext(ctx, c.store.fill(`SELECT {o}, strikes, last_failed_at, {now} FROM {t} FORCE INDEX (PRIMARY) WHERE {o} IN `)+list(offsets)+` FOR UPDATE`)
	if err != nil {
		return nil, fmt.Errorf("hold back %d failed rows: %w", len(offsets), err)
	}
	defer rows.Close()
	var all []heldRow
	for rows.Next() {
		var offset, now int64
		var strikes int
		var last sql.NullInt64
		if err := rows.Scan(&offset, &strikes, &last, &now); err != nil {
			return nil, fmt.Errorf("hold back %d failed rows: %w", len(offsets), err)
		}
		f := byOffset[offset]
		if f.Attempt == 1 && o.proven >= 0 && last.Valid && last.Int64 < now-o.proven.Microseconds() {
			f.Strike = 1
		}
		h := heldRow{ID: offset, State: 1, Attempt: f.Attempt, Strike: f.Strike, Error: f.Error}
		if f.Park || o.maxAttempts > 0 && f.Attempt == 1 && strikes+f.Strike >= o.maxAttempts {
			h.State = stateParked
			parked = append(parked, offset)
		} else {
			due := now + f.Delay
			h.Due = &due
		}
		all = append(all, h)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("hold back %d failed rows: %w", len(offsets), err)
	}
	if _, err := tx.ExecContext(ctx, c.store.qFail, asJSON(all)); err != nil {
		return nil, fmt.Errorf("hold back %d failed rows: %w", len(offsets), err)
	}
	return parked, nil
}

// abandon gives the locks back, or the connection with them when it can't.
func (c *mysqlClaim) abandon() {
	if c.done {
		return
	}
	c.done = true
	if len(c.shards) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		var q strings.Builder
		for i, shard := range c.shards {
			q.WriteString([]string{`DO `, `, `}[min(i, 1)] + `RELEASE_LOCK(` + c.store.lockName(shard) + `)`)
		}
		if _, err := c.conn.ExecContext(ctx, q.String()); err != nil {
			_ = c.conn.Raw(func(any) error { return driver.ErrBadConn })
			return
		}
	}
	_ = c.conn.Close()
}

func (s *mysqlStore) probe(ctx context.Context, hold time.Duration) (bool, error) {
	n, err := s.write(ctx, s.qProbe, hold.Microseconds())
	if err != nil {
		return false, fmt.Errorf("ask for a probe: %w", err)
	}
	return n > 0, nil
}

func (s *mysqlStore) shut(ctx context.Context, grow bool, delay func(int) time.Duration) error {
	failures := 0
	err := s.db.QueryRowContext(ctx, s.qFailures).Scan(&failures)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("pause the relays: %w", err)
	}
	by := 0
	if grow {
		by = 1
	}
	if _, err := s.write(ctx, s.qShut, delay(failures).Microseconds(), by); err != nil {
		return fmt.Errorf("pause the relays: %w", err)
	}
	return nil
}

func (s *mysqlStore) open(ctx context.Context) error {
	n, err := s.write(ctx, s.qOpen)
	if err == nil && n > 0 {
		_, err = s.write(ctx, s.qFree)
	}
	if err != nil {
		return fmt.Errorf("end the relays' pause: %w", err)
	}
	return nil
}

func (s *mysqlStore) maintain(context.Context) error { return nil }

func (s *mysqlStore) stats(ctx context.Context) (Stats, error) {
	return scanStats(s.db.QueryRowContext(ctx, s.qStats))
}

// purge picks and deletes in two steps, since DELETE can't skip rows that another
// relay is removing.
func (s *mysqlStore) purge(ctx context.Context, age time.Duration, limit int) (n int64, err error) {
	err = sqltx.Run(ctx, s.db, s.opts, func(ctx context.Context, tx *sql.Tx) error {
		n = 0
		offsets, err := scanOffsets(tx.QueryContext(ctx, s.qPurgeable, age.Microseconds(), limit))
		if err != nil || len(offsets) == 0 {
			return err
		}
		slices.Sort(offsets)
		res, err := tx.ExecContext(ctx, s.fill(`DELETE t FROM {t} AS t FORCE INDEX (PRIMARY) WHERE t.{o} IN `)+list(offsets))
		if err != nil {
			return err
		}
		n, err = res.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("remove sent rows: %w", err)
	}
	return n, nil
}

func (s *mysqlStore) release() error { return nil }
