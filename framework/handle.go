package framework

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/internal/failpoint"
	"github.com/headrace-go/headrace/framework/parked"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

type kind string

const (
	kindPlain kind = "handle"
	kindTx    kind = "handle_tx"
	kindCall  kind = "handle_call"
)

// handler is one registered handler.
type handler struct {
	name   string
	group  string
	kind   kind
	event  events.Descriptor
	policy policy
	// code names the fields of policy that options set.
	code map[string]bool
	// invoke runs one attempt.
	invoke func(ctx context.Context, env events.Envelope) error
	stack  *middleware.Stack
	crew   *crew
	// parked keeps the lines of keys that are held up; nil without ParkKey.
	parked *parked.Store
	// gate pauses both subscriptions while the breaker is open; nil without one.
	gate *broker.Gate
	// inFlight counts the messages that are being handled.
	inFlight atomic.Int64
}

// Handle registers fn for the events of type t under name, which is unique in
// the service and stays: it names the consumer group, the dead letters and the
// idempotency keys. Fn runs outside of any transaction; an event that it handled
// is known by its id in the database where there is one, else in
// Config.DedupStore, else in this process's memory.
//
// Use it where the effect lies elsewhere and is idempotent by the event's id:
// between the effect and the key's commit a crash runs fn again.
//
// A fault in the arguments is reported by Validate and Run.
func Handle[T any](a *App, t events.Type[T], name string, fn func(context.Context, events.Event[T]) error, opts ...HandlerOption) {
	h := a.register(kindPlain, t.Descriptor(), name, fn == nil, opts)
	h.invoke = func(ctx context.Context, env events.Envelope) error {
		e, err := open(t, env)
		if err != nil {
			return err
		}
		s := a.handlerScope(h, env, "")
		return fn(withScope(ctx, s), e)
	}
}

// HandleTx registers fn as Handle does, and runs it in a transaction in which
// the inbox row, what fn writes and what it emits commit together, or not at
// all: each event takes effect once however often it is delivered. A
// serialization failure or a deadlock replays the whole of fn and consumes no
// attempt, so fn must keep no state outside of tx.
//
// Fn must not call other systems: the transaction, and on SQLite every writer,
// waits for them. HandleCall is for that.
func HandleTx[T any](a *App, t events.Type[T], name string, fn func(context.Context, *sql.Tx, events.Event[T]) error, opts ...HandlerOption) {
	h := a.register(kindTx, t.Descriptor(), name, fn == nil, opts)
	h.invoke = func(ctx context.Context, env events.Envelope) error {
		e, err := open(t, env)
		if err != nil {
			return err
		}
		fresh := true
		err = a.inTx(ctx, func() *scope { return a.handlerScope(h, env, "") }, func(ctx context.Context, tx *sql.Tx) error {
			var err error
			if fresh, err = a.takeInboxRow(ctx, tx, h, env); err != nil || !fresh {
				return err
			}
			return fn(ctx, tx, e)
		})
		return a.settled(ctx, h, env, fresh, err)
	}
}

// CallHandler handles an event by calling another system, with no transaction
// open while that one thinks.
type CallHandler[T, R any] interface {
	// Prepare runs in a short transaction of its own, before every call: it
	// writes the intent, and decides. Skip leaves the event alone and rolls back;
	// ErrDone commits what Prepare wrote and emitted and ends the handling. It
	// must be idempotent, since each attempt runs it.
	Prepare(ctx context.Context, tx *sql.Tx, e events.Event[T]) error
	// Call talks to the other system, without a transaction. It must be
	// idempotent by e.ID: a crash before Commit runs it again.
	Call(ctx context.Context, e events.Event[T]) (R, error)
	// Commit writes the result and emits events in one transaction with the
	// inbox row. It may be replayed, and must keep no state outside of tx.
	Commit(ctx context.Context, tx *sql.Tx, e events.Event[T], r R) error
}

// HandleCall registers h as HandleTx does. An event whose inbox row exists is
// done: nothing of h runs.
func HandleCall[T, R any](a *App, t events.Type[T], name string, ch CallHandler[T, R], opts ...HandlerOption) {
	h := a.register(kindCall, t.Descriptor(), name, ch == nil, opts)
	h.invoke = func(ctx context.Context, env events.Envelope) error {
		e, err := open(t, env)
		if err != nil {
			return err
		}
		fresh, done, err := a.prepareCall(ctx, h, env, func(ctx context.Context, tx *sql.Tx) error { return ch.Prepare(ctx, tx, e) })
		if err != nil || !fresh || done {
			return a.settled(ctx, h, env, fresh, err)
		}
		r, err := ch.Call(withScope(ctx, a.handlerScope(h, env, "call")), e)
		if err != nil {
			return err
		}
		failpoint.Hit("handler.called." + h.name)
		err = a.inTx(ctx, func() *scope { return a.handlerScope(h, env, "") }, func(ctx context.Context, tx *sql.Tx) error {
			var err error
			if fresh, err = a.takeInboxRow(ctx, tx, h, env); err != nil || !fresh {
				return err
			}
			return ch.Commit(ctx, tx, e, r)
		})
		return a.settled(ctx, h, env, fresh, err)
	}
}

// prepareCall runs a CallHandler's first step. Fresh is false when the event
// was handled before; done is true when Prepare ended the handling.
func (a *App) prepareCall(ctx context.Context, h *handler, env events.Envelope, prepare func(context.Context, *sql.Tx) error) (fresh, done bool, err error) {
	err = a.inTx(ctx, func() *scope { return a.handlerScope(h, env, "prepare") }, func(ctx context.Context, tx *sql.Tx) error {
		done = false
		seen, err := a.seen(ctx, tx, h, env)
		if fresh = !seen; err != nil || seen {
			return err
		}
		err = prepare(ctx, tx)
		if !errors.Is(err, ErrDone) {
			return err
		}
		done = true
		fresh, err = a.takeInboxRow(ctx, tx, h, env)
		return err
	})
	return fresh, done, err
}

// settled ends an attempt whose transaction has committed or failed.
func (a *App) settled(ctx context.Context, h *handler, env events.Envelope, fresh bool, err error) error {
	if err != nil {
		return err
	}
	if !fresh {
		a.metrics.MarkDuplicate(ctx, h.name)
		a.logger.DebugContext(ctx, "event was handled before", "handler", h.name, "event_id", env.ID)
		return nil
	}
	failpoint.Hit("handler.committed")
	failpoint.Hit("handler.committed." + h.name)
	return nil
}

func open[T any](t events.Type[T], env events.Envelope) (events.Event[T], error) {
	e, err := t.Decode(env)
	if err != nil {
		return e, Permanent(fmt.Errorf("decode event %s: %w", env.ID, err))
	}
	return e, nil
}
