// Package middleware is the delivery rules as Watermill middleware: each a plain
// message.HandlerMiddleware that works alone on a bare router, over any
// subscriber. A Stack puts them in their order:
//
//	Recover      a panic anywhere is an error
//	Correlate    ids and trace context, in and out
//	Metrics      counts and times, with a bounded number of series
//	Poison       settles what failed: dead letter, skip, or give back
//	Park         keeps the order of a key over a failure
//	Retry        bounded attempts, full jitter
//	Recover      a panic or Goexit is a failed attempt
//	Timeout      a fresh deadline for each attempt
//	Breaker      leaves a broken dependency alone
//	RateLimit    bounds the pace
//	(the team's own)
//	Dedup        runs the handler to success once for each message id
//
// What a handler's error means is its Disposition: a plain error is retried and
// then dead-lettered, Permanent goes to the dead letters at once, RetryAfter
// waits at least so long, Skip acks, and Defer gives the message back to the
// broker as no failure at all.
//
// A Headrace subscriber puts a Delivery in the message's context; through it a
// deferral asks for its delay and is not counted. A stock subscriber gives none
// and redelivers a nacked message at once, so there a layer waits out the delay
// in process, up to 30 s, instead of looping.
package middleware
