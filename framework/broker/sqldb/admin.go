package sqldb

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/headrace-go/headrace/framework/broker"
)

// browsePage is how many rows Browse reads at a time.
const browsePage = 100

type admin struct{ b *Broker }

// Stats counts. Lag includes messages that were given back and those that wait
// for a key which another member has.
func (a admin) Stats(ctx context.Context, sub broker.Subscription) (broker.Stats, error) {
	var stats broker.Stats
	d, t := a.b.d, a.b.table(sub.Topic)
	id, err := a.b.groupID(ctx, t, sub.Group)
	if noTable(err) || err == nil && id == 0 {
		return stats, nil
	}
	var age int64
	if err == nil {
		err = a.b.db.QueryRowContext(ctx, d.bind(d.fill(`SELECT x.fresh + x.late + x.free, x.held, COALESCE({now} - (
 SELECT {created} FROM {t} WHERE {offset} >= x.low ORDER BY {offset} LIMIT 1), 0)
FROM (SELECT
 (SELECT count(*) FROM {t} WHERE {offset} > (SELECT position FROM {groups} WHERE id = ?)) AS fresh,
 (SELECT count(*) FROM {gaps} AS g JOIN {t} AS m ON m.{offset} >= g.first_offset AND m.{offset} <= g.last_offset WHERE g.group_id = ?) AS late,
 (SELECT COALESCE(sum(n), 0) FROM {claims} WHERE group_id = ? AND owner = '') AS free,
 (SELECT COALESCE(sum(n), 0) FROM {claims} WHERE group_id = ? AND owner <> '') AS held,
 (SELECT min(y.low) FROM (
  SELECT position + 1 AS low FROM {groups} WHERE id = ?
  UNION ALL SELECT first_offset FROM {claims} WHERE group_id = ?
  UNION ALL SELECT min(m.{offset}) FROM {gaps} AS g JOIN {t} AS m ON m.{offset} >= g.first_offset AND m.{offset} <= g.last_offset WHERE g.group_id = ?
 ) AS y) AS low
) AS x`, t)), id, id, id, id, id, id, id).Scan(&stats.Lag, &stats.Pending, &age)
	}
	if noTable(err) {
		return broker.Stats{}, nil
	} else if err != nil {
		return broker.Stats{}, fmt.Errorf("sqldb: stats of group %q on topic %q: %w", sub.Group, sub.Topic, err)
	}
	if stats.Lag+stats.Pending > 0 {
		stats.OldestAge = max(time.Duration(age)*time.Microsecond, time.Nanosecond)
	}
	return stats, nil
}

// Depth counts the rows of the topic's table.
func (a admin) Depth(ctx context.Context, topic string) (int64, error) {
	var n int64
	err := a.b.db.QueryRowContext(ctx, a.b.d.fill(`SELECT count(*) FROM {t}`, a.b.table(topic))).Scan(&n)
	if noTable(err) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("sqldb: depth of topic %q: %w", topic, err)
	}
	return n, nil
}

// Browse reads the table by page. A row that can't be decoded is yielded as raw
// bytes with the reason under broker.MalformedReasonKey.
func (a admin) Browse(ctx context.Context, topic string, since time.Time) iter.Seq2[broker.Stored, error] {
	d, t := a.b.d, a.b.table(topic)
	return func(yield func(broker.Stored, error) bool) {
		fail := func(err error) {
			yield(broker.Stored{}, fmt.Errorf("sqldb: browse topic %q: %w", topic, err))
		}
		var newest int64
		err := a.b.db.QueryRowContext(ctx, d.fill(`SELECT COALESCE(max({offset}), 0) FROM {t}`, t)).Scan(&newest)
		if noTable(err) {
			return
		} else if err != nil {
			fail(err)
			return
		}
		q := d.bind(d.fill(`SELECT `+columns+`, {created} FROM {t} WHERE {offset} > ? AND {offset} <= ? AND {created} >= ? ORDER BY {offset} LIMIT ?`, t))
		from := int64(0)
		sinceMicros := int64(0)
		if !since.IsZero() {
			sinceMicros = since.UnixMicro()
		}
		for {
			page, err := a.page(ctx, q, from, newest, sinceMicros)
			if err != nil {
				fail(err)
				return
			}
			for _, stored := range page {
				if !yield(stored.Stored, nil) {
					return
				}
				from = stored.off
			}
			if len(page) < browsePage {
				return
			}
		}
	}
}

type browsed struct {
	broker.Stored
	off int64
}

func (a admin) page(ctx context.Context, q string, args ...any) ([]browsed, error) {
	rows, err := a.b.db.QueryContext(ctx, q, append(args, browsePage)...)
	if err != nil {
		return nil, err
	}
	var page []browsed
	err = scan(rows, func() error {
		var r row
		var created int64
		if err := rows.Scan(&r.off, &r.uuid, &r.payload, &r.metadata, &created); err != nil {
			return err
		}
		b := browsed{off: r.off}
		b.Position, b.PublishedAt = entryID(r.off), time.UnixMicro(created).UTC()
		var err error
		if b.Message, err = r.decode(); err != nil {
			b.Message = r.raw()
			b.Message.Metadata.Set(broker.MalformedReasonKey, err.Error())
		}
		page = append(page, b)
		return nil
	})
	return page, err
}

// Delete removes rows by number.
func (a admin) Delete(ctx context.Context, topic string, positions ...string) (int, error) {
	offs := make([]int64, 0, len(positions))
	for _, p := range positions {
		off, err := strconv.ParseInt(p, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("sqldb: delete from topic %q: position %q is none of this broker's", topic, p)
		}
		offs = append(offs, off)
	}
	n, err := a.b.deleteRows(ctx, a.b.table(topic), offs)
	if noTable(err) {
		return 0, nil
	} else if err != nil {
		return int(n), fmt.Errorf("sqldb: delete %d messages of topic %q: %w", len(positions), topic, err)
	}
	return int(n), nil
}
