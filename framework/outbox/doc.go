// Package outbox publishes messages that were written with the caller's
// transaction: a Writer inserts them beside the business rows, and a Relay hands
// them to the broker once that transaction has committed. What rolls back is
// never published; what commits is published at least once, also when the
// broker is away for long or a process dies at any step.
//
// # Order
//
// Messages that carry an ordering key (events.KeyOrdering) are published in the
// order in which their transactions wrote them, as far as those transactions
// were ordered at all: two that ran at the same time on one key have no order.
// Messages without a key have none. Any number of relays, in any number of
// processes, keep to this.
//
// # What fails
//
// A message that the broker refuses for good (broker.ErrRejected), or whose row
// can't be read, is parked with the reason. Another failure holds its row, and
// the later rows of its key, back for a growing while; a row that keeps failing
// while the broker takes others, or all alone while it is known to be up, is
// parked after MaxAttempts such failures. While the broker takes nothing at all, all relays of the table share one pause that
// grows, so the rate of attempts doesn't depend on how many relays there are,
// and no row is parked for it.
//
// # What dies
//
// The rows that a dead relay was publishing are free as soon as the database
// knows of its end: at once when the process dies, and when TCP gives up where a
// machine does. They may be published a second time then, with the same id. A
// relay that dies while it tries a broker that was out keeps the others from
// trying for PublishTimeout and 2 s.
//
// # Storage
//
// The table has the columns of Watermill's PostgreSQLQueueSchema and the rows
// hold the envelope of Watermill's forwarder, so a stock forwarder.Forwarder can
// drain it (with PostgreSQLQueueOffsetsAdapter and SubscribeBatchSize 1) and a
// stock publisher can fill it. Rows of a stock publisher form one shard and are
// relayed in their order. A parked row is still due to a stock forwarder.
//
// On Postgres a relay holds a transaction, with an advisory lock for each of the
// shards that it works on, while one batch is being published, for
// PublishTimeout at most. That transaction has no transaction id meanwhile and
// locks no row; it keeps vacuum from what died since it began. When its process
// dies the locks are free at once. On SQLite one relay of all processes works at
// a time, under a lock of the operating system that ends with its process, and
// no transaction is open while it publishes.
package outbox
