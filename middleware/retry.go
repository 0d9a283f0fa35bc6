package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Defaults of RetryConfig.
const (
	DefaultMaxAttempts     = 5
	DefaultBackoffBase     = 100 * time.Millisecond
	DefaultBackoffCap      = 30 * time.Second
	DefaultTransientBudget = time.Minute
)

// RetryConfig configures Retry. The zero value of a field means its default.
type RetryConfig struct {
	// MaxAttempts is how often the handler runs in one delivery; 1 means no
	// retry. Without Redeliver that is all. Default 5.
	MaxAttempts int
	// Backoff spaces the attempts. Default base 100 ms, cap 30 s.
	Backoff Backoff
	// MaxElapsed bounds the time from the start of the first attempt to the
	// start of the last: an attempt that would begin later is not made. The
	// first attempt always runs, and one that runs is never interrupted.
	// Default 0: no bound.
	MaxElapsed time.Duration
	// Redeliver is the second level: once a delivery's attempts are used up, or
	// MaxElapsed leaves no time for another, the message is given back to the
	// broker, which holds it for Redeliver[n-1] after the nth delivery (and up to a
	// tenth more, so that messages that failed together come apart). The attempts
	// then begin anew. A delivery that ended in a crash counts as one. After
	// len(Redeliver)+1 deliveries the error is final, so the handler runs at most
	// MaxAttempts x (len(Redeliver)+1) times, plus the attempts that a crash cut
	// short. It needs a subscriber that counts deliveries (Delivery.Count); with
	// another the first level is all. Default: none.
	Redeliver []time.Duration
	// Transient tells errors that are no fault of the message, such as a
	// serialization failure or a database that restarts. They consume no
	// attempt. Default: none.
	Transient func(error) bool
	// TransientBudget is how long transient failures in a row are retried in
	// process; then the message is given back to the broker, uncounted. Default
	// 1 min.
	TransientBudget time.Duration
	// Handler is the name in metrics and logs. Default: the router's handler
	// name.
	Handler string
	// Metrics may be nil.
	Metrics *Metrics
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// Clock defaults to time.Now.
	Clock func() time.Time
}

// WithDefaults returns c with its defaults filled in.
func (c RetryConfig) WithDefaults() RetryConfig {
	if c.MaxAttempts == 0 {
		c.MaxAttempts = DefaultMaxAttempts
	}
	c.Backoff = c.Backoff.orElse(Backoff{Base: DefaultBackoffBase, Cap: DefaultBackoffCap})
	if c.TransientBudget == 0 {
		c.TransientBudget = DefaultTransientBudget
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return c
}

// waits is the longest that all waits between attempts take together.
func (c RetryConfig) waits() time.Duration {
	var total time.Duration
	for n := 1; n < c.MaxAttempts; n++ {
		ceiling := c.Backoff.Ceiling(n)
		if ceiling == c.Backoff.Cap {
			left := time.Duration(c.MaxAttempts - n)
			if ceiling > 0 && left > (1<<63-1-total)/ceiling {
				return 1<<63 - 1
			}
			return total + left*ceiling
		}
		total = plus(total, ceiling)
	}
	return total
}

// Validate reports every field that can't work.
func (c RetryConfig) Validate() error {
	var errs []error
	if c.MaxAttempts < 1 {
		errs = append(errs, fmt.Errorf("middleware: Retry.MaxAttempts is %d: it must be 1 or more, 1 meaning no retry", c.MaxAttempts))
	}
	errs = append(errs, c.Backoff.validate("Retry.Backoff"))
	if c.MaxElapsed < 0 {
		errs = append(errs, fmt.Errorf("middleware: Retry.MaxElapsed is %s: it must not be negative, 0 meaning no bound", c.MaxElapsed))
	}
	for i, d := range c.Redeliver {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("middleware: Retry.Redeliver[%d] is %s: it must be above 0", i, d))
		}
	}
	if c.TransientBudget < 0 {
		errs = append(errs, fmt.Errorf("middleware: Retry.TransientBudget is %s: it must not be negative", c.TransientBudget))
	}
	return errors.Join(errs...)
}

// ExhaustedError is what Retry returns when it gives up on a plain error.
type ExhaustedError struct {
	// Attempts is how often the handler ran.
	Attempts int
	// Elapsed is the time from the first attempt's start.
	Elapsed time.Duration
	// Err is the last attempt's error.
	Err error
}

// Error says how often and how long, then the last error.
func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("gave up after %d attempts in %s: %v", e.Attempts, e.Elapsed.Round(time.Millisecond), e.Err)
}

// Unwrap returns the last attempt's error.
func (e *ExhaustedError) Unwrap() error { return e.Err }

// Retry runs the handler again when it returned a plain error, after a delay
// with full jitter, or after RetryAfter's delay where that is longer. A
// permanent error, a skip, a deferral and a redelivery are returned at once. Each attempt
// starts with the context that Retry received. A wait ends with the message's
// context and with the subscriber's drain: then the error is a deferral, since
// a shutdown is no failure.
//
// A panic passes through unless a Recover stands between Retry and the handler.
func Retry(cfg RetryConfig) (message.HandlerMiddleware, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var past history
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			rec, old := enter(msg)
			defer msg.SetContext(old)
			r := retrying{RetryConfig: &cfg, past: &past, msg: msg, ctx: msg.Context(), rec: rec, start: cfg.Clock()}
			if len(cfg.Redeliver) > 0 {
				past.recall(messageID(msg), rec)
			}
			return r.run(next)
		}
	}, nil
}

// retrying is the state of one delivery.
type retrying struct {
	*RetryConfig
	past  *history
	msg   *message.Message
	ctx   context.Context
	rec   *record
	start time.Time

	attempt        int
	transients     int
	transientSince time.Time
}

func (r *retrying) run(next message.HandlerFunc) ([]*message.Message, error) {
	for r.attempt = 1; ; {
		r.rec.attempt.Store(int32(r.attempt))
		produced, err := next(r.msg)
		r.msg.SetContext(r.ctx)
		if err == nil {
			r.forget(nil)
			return produced, nil
		}
		delay, final := r.judge(err)
		if final != nil {
			r.forget(final)
			return nil, final
		}
		handler := handlerName(r.Handler, r.ctx)
		r.Metrics.retried(handler)
		r.Logger.WarnContext(r.ctx, "attempt failed, will retry", withIDs(r.msg.UUID, r.msg, "handler", handler,
			"attempt", r.rec.attempt.Load(), "max_attempts", r.MaxAttempts, "delay", delay, "error", err)...)
		if stop := wait(r.ctx, drainingOf(DeliveryFrom(r.ctx)), delay); stop != nil {
			return nil, r.interrupted(stop, err)
		}
	}
}

// forget drops what is remembered of a message that does not come again.
func (r *retrying) forget(end error) {
	if len(r.Redeliver) == 0 {
		return
	}
	if d, _ := DispositionOf(end); end == nil || d != DispositionDefer && d != DispositionRedeliver {
		r.past.forget(messageID(r.msg))
	}
}

// judge decides on a failed attempt: the delay before the next one, or the error
// to end with.
func (r *retrying) judge(err error) (time.Duration, error) {
	now := r.Clock()
	disposition, after := DispositionOf(err)
	switch {
	case disposition == DispositionDefer || errors.Is(err, ErrShuttingDown):
		if disposition != DispositionDefer {
			err = Defer(err, 0)
		}
		return 0, deferred(r.msg, err, handlerName(r.Handler, r.ctx), r.Metrics)
	case disposition == DispositionSkip:
		return 0, err
	}
	r.rec.failed(now)
	switch disposition {
	case DispositionPermanent:
		return 0, err
	case DispositionRedeliver:
		return 0, r.redeliver(err)
	}
	if r.ctx.Err() != nil {
		return 0, r.interrupted(context.Cause(r.ctx), err)
	}
	if r.Transient != nil && r.Transient(err) {
		return r.judgeTransient(err, after, now)
	}
	r.transients = 0
	delay := max(r.Backoff.Delay(r.attempt), after)
	elapsed := now.Sub(r.start)
	if r.attempt >= r.MaxAttempts || (r.MaxElapsed > 0 && elapsed+delay > r.MaxElapsed) {
		return 0, r.exhausted(&ExhaustedError{Attempts: r.attempt, Elapsed: elapsed, Err: err}, after)
	}
	r.attempt++
	return delay, nil
}

// exhausted ends the delivery: the message comes again later, or this was the
// last time.
func (r *retrying) exhausted(err error, after time.Duration) error {
	d := DeliveryFrom(r.ctx)
	if d == nil || d.Count() < 1 || d.Count() > len(r.Redeliver) {
		return err
	}
	delay := max(r.Redeliver[d.Count()-1], after)
	return r.redeliver(Redeliver(fmt.Errorf("delivery %d of %d: %w", d.Count(), len(r.Redeliver)+1, err), delay+jitter(delay/10)))
}

func (r *retrying) redeliver(err error) error {
	r.past.keep(messageID(r.msg), r.rec)
	return deferred(r.msg, err, handlerName(r.Handler, r.ctx), r.Metrics)
}

func (r *retrying) judgeTransient(err error, after time.Duration, now time.Time) (time.Duration, error) {
	r.transients++
	if r.transients == 1 {
		r.transientSince = now
	}
	delay := max(r.Backoff.Delay(r.transients), after)
	if since := now.Sub(r.transientSince); since+delay > r.TransientBudget {
		err = Defer(fmt.Errorf("still failing after %s of transient errors: %w", since.Round(time.Millisecond), err),
			max(r.Backoff.Cap, after))
		return 0, deferred(r.msg, err, handlerName(r.Handler, r.ctx), r.Metrics)
	}
	return delay, nil
}

// interrupted makes the deferral for a delivery whose context ended or whose
// subscriber drains.
func (r *retrying) interrupted(stop, last error) error {
	why := stop
	if errors.Is(stop, errDraining) || stopped(r.ctx) {
		why = ErrShuttingDown
	}
	err := Defer(fmt.Errorf("%w: attempt %d of %d had failed: %w", why, r.rec.attempt.Load(), r.MaxAttempts, last), 0)
	return deferred(r.msg, err, handlerName(r.Handler, r.ctx), r.Metrics)
}

// AttemptFrom returns which attempt of this delivery runs, 1 for the first; 0
// outside of Retry. A transient error does not raise it.
func AttemptFrom(ctx context.Context) int {
	if rec := recordFrom(ctx); rec != nil {
		return int(rec.attempt.Load())
	}
	return 0
}
