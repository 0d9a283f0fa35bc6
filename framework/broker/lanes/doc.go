// Package lanes runs a subscription for an adapter, so that every broker keeps
// the same promises. The adapter brings a Source: fetch, ack, renew, load,
// release. The Pump brings the rest: workers, order per key, the in-flight
// bound, delayed redelivery, heartbeats, batched acks, backoff and the drain.
//
// # How a message moves
//
// Fetched entries go to the dispatcher. It keeps one lane per ordering key (an
// entry without a key is a lane of its own); a lane hands out one entry at a
// time, lowest position first. A worker takes the next ready lane, decodes the
// entry, hands it to the subscriber's channel and waits for its ack or nack.
//
// An entry is resident while its body is in memory; MaxInFlight bounds those.
// An entry that can't run soon (nacked with a delay, behind such a one, or one
// of too many behind a busy key) is held: its body is dropped, its id kept, and
// the body is loaded again when its turn comes. So one key never fills the
// memory that the others need, and MaxHeld bounds what is held.
//
// Acks that gather while one round trip runs leave together with the next; while
// messages run, that one waits a millisecond for more. Nothing else waits on a
// timer to be sent.
package lanes
