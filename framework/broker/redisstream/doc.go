// Package redisstream is the broker on Redis Streams, from Redis 6.2 on. It
// writes and reads the wire format of watermill-redisstream, so that a stock
// process can be at the other end; the loops are its own.
//
// # Storage
//
// A topic is one stream, its key Config.Prefix and the topic's name. A group is
// a consumer group that starts at the oldest entry. An entry that every group
// has acked stays for Config.Retention, for groups that come later; a stream
// without groups, such as that of dead letters, is never trimmed. The broker
// keeps nothing else: no further keys. A group that is gone (FLUSHALL) is made
// again from the start of the stream.
//
// # Delivery
//
// The lease is the idle time of the pending entry, renewed by a heartbeat as
// long as the entry is held. The delivery count is that of the pending entry
// and survives SIGKILL. A nacked message stays with its consumer, by id alone,
// until its delay is over; when the consumer drains first, the delay is obeyed
// up to the lease. Entries that a consumer gives back go to the pseudo consumer
// ReleasedConsumer, where the others find them within Config.ClaimInterval;
// entries of a dead consumer are claimed once the lease is over.
//
// Order per key holds within one consumer, claimed entries included. Redis
// gives the entries of one key to any member of a group, so it does not hold
// across members: run one member for such a group, or accept it.
//
// An entry that someone else trimmed while it was pending is lost: the log says
// so, and the entry is cleared.
//
// # Clients
//
// Each subscription keeps one connection in a blocking read. The broker's own
// client has room for that; a client that is handed in needs a PoolSize above
// the number of subscriptions.
package redisstream
