package middleware

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Defaults of DedupConfig.
const (
	DefaultDedupLease        = time.Minute
	DefaultDedupRetention    = 7 * 24 * time.Hour
	DefaultDedupStoreTimeout = 5 * time.Second
)

const (
	// leaseMargin is how far a claim outlasts the handler's deadline.
	leaseMargin = 5 * time.Second
	// busyDelay is when a message comes again whose id another worker holds for
	// an unknown time; maxBusyDelay bounds a known one, since that worker will
	// most likely be done long before its lease ends.
	busyDelay    = time.Second
	maxBusyDelay = 5 * time.Second
	// settlePatience is how long a redelivery waits for the claim of the delivery
	// before it to be settled in this process.
	settlePatience = 250 * time.Millisecond
	// storeDelay is when a message comes again that found the store down.
	storeDelay = 5 * time.Second
	// maxKeyPart bounds each half of a key.
	maxKeyPart = 255
)

// ErrBusy is in the chain of the deferral of a message whose id another worker
// handles at the moment.
var ErrBusy = errors.New("message is being handled by another worker")

// ErrDedupStore is in the chain of the deferral of a message whose id could not
// be claimed because the store failed.
var ErrDedupStore = errors.New("dedup store failed")

// DedupConfig configures Dedup. The zero value of a field means its default.
type DedupConfig struct {
	// Store remembers the keys. Required.
	Store DedupStore
	// Key returns the message's idempotency key; "" means that it has none. Two
	// messages with one key are one. Default: the event id in the metadata, else
	// the message's UUID. Never the payload.
	Key func(*message.Message) string
	// Handler is the key's namespace: handlers that share a store don't see each
	// other's keys. Default: the router's handler name.
	Handler string
	// Lease is how long a claim holds when its process dies. It must exceed the
	// handler's timeout; a context deadline further away lengthens it. Default
	// 1 min.
	Lease time.Duration
	// Retention is how long a handled key is known. It must exceed the longest
	// redelivery. Default 7 days.
	Retention time.Duration
	// StoreTimeout bounds a commit or release, retries included. Default 5 s.
	StoreTimeout time.Duration
	// Metrics may be nil.
	Metrics *Metrics
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns c with its defaults filled in.
func (c DedupConfig) WithDefaults() DedupConfig {
	if c.Key == nil {
		c.Key = messageID
	}
	if c.Lease == 0 {
		c.Lease = DefaultDedupLease
	}
	if c.Retention == 0 {
		c.Retention = DefaultDedupRetention
	}
	if c.StoreTimeout == 0 {
		c.StoreTimeout = DefaultDedupStoreTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that can't work.
func (c DedupConfig) Validate() error {
	var errs []error
	if c.Store == nil {
		errs = append(errs, errors.New("middleware: Dedup.Store is nil: give it a DedupStore, such as NewMemoryDedup"))
	}
	if c.Lease < 0 {
		errs = append(errs, fmt.Errorf("middleware: Dedup.Lease is %s: it must not be negative", c.Lease))
	}
	if c.Retention < c.Lease {
		errs = append(errs, fmt.Errorf("middleware: Dedup.Retention is %s, below the lease %s: keep keys longer than the longest redelivery",
			c.Retention, c.Lease))
	}
	if c.StoreTimeout < 0 {
		errs = append(errs, fmt.Errorf("middleware: Dedup.StoreTimeout is %s: it must not be negative", c.StoreTimeout))
	}
	return errors.Join(errs...)
}

// Dedup runs the handler to success once for each message id: it claims the id,
// runs the handler, and commits the claim, or releases it when the handler
// failed, so that the next attempt runs. A copy of a handled message is acked
// and counted. One whose id another worker holds, or that finds the store down,
// is deferred. A message without any id is handled, counted and logged: nothing
// tells it from another.
//
// When the handler returns messages the claim is committed only once the router
// has published them and acked, and released when it nacked: a copy must not
// count as handled while what it caused may be lost.
//
// The claim is one write before the handler and one after. Where a crash between
// the handler's effect and the commit must not run it twice, write the id in the
// handler's own transaction instead.
func Dedup(cfg DedupConfig) (message.HandlerMiddleware, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	d := &dedup{DedupConfig: cfg}
	_, d.inProcess = cfg.Store.(*MemoryDedup)
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) { return d.handle(next, msg) }
	}, nil
}

type dedup struct {
	DedupConfig
	// inProcess: the store never blocks, so its calls need no deadline.
	inProcess bool
	// settling holds, by key, a channel that closes when commitOnAck is through.
	settling sync.Map
}

// settledNow waits a moment for this process's own commitOnAck of the key: a
// broker that redelivers at once can be faster. It tells whether there was one
// and it is through.
func (d *dedup) settledNow(ctx context.Context, key string) bool {
	done, ok := d.settling.Load(key)
	if !ok {
		return false
	}
	timer := time.NewTimer(settlePatience)
	defer timer.Stop()
	select {
	case <-done.(chan struct{}):
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (d *dedup) handle(next message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	handler := handlerName(d.Handler, ctx)
	id := d.Key(msg)
	if id == "" {
		d.Metrics.noID(handler)
		d.Logger.WarnContext(ctx, "message has no id and is not deduplicated", "handler", handler)
		return next(msg)
	}
	lease := d.Lease
	if deadline, ok := ctx.Deadline(); ok {
		lease = max(lease, time.Until(deadline)+leaseMargin)
	}
	key := dedupKey(handler, id)
	claim, err := d.Store.Claim(ctx, key, lease)
	if err == nil && claim.State == ClaimBusy && d.settledNow(ctx, key) {
		claim, err = d.Store.Claim(ctx, key, lease)
	}
	if err != nil {
		return nil, deferred(msg, d.claimFailed(ctx, id, err), handler, d.Metrics)
	}
	switch claim.State {
	case ClaimDone:
		d.Metrics.duplicate(handler)
		if rec := recordFrom(ctx); rec != nil {
			rec.outcome = outcomeDuplicate
		}
		d.Logger.DebugContext(ctx, "duplicate not run again", "handler", handler, "message_id", id)
		return nil, nil
	case ClaimBusy:
		delay := busyDelay
		if claim.RetryAfter > 0 {
			delay = min(claim.RetryAfter, maxBusyDelay)
		}
		return nil, deferred(msg, Defer(fmt.Errorf("%w: %s", ErrBusy, id), delay+jitter(delay/4)), handler, d.Metrics)
	}
	return d.run(next, msg, ctx, handler, claim, time.Now().Add(lease))
}

// claimFailed tells a store that is down from a delivery that is at its end.
func (d *dedup) claimFailed(ctx context.Context, id string, err error) error {
	if ctx.Err() != nil {
		why := context.Cause(ctx)
		if stopped(ctx) {
			why = ErrShuttingDown
		}
		return Defer(fmt.Errorf("%w: claim %s: %w", why, id, err), 0)
	}
	return Defer(fmt.Errorf("%w: claim %s: %w", ErrDedupStore, id, err), storeDelay/2+jitter(storeDelay/2))
}

func (d *dedup) run(next message.HandlerFunc, msg *message.Message, ctx context.Context,
	handler string, claim Claim, leaseEnd time.Time,
) (produced []*message.Message, err error) {
	keep := false
	defer func() {
		// Also on a panic and a Goexit.
		if !keep {
			d.release(ctx, handler, claim)
		}
	}()
	produced, err = next(msg)
	if err != nil {
		return nil, err
	}
	keep = true
	if len(produced) == 0 {
		d.commit(ctx, handler, claim)
		return nil, nil
	}
	done := make(chan struct{})
	d.settling.Store(claim.Key, done)
	go func() {
		defer close(done)
		defer d.settling.CompareAndDelete(claim.Key, done)
		d.commitOnAck(ctx, msg, handler, claim, time.Until(leaseEnd))
	}()
	return produced, nil
}

// commitOnAck waits for the router's word. A message that is never settled
// leaves its claim to the lease.
func (d *dedup) commitOnAck(ctx context.Context, msg *message.Message, handler string, claim Claim, lease time.Duration) {
	timer := time.NewTimer(lease)
	defer timer.Stop()
	select {
	case <-msg.Acked():
		d.commit(ctx, handler, claim)
	case <-msg.Nacked():
		d.release(ctx, handler, claim)
	case <-timer.C:
	}
}

// commit records the success. The handler's effects are done, so a commit that
// fails for good does not fail the message: running it again would repeat them
// for certain, while a forgotten key repeats them only if another copy comes.
func (d *dedup) commit(ctx context.Context, handler string, claim Claim) {
	err := d.try(ctx, func(ctx context.Context) error { return d.Store.Commit(ctx, claim, d.Retention) })
	switch {
	case errors.Is(err, ErrClaimLost):
		d.Logger.WarnContext(ctx, "handler outlived its claim; another worker may have run it too",
			"handler", handler, "key", claim.Key, "lease", d.Lease)
	case err != nil:
		d.Logger.ErrorContext(ctx, "handled message not recorded; a copy of it would run again",
			"handler", handler, "key", claim.Key, "error", err)
	}
}

func (d *dedup) release(ctx context.Context, handler string, claim Claim) {
	err := d.try(ctx, func(ctx context.Context) error { return d.Store.Release(ctx, claim) })
	if err != nil && !errors.Is(err, ErrClaimLost) {
		d.Logger.WarnContext(ctx, "claim not released; the message waits for its lease",
			"handler", handler, "key", claim.Key, "lease", d.Lease, "error", err)
	}
}

// try calls f on a context that outlives the message's, again after a failure,
// within StoreTimeout.
func (d *dedup) try(ctx context.Context, f func(context.Context) error) error {
	ctx = context.WithoutCancel(ctx)
	if d.inProcess {
		return f(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, d.StoreTimeout)
	defer cancel()
	backoff := Backoff{Base: 20 * time.Millisecond, Cap: time.Second}
	for n := 1; ; n++ {
		err := f(ctx)
		if err == nil || errors.Is(err, ErrClaimLost) || wait(ctx, nil, backoff.Delay(n)) != nil {
			return err
		}
	}
}

// dedupKey is "handler/id". A half that a store could not hold, or that would
// blur the border, is escaped or replaced by its hash.
func dedupKey(handler, id string) string {
	return keyPart(url.PathEscape(handler)) + "/" + keyPart(id)
}

func keyPart(s string) string {
	plain := len(s) <= maxKeyPart
	for i := 0; plain && i < len(s); i++ {
		plain = s[i] >= 0x20 && s[i] < 0x7f
	}
	if plain {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}
