package framework

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/outbox"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// scope is where emitted events come from: an attempt of a handler, or a piece
// of work outside of one. It counts the drafts of each type and key, so that a
// second attempt gives its events the ids of the first.
type scope struct {
	app *App
	// parent is the id of the event being handled; "" outside of a handler.
	parent string
	label  string
	inTx   bool

	mu    sync.Mutex
	count map[draftKey]int
}

type draftKey struct{ typ, key string }

type scopeKey struct{}

func withScope(ctx context.Context, s *scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

func scopeFrom(ctx context.Context) *scope {
	s, _ := ctx.Value(scopeKey{}).(*scope)
	return s
}

// handlerScope begins one attempt, or one phase of it. The phase keeps the ids
// of Prepare's events apart from those of Commit's.
func (a *App) handlerScope(h *handler, env events.Envelope, phase string) *scope {
	label := h.name
	if phase != "" {
		label += "/" + phase
	}
	return &scope{app: a, parent: env.ID, label: label, count: map[draftKey]int{}}
}

// fork copies the scope for a transaction that may be replayed.
func (s *scope) fork() *scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := make(map[draftKey]int, len(s.count))
	for k, n := range s.count {
		count[k] = n
	}
	return &scope{app: s.app, parent: s.parent, label: s.label, count: count}
}

// join takes over the counts of a fork whose transaction has committed.
func (s *scope) join(fork *scope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, n := range fork.count {
		s.count[k] = max(s.count[k], n)
	}
}

// seal turns drafts into outbox messages.
func (s *scope) seal(ctx context.Context, drafts []events.Draft) ([]outbox.Message, error) {
	corr := middleware.CorrelationFrom(ctx)
	traceparent, tracestate := middleware.TraceFrom(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	msgs := make([]outbox.Message, 0, len(drafts))
	for _, d := range drafts {
		if err := d.Err(); err != nil {
			return nil, Permanent(fmt.Errorf("framework: emit %s: %w", d.Type, err))
		}
		if _, ok := s.app.registry.Lookup(d.Type, d.Version); !ok {
			return nil, Permanent(fmt.Errorf("framework: emit %s %s: service %q has not registered that type: pass its descriptor to App.Emits", d.Type, d.Version, s.app.cfg.Service))
		}
		st := events.Stamp{
			Source:        s.app.cfg.Service,
			CorrelationID: corr.CorrelationID,
			CausationID:   corr.CausationID,
			TraceParent:   traceparent,
			TraceState:    tracestate,
			Now:           s.app.now(),
		}
		if s.parent != "" {
			at := draftKey{d.Type, d.Key}
			st.ID = events.StableID(s.parent, s.label, d.Type, d.Key, s.count[at])
			st.CausationID = s.parent
			s.count[at]++
		} else {
			st.ID = events.NewID()
		}
		if st.CorrelationID == "" {
			st.CorrelationID = st.ID
		}
		env, err := d.Seal(st)
		if err != nil {
			return nil, Permanent(fmt.Errorf("framework: emit %s: %w", d.Type, err))
		}
		m, err := toMessage(env)
		if err != nil {
			return nil, Permanent(fmt.Errorf("framework: emit %s: %w", d.Type, err))
		}
		m.SetContext(ctx)
		msgs = append(msgs, outbox.Message{Topic: d.Topic, Message: m})
	}
	return msgs, nil
}

func toMessage(env events.Envelope) (*message.Message, error) {
	payload, err := env.Encode()
	if err != nil {
		return nil, err
	}
	m := message.NewMessage(env.ID, payload)
	for k, v := range env.Headers() {
		m.Metadata.Set(k, v)
	}
	return m, nil
}

var errNoScope = errors.New("framework: the context knows no App: use the one that a handler, App.Tx or App.HTTP's request gave you, or App.Context")

// Emit writes events to the outbox in tx: they are published once tx commits,
// and never if it does not. Inside a handler each event's id follows from the
// handled event's id, the handler's name, the new event's type and key and how
// many of that type and key the attempt has emitted: a repeated attempt emits
// the same ids. Correlation, causation and trace come from ctx, which must be
// that of a handler, of App.Tx, of a request under App.HTTP, or from
// App.Context.
//
// A type that the service has not registered (App.Emits, or by handling it) is
// refused, as are a draft whose data did not validate and a nil tx.
func Emit(ctx context.Context, tx *sql.Tx, drafts ...events.Draft) error {
	s := scopeFrom(ctx)
	if s == nil {
		return errNoScope
	}
	if tx == nil {
		return Permanent(errors.New("framework: Emit without a transaction: emit in HandleTx or App.Tx, or use Publish where there is none"))
	}
	if s.app.writer == nil {
		return Permanent(fmt.Errorf("framework: service %q has no outbox: set Config.DB, or use Publish", s.app.cfg.Service))
	}
	if len(drafts) == 0 {
		return nil
	}
	msgs, err := s.seal(ctx, drafts)
	if err != nil {
		return err
	}
	if err := s.app.writer.Write(ctx, tx, msgs...); err != nil {
		return fmt.Errorf("framework: write to the outbox: %w", err)
	}
	return nil
}

// Publish publishes events where no transaction is at hand: through the outbox
// in a transaction of its own where the service has a database, else straight to
// the broker. Ids, correlation and refusals are those of Emit. Inside HandleTx
// and App.Tx it is refused, since it would wait for the transaction around it.
func Publish(ctx context.Context, drafts ...events.Draft) error {
	s := scopeFrom(ctx)
	if s == nil {
		return errNoScope
	}
	if s.inTx {
		return Permanent(errors.New("framework: Publish inside a transaction: use Emit with the transaction that you were given"))
	}
	if s.app.writer != nil {
		return s.app.Tx(ctx, func(ctx context.Context, tx *sql.Tx) error { return Emit(ctx, tx, drafts...) })
	}
	msgs, err := s.seal(ctx, drafts)
	if err != nil {
		return err
	}
	// Consecutive events of one topic go in one batch, which keeps their order.
	for len(msgs) > 0 {
		topic := msgs[0].Topic
		var batch []*message.Message
		for len(msgs) > 0 && msgs[0].Topic == topic {
			batch, msgs = append(batch, msgs[0].Message), msgs[1:]
		}
		if err := s.app.cfg.Broker.Publisher().PublishBatch(ctx, topic, batch); err != nil {
			return fmt.Errorf("framework: publish: %w", err)
		}
	}
	return nil
}

// Context returns ctx with what Emit and Publish need, for code that runs
// neither in a handler nor under App.HTTP: a job, a command.
func (a *App) Context(ctx context.Context) context.Context {
	if s := scopeFrom(ctx); s != nil && s.app == a {
		return ctx
	}
	return withScope(ctx, &scope{app: a, count: map[draftKey]int{}})
}

// Tx runs fn in a transaction and replays the whole of it on a serialization
// failure, a deadlock or a busy database, so fn must keep no state outside of
// tx. The context that fn gets is the one to give to Emit. After the commit the
// relay is woken. Inside HandleTx or another Tx it is refused.
func (a *App) Tx(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	ctx = a.Context(ctx)
	base := scopeFrom(ctx)
	if base.inTx {
		return Permanent(errors.New("framework: App.Tx inside a transaction: use the one that you were given"))
	}
	if a.cfg.DB == nil {
		return Permanent(fmt.Errorf("framework: App.Tx: service %q has no database: set Config.DB", a.cfg.Service))
	}
	var last *scope
	err := a.inTx(ctx, func() *scope { last = base.fork(); return last }, fn)
	if err == nil && last != nil {
		base.join(last)
	}
	return err
}

// isolation is read committed everywhere but on SQLite, which has one of its own.
// MySQL's default locks the gaps beside a row, where others insert.
func isolation(d sqltx.Dialect) sql.IsolationLevel {
	if d == sqltx.MySQL {
		return sql.LevelReadCommitted
	}
	return sql.LevelDefault
}

// inTx runs fn in a replayed transaction, with a new scope for each run.
func (a *App) inTx(ctx context.Context, begin func() *scope, fn func(context.Context, *sql.Tx) error) error {
	opts := sqltx.Options{Dialect: a.cfg.Dialect, Isolation: isolation(a.cfg.Dialect), OnReplay: func(ctx context.Context, attempt int, err error) {
		a.logger.DebugContext(ctx, "transaction replayed", "attempt", attempt, "error", err)
	}}
	err := sqltx.Run(ctx, a.cfg.DB, opts, func(ctx context.Context, tx *sql.Tx) error {
		s := begin()
		s.inTx = true
		err := fn(withScope(ctx, s), tx)
		if err == nil {
			err = trialEnd(ctx)
		}
		if err == nil || ofDatabase(ctx, tx, err) {
			return err
		}
		return &foreignError{err}
	})
	var foreign *foreignError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &foreign):
		return foreign.err
	case sqltx.IsTransient(err) || errors.Is(err, sqltx.ErrCommitUnknown):
		return &dbError{err}
	default:
		return err
	}
}
