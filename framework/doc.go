// Package framework runs a service: typed handlers over a broker, with the
// delivery rules of Headrace around each, an outbox, HTTP and a clean drain.
//
// A service makes an App, registers its handlers and runs it:
//
//	a, err := framework.New(framework.Config{Service: "payments", Profile: profile, DB: db, Dialect: dialect, Broker: b})
//	...
//	framework.HandleTx(a, orders.Placed, "charge-order", charge.Handle, framework.OrderByKey())
//	a.Emits(payments.Descriptors()...)
//	a.HTTP(routes)
//	err = a.Run(ctx)
//
// # Which registration
//
// HandleTx for work that ends in the service's own database: the inbox row, the
// writes and the emitted events are one commit. HandleCall for work that calls
// another system: intent, call without a transaction, result. Handle for work
// whose effect lies elsewhere and is idempotent by the event's id.
//
// # What happens to an error
//
// A plain error is retried with exponential backoff and full jitter, then the
// message goes to the dead letters of its handler's group with its story.
// Permanent goes there at once, RetryAfter waits as told, Skip acks, Defer gives
// the message back uncounted.
//
// A payload that is no event of the handler's type goes to the dead letters as raw
// bytes: what can't be decoded, a type that this service does not know, and a known
// one on a topic that is not its own. It is skipped and counted only where its type
// was defined on the same topic (events.Topic), which several types share, or
// where another handler of the service takes that major version.
//
// # Shutdown
//
// When Run's context ends: readiness goes off, listeners and subscriptions stop
// taking work, running requests and handlers finish up to the drain's deadline,
// the outbox is flushed, and Run returns. Unstarted messages go back to the
// broker at once; rows that were not flushed stay in the outbox. The connections
// in Config stay open: they belong to the caller.
package framework
