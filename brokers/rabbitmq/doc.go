// Package rabbitmq is the broker on RabbitMQ 3.10 or newer, over AMQP 0-9-1. It
// writes and reads the wire format of watermill-amqp, so that a stock process
// can be at the other end; the loops are its own.
//
// # Queues
//
// A topic is a durable fanout exchange of the topic's name. A group on it is a
// durable quorum queue bound to it, so a group gets what is published once its
// queue is there, and nothing from before (Features.ReplayForNewGroup is false):
// EnsureTopology makes the groups first.
//
// A message that no queue takes is not dropped: it comes back to the publisher
// (the mandatory flag), which puts it into the topic's own queue, where an
// operator sees it (Config.Unrouted says what else can be done). Topics whose
// names end in ".dlq" or ".redrive" have that queue alone, made by the first
// publish: dead letters and replays lie in it until someone reads them, and all
// who subscribe to such a topic share it.
//
// # Delivery
//
// RabbitMQ has no lease: a message is a consumer's as long as its channel lives,
// and all that it holds goes back at once when the connection ends. What was
// handled while the connection was away is recognized when it comes again, and
// settled without a second run; what still runs is taken up again, or, when
// another consumer has it, is cancelled with broker.ErrLeaseLost.
//
// The delivery count is the quorum queue's own. Nack delays are held in the
// process; then the message goes back to the head of its queue, which counts it.
// With Order nothing leaves the process before it is acked, so that no later
// message of a key can pass it, not even in a crash; nacks are then counted in
// the process, and a crash goes on from what RabbitMQ has counted.
package rabbitmq
