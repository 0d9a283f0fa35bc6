package sqldb

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework/sqltx"
)

// gap is a range of numbers below a group's position that no row had when the
// position passed it.
type gap struct {
	first, last int64
	seen        int64  // when, in microseconds
	holders     string // Postgres: who could still fill it
}

// gapsEvery is how often gaps are tried to be closed.
const gapsEvery = time.Second

// takeLate takes rows that turned up in gaps.
func (c *claiming) takeLate(ctx context.Context) error {
	s := c.s
	room := c.limit - len(c.taken)
	if !s.d.gaps || room <= 0 {
		return nil
	}
	rows, err := s.rows(ctx, c.tx, s.q.late, s.group.Load(), room)
	if err != nil || len(rows) == 0 {
		return err
	}
	n := c.take(rows)
	for _, r := range rows[:n] {
		c.late = append(c.late, r.off)
	}
	c.more = c.more || len(rows) == room
	return nil
}

// storeGaps adds the gaps that the position passes and takes out of the others
// what turned up.
func (c *claiming) storeGaps(ctx context.Context) error {
	s := c.s
	fresh := c.gaps
	if len(c.late) > 0 {
		old, err := s.readGaps(ctx, c.tx)
		if err != nil {
			return err
		}
		var dead []int64
		for _, g := range old {
			rest, touched := g.without(c.late)
			if touched {
				dead = append(dead, g.first)
				fresh = append(fresh, rest...)
			}
		}
		if err := s.deleteGaps(ctx, c.tx, dead); err != nil {
			return err
		}
	}
	return s.insertGaps(ctx, c.tx, fresh)
}

func (s *source) insertGaps(ctx context.Context, db execer, gaps []gap) error {
	for part := range slices.Chunk(gaps, 200) {
		q := `INSERT INTO headrace_sql_gaps (group_id, first_offset, last_offset, seen_at, holders) VALUES ` +
			strings.TrimSuffix(strings.Repeat(`(?,?,?,?,?),`, len(part)), ",")
		args := make([]any, 0, 5*len(part))
		for _, g := range part {
			var holders any
			if g.holders != "" {
				holders = g.holders
			}
			args = append(args, s.group.Load(), g.first, g.last, g.seen, holders)
		}
		if _, err := s.exec(ctx, db, q, args...); err != nil {
			return fmt.Errorf("note a gap: %w", err)
		}
	}
	return nil
}

// without returns what is left of the gap when the numbers, sorted, are out.
func (g gap) without(offs []int64) (rest []gap, touched bool) {
	from := g.first
	for _, off := range offs {
		if off < from || off > g.last {
			continue
		}
		touched = true
		if off > from {
			rest = append(rest, gap{first: from, last: off - 1, seen: g.seen, holders: g.holders})
		}
		from = off + 1
	}
	if from <= g.last {
		rest = append(rest, gap{first: from, last: g.last, seen: g.seen, holders: g.holders})
	}
	return rest, touched
}

func (s *source) readGaps(ctx context.Context, db execer) ([]gap, error) {
	rows, err := db.QueryContext(ctx, s.q.gaps, s.group.Load())
	if err != nil {
		return nil, fmt.Errorf("read the gaps: %w", err)
	}
	var out []gap
	err = scan(rows, func() error {
		var g gap
		err := rows.Scan(&g.first, &g.last, &g.seen, &g.holders)
		out = append(out, g)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the gaps: %w", err)
	}
	return out, nil
}

func (s *source) deleteGaps(ctx context.Context, db execer, firsts []int64) error {
	for part := range slices.Chunk(firsts, idsPerStatement) {
		_, err := s.exec(ctx, db, `DELETE FROM headrace_sql_gaps WHERE group_id = ? AND first_offset IN `+in(len(part)),
			append([]any{s.group.Load()}, anys(part)...)...)
		if err != nil {
			return fmt.Errorf("close a gap: %w", err)
		}
	}
	return nil
}

// closeGaps removes the gaps that no row can fill any more.
func (s *source) closeGaps(ctx context.Context) error {
	s.mu.Lock()
	has := s.hasGaps
	s.mu.Unlock()
	if !has {
		return nil
	}
	open, err := s.readGaps(ctx, s.b.db)
	if err != nil {
		return err
	}
	if len(open) == 0 {
		s.mu.Lock()
		s.hasGaps = false
		s.mu.Unlock()
		return nil
	}
	if s.d.name == sqltx.Postgres {
		return s.closeByLocks(ctx, open)
	}
	return s.closeByAge(ctx, open)
}

// closeByLocks closes gaps on Postgres. Whoever draws a number has held a lock
// on the table since before, until the transaction ends. So: note who holds such
// a lock after the gap was seen; once none of them does, every row of the gap is
// visible to a statement that begins then, or will never be.
func (s *source) closeByLocks(ctx context.Context, open []gap) error {
	now, err := s.lockHolders(ctx)
	if err != nil {
		return err
	}
	var dead []gap
	var fresh []int64
	for _, g := range open {
		if g.holders == "" {
			fresh = append(fresh, g.first)
			continue
		}
		if !slices.ContainsFunc(strings.Fields(g.holders), func(h string) bool { return now[h] }) {
			dead = append(dead, g)
		}
	}
	if len(fresh) > 0 {
		// "-" alone: nobody holds one.
		list := "-"
		for h := range now {
			list += " " + h
		}
		for part := range slices.Chunk(fresh, idsPerStatement) {
			if _, err := s.exec(ctx, s.b.db, `UPDATE headrace_sql_gaps SET holders = ? WHERE group_id = ? AND holders IS NULL AND first_offset IN `+in(len(part)),
				append([]any{list, s.group.Load()}, anys(part)...)...); err != nil {
				return fmt.Errorf("note who may fill a gap: %w", err)
			}
		}
	}
	return s.removeEmpty(ctx, dead)
}

func (s *source) lockHolders(ctx context.Context) (map[string]bool, error) {
	rows, err := s.b.db.QueryContext(ctx, //nolint:sqlclosecheck // scan closes them
		`SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND relation = to_regclass($1) AND mode IN ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')`, s.t.quoted)
	if err != nil {
		return nil, fmt.Errorf("find who writes to %s: %w", s.t.quoted, err)
	}
	holders := make(map[string]bool)
	err = scan(rows, func() error {
		var h string
		err := rows.Scan(&h)
		holders[h] = true
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find who writes to %s: %w", s.t.quoted, err)
	}
	return holders, nil
}

// closeByAge closes gaps on MySQL that are old enough and in whose range no
// open transaction has a row: a locking read meets rows that are not committed.
func (s *source) closeByAge(ctx context.Context, open []gap) error {
	age := s.b.gapAge
	if age == 0 {
		var err error
		if age, err = mysqlGapAge(ctx, s.b.db); err != nil {
			return err
		}
	}
	var now int64
	if err := s.b.db.QueryRowContext(ctx, `SELECT `+s.d.now).Scan(&now); err != nil {
		return fmt.Errorf("ask for the time: %w", err)
	}
	var dead []gap
	for _, g := range open {
		if now-g.seen < age.Microseconds() {
			continue
		}
		rows, err := s.b.db.QueryContext(ctx, s.d.fill(`SELECT {offset} FROM {t} WHERE {offset} >= ? AND {offset} <= ? LIMIT 1 FOR UPDATE NOWAIT`, s.t), g.first, g.last)
		found := false
		if err == nil {
			err = scan(rows, func() error { found = true; return nil })
		}
		switch {
		case sqltx.IsTransient(err), found: // a row is there, or will be
		case err != nil:
			return fmt.Errorf("look into a gap: %w", err)
		default:
			dead = append(dead, g)
		}
	}
	return s.removeEmpty(ctx, dead)
}

// removeEmpty removes gaps that can't be filled any more, unless they were: then
// the next claim takes the row and leaves what remains.
func (s *source) removeEmpty(ctx context.Context, dead []gap) error {
	if len(dead) == 0 {
		return nil
	}
	return s.tx(ctx, func(ctx context.Context, tx execer) error {
		if _, err := s.lock(ctx, tx); err != nil {
			return err
		}
		for part := range slices.Chunk(dead, 100) {
			q := s.d.fill(`DELETE FROM {gaps} WHERE group_id = ? AND first_offset = ? AND last_offset = ?
 AND (SELECT m.{offset} FROM {t} AS m WHERE m.{offset} >= ? AND m.{offset} <= ? ORDER BY m.{offset} LIMIT 1) IS NULL`, s.t)
			for _, g := range part {
				if _, err := s.exec(ctx, tx, q, s.group.Load(), g.first, g.last, g.first, g.last); err != nil {
					return fmt.Errorf("close a gap: %w", err)
				}
			}
		}
		return nil
	})
}
