// Package sqldb is the broker on a SQL database: Postgres 13 or later, MySQL
// 8.0 or MariaDB 10.6 or later, SQLite 3.35 or later in WAL mode. Messages live
// in tables of the shape that watermill-sql (and watermill-sqlite) uses, so that
// a stock process can be at the other end; the loops and the delivery state are
// its own.
//
// # Storage
//
// A topic is one table; MessagesTable names it. Three tables hold the state of
// all groups: headrace_sql_groups has a group's position, headrace_sql_claims
// what was claimed beyond it and is not settled, headrace_sql_gaps the numbers
// below the position that no committed row has. A group that is new starts at
// the oldest row.
//
// A claim is one row for up to 128 messages: who has them, until when, and for
// each its number, its delivery count and, in an ordered group, a hash of its
// key. So a batch costs a few small rows, however many messages it has. Claims
// are made in short transactions that lock the group's row. Settling, renewing
// and releasing need no lock but that of the claim's own row. No transaction is
// open while a handler runs.
//
// # Nothing is skipped
//
// Numbers are handed out before commit, so a row may turn up below others that
// were claimed long ago. Each number that was missing when the position passed
// it is a gap. Gaps are looked at with every claim, and closed only once it is
// proven that no row can come any more: on Postgres when everybody who could
// have drawn the number, and therefore held a lock on the table, has let go; on
// MySQL when no open transaction has the row and the longest time that an INSERT
// can wait for a lock has passed. SQLite hands numbers out in the order of
// commits. Neither transaction ids nor snapshots matter, so a long transaction
// elsewhere stops nothing, and a dump may be restored into another cluster.
//
// # Order
//
// With SubscriberConfig.Order a message is not claimed while another member has,
// or gave back, a message of its key; it is set aside in a claim without an
// owner and taken once its key is free. All members of an ordered group must set
// Order. The order is that of the numbers: of two transactions that publish to
// one key at the same time, either may come first.
package sqldb
