package middleware

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
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

// Dedup runs the handler to success once for each message id: it claims the id,
// runs the handler, and commits the claim, or releases it when the handler
// failed, so that the next attempt runs. A copy of a handled message is acked
// and counted. One whose id another worker holds, or that finds the store down,
// is deferred. A message without any id is handled, counted and logged: nothing
// tells it from another.
//
// When the handler returns messages the claim is committed only once the router
// has published them and acked, and released when it nacked: a copy must not
// count as handled while what it caused may be lost. With KeepResult the messages
// are committed with the claim instead, before the router publishes them: the
// handler is not run again when that fails, and each copy of the message publishes
// what the first one produced. A worker whose claim another took over meanwhile
// publishes nothing: its message is deferred, and comes back as a copy.
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
		produced, err := kept(claim)
		if err != nil {
			return nil, err
		}
		d.Metrics.duplicate(handler)
		if rec := recordFrom(ctx); rec != nil {
			rec.outcome = outcomeDuplicate
		}
		d.Logger.DebugContext(ctx, "duplicate not run again", "handler", handler, "message_id", id, "published_again", len(produced))
		return produced, nil
	case ClaimBusy:
		delay := busyDelay
		if claim.RetryAfter > 0 {
			delay = min(claim.RetryAfter, maxBusyDelay)
		}
		return nil, deferred(msg, Defer(fmt.Errorf("%w: %s", ErrBusy, id), delay+jitter(delay/4)), handler, d.Metrics)
	}
	return d.run(next, msg, ctx, handler, id, claim, time.Now().Add(lease))
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
	handler, id string, claim Claim, leaseEnd time.Time,
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
		d.commit(ctx, handler, claim, nil)
		return nil, nil
	}
	var result []byte
	if d.KeepResult {
		var committed bool
		if committed, result, err = d.keepResult(ctx, msg, handler, id, claim, produced); err != nil {
			return nil, err
		}
		if committed {
			return produced, nil
		}
	}
	done := make(chan struct{})
	d.settling.Store(claim.Key, done)
	go func() {
		defer close(done)
		defer d.settling.CompareAndDelete(claim.Key, done)
		d.commitOnAck(ctx, msg, handler, claim, result, time.Until(leaseEnd))
	}()
	return produced, nil
}

// commitOnAck waits for the router's word. A message that is never settled
// leaves its claim to the lease.
func (d *dedup) commitOnAck(ctx context.Context, msg *message.Message, handler string, claim Claim, result []byte, lease time.Duration) {
	timer := time.NewTimer(lease)
	defer timer.Stop()
	select {
	case <-msg.Acked():
		d.commit(ctx, handler, claim, result)
	case <-msg.Nacked():
		d.release(ctx, handler, claim)
	case <-timer.C:
	}
}

// commit records the success. The handler's effects are done, so a commit that
// fails for good does not fail the message: running it again would repeat them
// for certain, while a forgotten key repeats them only if another copy comes.
func (d *dedup) commit(ctx context.Context, handler string, claim Claim, result []byte) {
	err := d.try(ctx, func(ctx context.Context) error {
		if store, ok := d.Store.(ResultStore); ok && len(result) > 0 {
			return store.CommitResult(ctx, claim, d.Retention, result)
		}
		return d.Store.Commit(ctx, claim, d.Retention)
	})
	switch {
	case errors.Is(err, ErrClaimLost):
		d.outlived(ctx, handler, claim)
	case err != nil:
		d.Logger.ErrorContext(ctx, "handled message not recorded; a copy of it would run again",
			"handler", handler, "key", claim.Key, "error", err)
	}
}

func (d *dedup) outlived(ctx context.Context, handler string, claim Claim) {
	d.Logger.WarnContext(ctx, "handler outlived its claim; another worker may have run it too",
		"handler", handler, "key", claim.Key, "lease", d.Lease)
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
		if err == nil || errors.Is(err, ErrClaimLost) || errors.Is(err, ErrResultTooLarge) || wait(ctx, nil, backoff.Delay(n)) != nil {
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
