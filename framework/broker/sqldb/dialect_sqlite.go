package sqldb

import (
	"context"
	"database/sql"
	"errors"

	"github.com/headrace-go/headrace/framework/sqltx"
)

func sqlite() *dialect {
	return &dialect{
		name:      sqltx.SQLite,
		quote:     func(name string) string { return doubled(name, `"`) },
		maxParams: 32766,
		now:       `CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)`,
		created:   `CAST((julianday(created_at) - 2440587.5) * 86400000000 AS INTEGER)`,
		// A write first, so that a transaction that began deferred waits for the
		// lock instead of failing later.
		lockGroup:  `UPDATE {groups} SET position = position WHERE id = ? RETURNING position, {now}, {due}, {gap}, ''`,
		maxMessage: 256 << 20,
		oneWriter:  true,
		lateJoin:   `{gaps} AS g JOIN {t} AS m ON m."offset" >= g.first_offset AND m."offset" <= g.last_offset`,
		createState: []string{
			`CREATE TABLE IF NOT EXISTS headrace_sql_groups (
 id INTEGER PRIMARY KEY AUTOINCREMENT,
 group_key TEXT NOT NULL UNIQUE,
 messages_table TEXT NOT NULL,
 topic TEXT NOT NULL,
 consumer_group TEXT NOT NULL,
 position INTEGER NOT NULL DEFAULT 0
)`,
			`CREATE TABLE IF NOT EXISTS headrace_sql_claims (
 id INTEGER PRIMARY KEY,
 group_id INTEGER NOT NULL,
 owner TEXT NOT NULL,
 locked_until INTEGER NOT NULL,
 first_offset INTEGER NOT NULL,
 n INTEGER NOT NULL,
 entries BLOB NOT NULL
)`,
			`CREATE INDEX IF NOT EXISTS headrace_sql_claims_due ON headrace_sql_claims (group_id, locked_until)`,
			`CREATE TABLE IF NOT EXISTS headrace_sql_gaps (
 group_id INTEGER NOT NULL,
 first_offset INTEGER NOT NULL,
 last_offset INTEGER NOT NULL,
 seen_at INTEGER NOT NULL,
 holders TEXT,
 PRIMARY KEY (group_id, first_offset)
)`,
		},
		createMessages: []string{`CREATE TABLE IF NOT EXISTS {t} (
 "offset" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
 uuid TEXT NOT NULL,
 created_at TEXT NOT NULL,
 payload BLOB NOT NULL,
 metadata JSON NOT NULL
)`},
		tableExists: `SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?`,
		insert:      `INSERT INTO {t} (uuid, payload, metadata, created_at) VALUES `,
		values:      `(?,?,?,strftime('%Y-%m-%dT%H:%M:%fZ','now'))`,
		insertGroup: `INSERT INTO headrace_sql_groups (group_key, messages_table, topic, consumer_group) VALUES (?,?,?,?) ON CONFLICT DO NOTHING`,
		lastNumber: func(ctx context.Context, db sqltx.Execer, t table) (int64, error) {
			var last int64
			err := db.QueryRowContext(ctx, `SELECT seq FROM sqlite_sequence WHERE name = ?`, t.name).Scan(&last)
			if errors.Is(err, sql.ErrNoRows) {
				return 0, nil
			}
			return last, err
		},
		stockFloor: func(t table) string {
			return ` AND m."offset" <= (SELECT COALESCE(min(o.offset_acked), 9223372036854775807) FROM ` + doubled(stockOffsets(t), `"`) + ` AS o)`
		},
	}
}
