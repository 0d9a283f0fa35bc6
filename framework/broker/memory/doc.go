// Package memory is the broker that lives in the process. It needs nothing
// installed and is what component tests run on.
//
// # Storage
//
// A topic is a log; a group is a cursor on it and a set of unsettled messages.
// What every group has acked stays for groups that come later, up to
// Config.Retain messages a topic; what a group has not acked is never dropped,
// so the process holds the whole backlog. Nothing outlives the process, and no
// other process can join.
//
// # Delivery
//
// Nack delays are exact to the scheduler. The delivery count survives a
// subscriber, not the process. Order per key holds within one subscriber. There
// are no leases, since a consumer can't die without its broker, and there are
// no malformed entries, since nothing else writes the log.
package memory
