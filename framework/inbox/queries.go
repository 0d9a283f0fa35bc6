package inbox

import (
	"database/sql"

	"github.com/headrace-go/headrace/framework/sqltx"
)

// querySet is what differs between dialects.
type querySet struct {
	insert  string // $1 handler, $2 event id, $3 time
	handled string // $1 handler, $2 event id

	// claim takes $1 key, $2 token, $3 lease in microseconds; when it returns, a
	// row comes back when the claim is the caller's, else look tells.
	claim   string
	returns bool
	// look takes $1 key: token, done, microseconds until it expires, and the result.
	look string
	// commit takes $1 a result or NULL, $2 retention in microseconds, $3 key, $4
	// token.
	commit string
	// release takes $1 key, $2 token.
	release string

	// purgeInbox takes $1 an age in microseconds and $2 a limit; purgeDedup $1 a limit.
	purgeInbox string
	purgeDedup string

	// isolation of the package's own transactions.
	isolation sql.IsolationLevel
}

const (
	postgresNow = `(extract(epoch from clock_timestamp()) * 1000000)::bigint`
	mysqlNow    = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`
	sqliteNow   = `CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)`
)

func claims(now string) querySet {
	return querySet{
		insert:  `INSERT INTO headrace_inbox (handler, event_id, processed_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
		handled: `SELECT count(*) FROM headrace_inbox WHERE handler = $1 AND event_id = $2`,
		// One statement, so that of callers that race exactly one has the row: the
		// others wait for its lock and then see that it has not expired.
		claim: `INSERT INTO headrace_dedup (key, token, done, expires_at) VALUES ($1, $2, FALSE, ` + now + ` + $3)
ON CONFLICT (key) DO UPDATE SET token = excluded.token, done = FALSE, result = NULL, expires_at = ` + now + ` + $3
WHERE headrace_dedup.expires_at <= ` + now + `
RETURNING key`,
		returns: true,
		look:    `SELECT token, done, expires_at - ` + now + `, result FROM headrace_dedup WHERE key = $1`,
		commit:  `UPDATE headrace_dedup SET done = TRUE, result = COALESCE($1, result), expires_at = ` + now + ` + $2 WHERE key = $3 AND token = $4`,
		release: `DELETE FROM headrace_dedup WHERE key = $1 AND token = $2 AND NOT done`,
	}
}

var queries = map[sqltx.Dialect]querySet{
	sqltx.Postgres: func() querySet {
		q := claims(postgresNow)
		q.purgeInbox = `DELETE FROM headrace_inbox WHERE ctid = ANY (ARRAY(
SELECT ctid FROM headrace_inbox WHERE processed_at < ` + postgresNow + ` - $1 ORDER BY processed_at LIMIT $2 FOR UPDATE SKIP LOCKED))`
		q.purgeDedup = `DELETE FROM headrace_dedup WHERE ctid = ANY (ARRAY(
SELECT ctid FROM headrace_dedup WHERE expires_at < ` + postgresNow + ` ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))`
		return q
	}(),
	sqltx.MySQL: {
		// IGNORE waits for an uncommitted row like any insert. Of the errors that it
		// would hide none but the duplicate can come: the keys are checked before.
		insert:  `INSERT IGNORE INTO headrace_inbox (handler, event_id, processed_at) VALUES (?, ?, ?)`,
		handled: `SELECT count(*) FROM headrace_inbox WHERE handler = ? AND event_id = ?`,
		// MySQL assigns from left to right, and later ones see it: expires_at is last.
		claim: "INSERT INTO headrace_dedup (`key`, token, done, expires_at) VALUES (?, ?, FALSE, " + mysqlNow + ` + ?)
ON DUPLICATE KEY UPDATE token = IF(expires_at <= ` + mysqlNow + `, VALUES(token), token),
 done = IF(expires_at <= ` + mysqlNow + `, FALSE, done),
 result = IF(expires_at <= ` + mysqlNow + `, NULL, result),
 expires_at = IF(expires_at <= ` + mysqlNow + `, VALUES(expires_at), expires_at)`,
		look:       "SELECT token, done, expires_at - " + mysqlNow + ", result FROM headrace_dedup WHERE `key` = ?",
		commit:     "UPDATE headrace_dedup SET done = TRUE, result = COALESCE(?, result), expires_at = " + mysqlNow + " + ? WHERE `key` = ? AND token = ?",
		release:    "DELETE FROM headrace_dedup WHERE `key` = ? AND token = ? AND NOT done",
		purgeInbox: `DELETE FROM headrace_inbox WHERE processed_at < ` + mysqlNow + ` - ? ORDER BY processed_at LIMIT ?`,
		purgeDedup: `DELETE FROM headrace_dedup WHERE expires_at < ` + mysqlNow + ` ORDER BY expires_at LIMIT ?`,
		// Without gap locks: a clean-up must not stop handlers.
		isolation: sql.LevelReadCommitted,
	},
	sqltx.SQLite: func() querySet {
		q := claims(sqliteNow)
		q.purgeInbox = `DELETE FROM headrace_inbox WHERE (handler, event_id) IN (
SELECT handler, event_id FROM headrace_inbox WHERE processed_at < ` + sqliteNow + ` - $1 ORDER BY processed_at LIMIT $2)`
		q.purgeDedup = `DELETE FROM headrace_dedup WHERE key IN (
SELECT key FROM headrace_dedup WHERE expires_at < ` + sqliteNow + ` ORDER BY expires_at LIMIT $1)`
		return q
	}(),
}
