package sqldb

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework/sqltx"
)

type execer = sqltx.Execer

// queries are a subscription's statements that never change.
type queries struct {
	lock, probe, fresh, late, due, others, gaps string
}

const columns = `{offset}, uuid, payload, metadata`

// Reads of the topic's table say ORDER BY ... LIMIT where EXISTS or min would
// do, so that they take the index however old the planner's statistics are.
func newQueries(d *dialect, t table) queries {
	q := func(text string) string { return d.bind(d.fill(text, t)) }
	return queries{
		lock: q(d.lockGroup),
		probe: q(`SELECT
 COALESCE((SELECT min(locked_until) FROM {claims} WHERE group_id = ?), 9223372036854775807) - {now},
 (SELECT {offset} FROM {t} WHERE {offset} > (SELECT position FROM {groups} WHERE id = ?) ORDER BY {offset} LIMIT 1) IS NOT NULL,
 EXISTS (SELECT 1 FROM {gaps} AS g WHERE g.group_id = ?
  AND (SELECT m.{offset} FROM {t} AS m WHERE m.{offset} >= g.first_offset AND m.{offset} <= g.last_offset ORDER BY m.{offset} LIMIT 1) IS NOT NULL),
 EXISTS (SELECT 1 FROM {gaps} WHERE group_id = ?)
FROM {groups} WHERE id = ?`),
		fresh:  q(`SELECT ` + columns + ` FROM {t} WHERE {offset} > ? ORDER BY {offset} LIMIT ?`),
		late:   q(`SELECT m.{offset} AS {offset}, m.uuid, m.payload, m.metadata FROM ` + d.lateJoin + ` WHERE g.group_id = ? ORDER BY m.{offset} LIMIT ?`),
		due:    q(`SELECT id, owner, entries FROM {claims} WHERE group_id = ? AND locked_until <= ? ORDER BY locked_until LIMIT ` + strconv.Itoa(dueClaims) + d.lockRows),
		others: q(`SELECT id, owner, entries FROM {claims} WHERE group_id = ? AND owner <> ?`),
		gaps:   q(`SELECT first_offset, last_offset, seen_at, COALESCE(holders, '') FROM {gaps} WHERE group_id = ? ORDER BY first_offset`),
	}
}

// tx runs a short transaction that is replayed while it loses to others.
func (s *source) tx(ctx context.Context, fn func(ctx context.Context, tx execer) error) error {
	defer s.b.writer()()
	return sqltx.Run(ctx, s.b.db, s.d.txOptions(), func(ctx context.Context, tx *sql.Tx) error { return fn(ctx, tx) })
}

// exec returns how many rows a statement changed.
func (s *source) exec(ctx context.Context, db execer, q string, args ...any) (int64, error) {
	res, err := db.ExecContext(ctx, s.d.bind(q), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// write sends changes. It returns how many claims were not there to be changed.
func (s *source) write(ctx context.Context, changes []change) (missing int, err error) {
	if len(changes) == 0 {
		return 0, nil
	}
	empty := 0
	for _, c := range changes {
		if len(c.left) == 0 {
			empty++
		}
	}
	if !s.d.combined && empty > 0 && empty < len(changes) {
		// Two statements, one commit.
		err := s.tx(ctx, func(ctx context.Context, tx execer) error {
			var err error
			missing, err = s.writeOn(ctx, tx, changes)
			return err
		})
		return missing, err
	}
	defer s.b.writer()()
	return s.writeOn(ctx, s.b.db, changes)
}

// writeOn sends changes, a few at a time.
func (s *source) writeOn(ctx context.Context, db execer, changes []change) (missing int, err error) {
	missing = len(changes)
	for part := range slices.Chunk(changes, 100) {
		n, err := s.writeSome(ctx, db, part)
		if err != nil {
			return 0, err
		}
		missing -= int(n)
	}
	return missing, nil
}

// writeSome deletes the claims with nothing left and rewrites the others. The
// owner stands in each condition: what another member took over stays as it is.
// It returns how many it found.
func (s *source) writeSome(ctx context.Context, db execer, changes []change) (int64, error) {
	var empty, kept []change
	for _, c := range changes {
		if len(c.left) == 0 {
			empty = append(empty, c)
		} else {
			kept = append(kept, c)
		}
	}
	var del, upd string
	var delArgs, updArgs []any
	if len(empty) > 0 {
		del = `DELETE FROM headrace_sql_claims WHERE owner = ? AND id IN ` + in(len(empty))
		delArgs = append(delArgs, s.owner)
		for _, c := range empty {
			delArgs = append(delArgs, c.claim.id)
		}
	}
	if len(kept) > 0 {
		upd, updArgs = updateClaims(s.owner, kept)
	}
	if del != "" && upd != "" && s.d.combined {
		var n int64
		q := `WITH d AS (` + del + ` RETURNING 1), u AS (` + upd + ` RETURNING 1) SELECT (SELECT count(*) FROM d) + (SELECT count(*) FROM u)`
		err := db.QueryRowContext(ctx, s.d.bind(q), append(delArgs, updArgs...)...).Scan(&n)
		return n, err
	}
	var total int64
	if del != "" {
		n, err := s.exec(ctx, db, del, delArgs...)
		if err != nil {
			return 0, err
		}
		total += n
	}
	if upd != "" {
		n, err := s.exec(ctx, db, upd, updArgs...)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

func updateClaims(owner string, changes []change) (string, []any) {
	if len(changes) == 1 {
		c := changes[0]
		return `UPDATE headrace_sql_claims SET entries = ?, n = ?, first_offset = ? WHERE owner = ? AND id = ?`,
			[]any{encodeItems(c.left), len(c.left), c.left[0].off, owner, c.claim.id}
	}
	whens := strings.Repeat(` WHEN ? THEN ?`, len(changes))
	q := `UPDATE headrace_sql_claims SET entries = CASE id` + whens + ` ELSE entries END, n = CASE id` + whens +
		` ELSE n END, first_offset = CASE id` + whens + ` ELSE first_offset END WHERE owner = ? AND id IN ` + in(len(changes))
	args := make([]any, 0, 7*len(changes)+1)
	for _, c := range changes {
		args = append(args, c.claim.id, encodeItems(c.left))
	}
	for _, c := range changes {
		args = append(args, c.claim.id, len(c.left))
	}
	for _, c := range changes {
		args = append(args, c.claim.id, c.left[0].off)
	}
	args = append(args, owner)
	for _, c := range changes {
		args = append(args, c.claim.id)
	}
	return q, args
}

// owned tells which of the claims are this member's.
func (s *source) owned(ctx context.Context, db execer, ids []int64, lock string) (map[int64]bool, error) {
	out := make(map[int64]bool, len(ids))
	for part := range slices.Chunk(ids, idsPerStatement) {
		rows, err := db.QueryContext(ctx, //nolint:sqlclosecheck // scan closes them
			s.d.bind(`SELECT id FROM headrace_sql_claims WHERE owner = ? AND id IN `+in(len(part))+` ORDER BY id`+lock),
			append([]any{s.owner}, anys(part)...)...)
		if err != nil {
			return nil, fmt.Errorf("look for the claims on %s: %w", s.t.quoted, err)
		}
		err = scan(rows, func() error {
			var id int64
			err := rows.Scan(&id)
			out[id] = true
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("look for the claims on %s: %w", s.t.quoted, err)
		}
	}
	return out, nil
}

// newClaim is a claim to be inserted.
type newClaim struct {
	id    int64
	owner string // "" has none
	items []item
	until time.Duration // from now
}

func newID() int64 { return rand.Int64N(1<<62) + 1 }

func (s *source) insertClaims(ctx context.Context, db execer, claims []newClaim) error {
	for part := range slices.Chunk(claims, 100) {
		q, args := s.insertClaimsQuery(part)
		if _, err := s.exec(ctx, db, q, args...); err != nil {
			return err
		}
	}
	return nil
}

func (s *source) insertClaimsQuery(claims []newClaim) (string, []any) {
	var q strings.Builder
	q.WriteString(`INSERT INTO headrace_sql_claims (id, group_id, owner, locked_until, first_offset, n, entries) VALUES `)
	args := make([]any, 0, 7*len(claims))
	for i, c := range claims {
		if i > 0 {
			q.WriteByte(',')
		}
		q.WriteString(s.d.fill(`(?,?,?,{now} + ?,?,?,?)`, s.t))
		if c.id == 0 {
			c.id = newID()
		}
		args = append(args, c.id, s.group.Load(), c.owner, c.until.Microseconds(), c.items[0].off, len(c.items), encodeItems(c.items))
	}
	return q.String(), args
}

// bodies reads messages by number.
func (s *source) bodies(ctx context.Context, db execer, offs []int64) (map[int64]*row, error) {
	out := make(map[int64]*row, len(offs))
	for part := range slices.Chunk(offs, idsPerStatement) {
		rows, err := s.rows(ctx, db, s.d.bind(s.d.fill(`SELECT `+columns+` FROM {t} WHERE {offset} IN `, s.t)+in(len(part))), anys(part)...)
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			out[r.off] = r
		}
	}
	return out, nil
}

func (s *source) rows(ctx context.Context, db execer, q string, args ...any) ([]*row, error) {
	rows, err := db.QueryContext(ctx, q, args...)
	if err != nil {
		return nil, fmt.Errorf("read messages of %s: %w", s.t.quoted, err)
	}
	var out []*row
	err = scan(rows, func() error {
		r := new(row)
		err := rows.Scan(&r.off, &r.uuid, &r.payload, &r.metadata)
		out = append(out, r)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read messages of %s: %w", s.t.quoted, err)
	}
	return out, nil
}

// scan calls fn for each row and closes rows.
func scan(rows *sql.Rows, fn func() error) error {
	defer rows.Close()
	for rows.Next() {
		if err := fn(); err != nil {
			return err
		}
	}
	return rows.Err()
}
