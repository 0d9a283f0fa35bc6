// Package nats is the broker on NATS JetStream, from nats-server 2.10 on. It
// writes and reads the wire format of watermill-nats (its NATSMarshaler), so that
// a stock process can be at the other end; the loops are its own.
//
// # Storage
//
// A topic is one subject, the topic's name escaped where NATS can't carry it, and
// one stream that holds it. Where another stream takes that subject already, that
// stream is used as it is. A group is a durable pull consumer with explicit acks
// that starts at the oldest message. A message stays in its stream for
// Config.Retention, whether it was acked or not; dead letters stay until somebody
// removes them. One stream more keeps the delivery counts: see below.
//
// # Delivery
//
// The lease is the consumer's AckWait, renewed by a heartbeat as long as a message
// is held. A nacked message stays here, by its sequence alone, until its delay is
// over, so that order per key holds; when the consumer drains first, the server
// keeps the delay. Acks are confirmed by the server, a batch at a time.
//
// NATS counts what it handed out, not what a handler got. So the count is the
// adapter's own: the first delivery counts 1, and each later one is written to
// the stream of counts before the handler gets it. That write happens only for a
// message that was nacked, given back or left behind, and is removed with the
// ack. A message that merely waited in a consumer that crashed has not run, and
// its count says so.
//
// Order per key holds within one consumer. NATS hands the messages of one key to
// any member of a group, so it does not hold across members: run one member for
// such a group, or accept it.
package nats
