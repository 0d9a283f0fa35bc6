// Package sqs is the broker on Amazon SQS, alone (ModeSQS) or behind SNS topics
// (ModeSNS), with standard or FIFO queues. It writes and reads the wire format
// of watermill-aws, so that a stock process can be at the other end; the loops
// are its own.
//
// # Queues
//
// A group on a topic has a queue of its own. With SNS a message is published
// once, to the topic, and SNS copies it to the queues that subscribe. Without
// SNS the publisher sends it to each of the queues: it knows the groups from
// Config.Groups, or finds the queues by their names (ListQueues), so a group
// that is created while publishers run receives what they publish from at most
// DiscoverEvery later on; AWS says that a new queue may be missing from the list
// for a minute. A message whose send to one of several queues failed is not
// confirmed, and the resend reaches the others twice: consumers are idempotent
// anyway.
//
// A topic also has a queue of its own. It holds the dead letters of a topic whose
// name ends in ".dlq", in both modes, and for ModeSQS what was published while
// the topic had no group at all: nothing is dropped, and nothing hands it to a
// group that comes later. With SNS a message that no queue subscribes to is gone.
// A group's queue moves what SQS has handed out MaxReceiveCount times to the
// same queue where the stack puts its dead letters.
//
// # Delivery
//
// The lease is the visibility timeout, extended by a heartbeat while the message
// is held, to the 12 hours that SQS allows. The delivery count is SQS's own. A
// nack makes the message visible again after its delay, in whole seconds. A nack
// of a released delivery keeps the message here, hidden from others, until its
// delay is over, and so does not count; what a draining consumer gives back is
// counted by SQS (Features.CountsReleases), and so is what is browsed.
//
// Order per key holds on FIFO queues, across members of the group too: the
// message group is the ordering key, the deduplication id the event's id.
//
// Receives are not cancelled when a subscription ends, since SQS may have handed
// messages to them: what they still bring is given back at once.
package sqs
