// Package kafka is the broker on Apache Kafka, from 2.4 on, and on what speaks its
// protocol. It writes and reads the wire format of watermill-kafka (its default
// marshaler), so that a stock process can be at the other end; the client is
// franz-go and the loops are its own.
//
// # Storage
//
// A topic is a Kafka topic, its name hashed where Kafka can't carry it; a group is
// a Kafka consumer group that starts at the oldest message. A message with an
// ordering key goes to the partition of that key, one without to any. A message
// stays for the topic's retention, whether it was acked or not.
//
// # Delivery
//
// Kafka keeps one offset a partition. The adapter commits the lowest offset that
// is not settled, and beside it, in the commit's metadata string, a ledger: which
// later ones are not settled either, and how often each was delivered. So acks are
// per message and survive a crash, and so does the delivery count. A partition has
// at most 256 messages that are not settled, which is what bounds the ledger.
//
// # Rebalance
//
// When a partition moves to another member, what is in hand stays in hand: the
// ledger says who holds it and until when, and the new owner goes on behind it. The
// holder reports through a small consumer group of its own, which has offsets and
// no members: what it renewed, settled or gave back. Of one that dies, the new
// owner takes over what it held once the lease is over. Later messages of a key
// wait for an earlier one that is held elsewhere, so order per key holds across
// members.
package kafka
