package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	// stockDelay spaces redeliveries that asked for no delay of their own where
	// the subscriber would redeliver at once.
	stockDelay = time.Second
	// maxHold bounds how long a message waits in process in place of the delay
	// that a stock subscriber does not know.
	maxHold = 30 * time.Second
)

// giveBack readies msg for the nack of a deferral or a redelivery: the broker
// holds it for the delay, and does not count the delivery of a deferral. A stock subscriber redelivers at once,
// which would be a hot loop, so there the delay is waited out here, up to
// maxHold, unless the message's context ends.
func giveBack(msg *message.Message, err error, after time.Duration) {
	stopping := errors.Is(err, ErrShuttingDown)
	ctx := msg.Context()
	if d := DeliveryFrom(ctx); d != nil {
		if disposition, _ := DispositionOf(err); disposition != DispositionRedeliver {
			d.Release()
		}
		if after > 0 || stopping {
			d.RedeliverAfter(after)
		}
		return
	}
	if stopping {
		return
	}
	if after <= 0 {
		after = stockDelay
	}
	_ = wait(ctx, nil, min(after, maxHold))
}

// deferred ends a delivery with a deferral or a redelivery on behalf of a layer that may stand
// alone: where a Poison outside will settle it, or a layer inside has done so,
// it only passes err on.
func deferred(msg *message.Message, err error, handler string, m *Metrics) error {
	rec := recordFrom(msg.Context())
	if rec != nil && (rec.settled || rec.gaveBack) {
		return err
	}
	if rec != nil {
		rec.gaveBack = true
		rec.outcome = outcomeOfGiveBack(err)
	}
	m.gaveBack(handler, err)
	_, after := DispositionOf(err)
	giveBack(msg, err, after)
	return err
}

func outcomeOfGiveBack(err error) outcome {
	if disposition, _ := DispositionOf(err); disposition == DispositionRedeliver {
		return outcomeRedelivered
	}
	return outcomeDeferred
}

// errDraining is what wait returns when the subscriber drains.
var errDraining = errors.New("subscriber is draining")

// wait sleeps for d, or until ctx ends or draining is closed; then it says why.
func wait(ctx context.Context, draining <-chan struct{}, d time.Duration) error {
	select {
	case <-draining:
		return errDraining
	default:
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-draining:
		return errDraining
	}
}

// stopped tells whether ctx ended the ordinary way, that is for a shutdown and
// not with a cause of its own such as a lost lease.
func stopped(ctx context.Context) bool {
	cause := context.Cause(ctx)
	//nolint:errorlint // a cause of its own may wrap one of these
	return cause == context.Canceled || cause == context.DeadlineExceeded
}

// drainingOf is the channel that closes when d's subscriber drains; nil, which
// blocks for ever, when nothing says so.
func drainingOf(d *Delivery) <-chan struct{} {
	if d == nil {
		return nil
	}
	return d.Draining()
}

// isDraining tells whether d's subscriber has begun to drain.
func isDraining(d *Delivery) bool {
	select {
	case <-drainingOf(d):
		return true
	default:
		return false
	}
}
