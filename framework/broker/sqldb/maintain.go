package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/headrace-go/headrace/framework/sqltx"
)

// maintain closes gaps and cleans the topic's table, spread over the members.
func (s *source) maintain(ctx context.Context) {
	every := s.b.cfg.MaintainEvery
	clean := time.Now().Add(rand.N(every/4 + 1))
	tick := time.NewTicker(min(gapsEvery, every))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.closeGaps(ctx); err != nil {
			s.upkeepFailed(ctx, "closing gaps", err)
		}
		if time.Now().Before(clean) {
			continue
		}
		clean = time.Now().Add(every/2 + rand.N(every/2+1))
		if err := s.checkNumbers(ctx); err != nil {
			s.upkeepFailed(ctx, "comparing the position with the table", err)
		}
		if err := s.clean(ctx); err != nil {
			s.upkeepFailed(ctx, "cleaning", err)
		}
	}
}

func (s *source) upkeepFailed(ctx context.Context, what string, err error) {
	if ctx.Err() != nil || noTable(err) {
		return
	}
	s.log.WarnContext(ctx, what+" failed; trying again later", "error", err)
}

// checkNumbers finds out when the table's numbers were set back, by TRUNCATE, by
// a table that was made again or by a backup of the state alone: then the
// group's position lies above all rows, and nothing would ever be claimed.
func (s *source) checkNumbers(ctx context.Context) error {
	var pos int64
	err := s.b.db.QueryRowContext(ctx, s.d.bind(`SELECT position FROM headrace_sql_groups WHERE id = ?`), s.group.Load()).Scan(&pos)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	} else if err != nil {
		return fmt.Errorf("read the group's position: %w", err)
	}
	// After the position: what it counts was handed out before.
	last, err := s.d.lastNumber(ctx, s.b.db, s.t)
	if sqltx.IsPermission(err) {
		return nil // a role that may not look at the sequence does without
	} else if err != nil {
		return fmt.Errorf("read the last number of %s: %w", s.t.quoted, err)
	}
	if last < 0 || last >= pos {
		return nil
	}
	s.log.ErrorContext(ctx, "the numbers of the topic's table were set back below the group's position; the group starts again at the oldest row",
		"position", pos, "last_number", last, "table", s.t.name)
	return s.tx(ctx, func(ctx context.Context, tx execer) error {
		n, err := s.exec(ctx, tx, `UPDATE headrace_sql_groups SET position = 0 WHERE id = ? AND position = ?`, s.group.Load(), pos)
		if err != nil || n == 0 {
			return err
		}
		for _, q := range []string{`DELETE FROM headrace_sql_claims WHERE group_id = ?`, `DELETE FROM headrace_sql_gaps WHERE group_id = ?`} {
			if _, err := s.exec(ctx, tx, q, s.group.Load()); err != nil {
				return err
			}
		}
		return nil
	})
}

// clean deletes what every group has settled and what is older than the
// retention, in the order of numbers, a batch at a time.
func (s *source) clean(ctx context.Context) error {
	if s.b.cfg.Retention < 0 {
		return nil
	}
	total := int64(0)
	for ctx.Err() == nil {
		n, err := s.b.cleanBatch(ctx, s.t)
		if err != nil {
			return err
		}
		total += n
		if n < int64(s.b.cfg.CleanupBatch) {
			break
		}
	}
	if total > 0 {
		s.log.DebugContext(ctx, "cleaned", "messages", total)
	}
	return nil
}

// floor is the number below which every group of a topic has settled everything,
// and no row can turn up any more; 0 without groups.
func (b *Broker) floor(ctx context.Context, t table) (int64, error) {
	var floor int64
	err := b.db.QueryRowContext(ctx, b.d.bind(`SELECT COALESCE(MIN(x.low), 0) FROM (
 SELECT position + 1 AS low FROM headrace_sql_groups WHERE messages_table = ?
 UNION ALL SELECT c.first_offset FROM headrace_sql_claims c JOIN headrace_sql_groups g ON g.id = c.group_id WHERE g.messages_table = ?
 UNION ALL SELECT p.first_offset FROM headrace_sql_gaps p JOIN headrace_sql_groups g ON g.id = p.group_id WHERE g.messages_table = ?
) AS x`), t.name, t.name, t.name).Scan(&floor)
	if err != nil {
		return 0, fmt.Errorf("find what every group has settled: %w", err)
	}
	return floor, nil
}

// cleanBatch deletes up to CleanupBatch rows and returns how many.
func (b *Broker) cleanBatch(ctx context.Context, t table) (int64, error) {
	floor, err := b.floor(ctx, t)
	if err != nil || floor <= 1 {
		return 0, err
	}
	stock := ""
	there, err := b.exists(ctx, table{name: stockOffsets(t)})
	if err != nil {
		return 0, fmt.Errorf("look for stock groups: %w", err)
	}
	if there {
		stock = b.d.stockFloor(t)
	}
	// The ends of the batch first: a DELETE with its own subquery on the same
	// table is not to be had on MySQL.
	var now int64
	if err := b.db.QueryRowContext(ctx, `SELECT `+b.d.now).Scan(&now); err != nil {
		return 0, fmt.Errorf("ask for the time: %w", err)
	}
	rows, err := b.db.QueryContext(ctx, //nolint:sqlclosecheck // scan closes them
		b.d.bind(b.d.fill(`SELECT m.{offset}, {created} FROM {t} AS m WHERE m.{offset} < ?`+stock+` ORDER BY m.{offset} LIMIT ?`, t)), floor, b.cfg.CleanupBatch)
	if err != nil {
		return 0, fmt.Errorf("look for old messages: %w", err)
	}
	var offs []int64
	err = scan(rows, func() error {
		var off, created int64
		if err := rows.Scan(&off, &created); err != nil {
			return err
		}
		if now-created >= b.cfg.Retention.Microseconds() {
			offs = append(offs, off)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("look for old messages: %w", err)
	}
	return b.deleteRows(ctx, t, offs)
}

func (b *Broker) deleteRows(ctx context.Context, t table, offs []int64) (int64, error) {
	total := int64(0)
	for len(offs) > 0 {
		n := min(len(offs), idsPerStatement)
		done := b.writer()
		res, err := b.db.ExecContext(ctx, b.d.bind(b.d.fill(`DELETE FROM {t} WHERE {offset} IN `, t)+in(n)), anys(offs[:n])...)
		done()
		if err != nil {
			return total, fmt.Errorf("delete messages of %s: %w", t.quoted, err)
		}
		gone, err := res.RowsAffected()
		if err != nil {
			return total, err
		}
		total += gone
		offs = offs[n:]
	}
	return total, nil
}
