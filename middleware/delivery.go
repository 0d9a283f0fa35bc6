package middleware

import (
	"context"
	"sync"
	"time"
)

// Delivery is what a subscriber tells the stack about one delivery of one
// message, and what the stack tells the subscriber about how to give it back.
// A Headrace subscriber puts one in the message's context; a stock Watermill
// subscriber does not, and every middleware here works without it.
//
// A Delivery is safe for concurrent use.
type Delivery struct {
	group    string
	count    int
	draining <-chan struct{}

	mu        sync.Mutex
	nackDelay time.Duration
	delaySet  bool
	uncounted bool
}

// NewDelivery makes a Delivery. Group is the consumer group. Count is how often
// the message was handed out, this time included, crashes counted: 1 for the
// first time, 0 when the broker cannot tell. Draining is closed when the
// subscriber stops fetching and waits for running handlers; nil means that the
// subscriber never says so.
func NewDelivery(group string, count int, draining <-chan struct{}) *Delivery {
	return &Delivery{group: group, count: count, draining: draining}
}

// Group returns the consumer group that received the message.
func (d *Delivery) Group() string { return d.group }

// Count returns how often the message was handed out, this time included; 0
// means that the broker cannot tell.
func (d *Delivery) Count() int { return d.count }

// Draining is closed once the subscriber has begun to drain: work that only
// waits (a backoff, say) should give up and let the message be redelivered. It
// returns nil, which blocks for ever, when the subscriber never says so.
func (d *Delivery) Draining() <-chan struct{} { return d.draining }

// RedeliverAfter sets how long the broker holds the message back if this
// delivery ends in a nack. Zero asks for redelivery at once. Without a call the
// subscriber's own nack delay holds.
func (d *Delivery) RedeliverAfter(delay time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nackDelay, d.delaySet = max(delay, 0), true
}

// Release says that a nack of this delivery is no failure (a shutdown, a claim
// that another worker holds, an open breaker), so the broker should not count
// the delivery where it can avoid that.
func (d *Delivery) Release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uncounted = true
}

// NackDelay returns what RedeliverAfter set, and whether it was called.
func (d *Delivery) NackDelay() (delay time.Duration, set bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nackDelay, d.delaySet
}

// Released tells whether Release was called.
func (d *Delivery) Released() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.uncounted
}

type deliveryKey struct{}

// WithDelivery returns a context that carries d.
func WithDelivery(ctx context.Context, d *Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// DeliveryFrom returns the delivery that ctx carries, or nil.
func DeliveryFrom(ctx context.Context) *Delivery {
	d, _ := ctx.Value(deliveryKey{}).(*Delivery)
	return d
}
