package framework_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

func TestHandleTxCommitsEffectInboxRowAndEventsTogether(t *testing.T) {
	t.Parallel()
	f := setup(t)
	framework.HandleTx(f.app, made, "count", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
		if err := write(ctx, tx, e); err != nil {
			return err
		}
		return framework.Emit(ctx, tx, counted.New(e.Data.Name, e.Data))
	})
	f.app.Emits(counted.Descriptor())
	f.start()

	sent := f.Publish(made.New("a", thing{Name: "a", N: 1}))[0]
	got := frameworktest.Await(f.System, counted, nil)
	require.Equal(t, "things", got.Source)
	require.Equal(t, sent.ID, got.Metadata.CausationID)
	require.Equal(t, sent.Metadata.CorrelationID, got.Metadata.CorrelationID)
	require.Equal(t, "a", got.Metadata.OrderingKey)

	for range 3 {
		f.Send(made.Topic(), sent)
	}
	f.Idle()
	require.Equal(t, 1, f.effects(), "copies of an event take effect once")
	require.Len(t, frameworktest.Published(f.System, counted), 1)
}

func TestHandleTxFailureLeavesNothing(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var calls atomic.Int32
	framework.HandleTx(f.app, made, "count", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
		calls.Add(1)
		if err := write(ctx, tx, e); err != nil {
			return err
		}
		if err := framework.Emit(ctx, tx, counted.New(e.Data.Name, e.Data)); err != nil {
			return err
		}
		return errBroken
	}, framework.MaxAttempts(3))
	f.app.Emits(counted.Descriptor())
	f.start()

	sent := f.Publish(made.New("a", thing{Name: "a"}))[0]
	dead := f.AwaitDeadLetter("things.count", nil)
	f.Idle()
	require.EqualValues(t, 3, calls.Load())
	require.Equal(t, middleware.ReasonExhausted, dead.Reason)
	require.Contains(t, dead.Error, "broken")
	require.Equal(t, sent.ID, dead.Message.Metadata.Get(events.KeyID))
	require.Equal(t, "things.count", dead.Message.Metadata.Get(middleware.DeadLetterGroup))
	require.Zero(t, f.effects())
	require.Empty(t, frameworktest.Published(f.System, counted))
	require.Zero(t, f.count("SELECT count(*) FROM headrace_inbox"))
}

// B29: a handler emits two events and the second attempt emits them again: the
// ids are those of the first, in the outbox and straight to the broker.
func TestEmittedIDsAreStableAcrossAttempts_B29(t *testing.T) {
	t.Parallel()
	for name, configures := range map[string][]configure{"outbox": nil, "broker": {withoutDB}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := frameworktest.New(t)
			flaky := &flakyBroker{Broker: s.Broker(), topic: shipped.Topic(), failures: 1}
			f := setupOn(t, s, append(configures, func(c *framework.Config) { c.Broker = flaky })...)
			var attempts atomic.Int32
			framework.Handle(f.app, made, "fan-out", func(ctx context.Context, e events.Event[thing]) error {
				attempts.Add(1)
				if err := framework.Publish(ctx, counted.New("k", e.Data), counted.New("k", e.Data)); err != nil {
					return err
				}
				if err := framework.Publish(ctx, shipped.New("k", e.Data)); err != nil {
					return err
				}
				if attempts.Load() == 1 {
					return errBroken // the outbox took what the broker refused
				}
				return nil
			})
			f.app.Emits(counted.Descriptor(), shipped.Descriptor())
			f.start()
			f.Publish(made.New("k", thing{Name: "k"}))
			frameworktest.Await(f.System, shipped, nil)
			f.Idle()
			require.EqualValues(t, 2, attempts.Load())

			ids := map[string]int{}
			for _, e := range frameworktest.Published(f.System, counted) {
				ids[e.ID]++
			}
			require.Len(t, ids, 2, "two events of one type and key have two ids, and the repeats have the same: %v", ids)
			for id, n := range ids {
				require.Equal(t, 2, n, id)
			}
		})
	}
}

// B29: two different messages without an id in their headers are two messages.
func TestMessagesWithoutHeadersAreToldApartByTheirEnvelope_B29(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var handled atomic.Int32
	framework.Handle(f.app, made, "count", func(context.Context, events.Event[thing]) error {
		handled.Add(1)
		return nil
	}, framework.Concurrency(1)) // side by side a copy would wait for the first one's claim
	f.start()
	for i := range 2 {
		env, err := made.New("k", thing{Name: "k"}).Seal(events.Stamp{ID: fmt.Sprintf("foreign-%d", i), Source: "elsewhere"})
		require.NoError(t, err)
		payload, err := env.Encode()
		require.NoError(t, err)
		for range 2 {
			f.SendRaw(made.Topic(), message.NewMessage("same-uuid", payload))
		}
	}
	f.Idle()
	require.EqualValues(t, 2, handled.Load())
}

func TestHandleRunsOnceForCopies(t *testing.T) {
	t.Parallel()
	for name, configures := range map[string][]configure{"claims in SQL": nil, "claims in memory": {withoutDB}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, configures...)
			var handled, plain atomic.Int32
			framework.Handle(f.app, made, "once", func(context.Context, events.Event[thing]) error {
				handled.Add(1)
				return nil
			}, framework.Concurrency(1))
			framework.Handle(f.app, made, "every-time", func(context.Context, events.Event[thing]) error {
				plain.Add(1)
				return nil
			}, framework.NoDedup())
			f.start()
			sent := f.Publish(made.New("a", thing{Name: "a"}))[0]
			f.Send(made.Topic(), sent)
			f.Idle()
			require.EqualValues(t, 1, handled.Load())
			require.EqualValues(t, 2, plain.Load())
		})
	}
}

type sqlState string

func (e sqlState) Error() string    { return "Serialisierungsfehler" } // the server speaks another language
func (e sqlState) SQLState() string { return string(e) }

// B40: the whole transaction is replayed and no attempt is consumed.
func TestConflictsReplayTheTransaction_B40(t *testing.T) {
	t.Parallel()
	for _, state := range []sqlState{"40001", "40P01"} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			var calls atomic.Int32
			var attempts sync.Map
			framework.HandleTx(f.app, made, "count", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
				attempts.Store(middleware.AttemptFrom(ctx), true)
				if err := write(ctx, tx, e); err != nil {
					return err
				}
				if err := framework.Emit(ctx, tx, counted.New("k", e.Data)); err != nil {
					return err
				}
				if calls.Add(1) <= 7 {
					return fmt.Errorf("update stock: %w", state)
				}
				return nil
			}, framework.MaxAttempts(1))
			f.app.Emits(counted.Descriptor())
			f.start()
			f.Publish(made.New("k", thing{Name: "k"}))
			f.Idle()
			require.EqualValues(t, 8, calls.Load())
			require.Equal(t, 1, f.effects())
			require.Len(t, frameworktest.Published(f.System, counted), 1)
			require.Empty(t, f.DeadLetters("things.count"))
			n := 0
			attempts.Range(func(attempt, _ any) bool { n++; return attempt == 1 })
			require.Equal(t, 1, n, "every replay was attempt 1")
		})
	}
}

// B40: writers that really contend for an SQLite file, and none of them loses an
// attempt.
func TestBusyDatabaseConsumesNoAttempt_B40(t *testing.T) {
	t.Parallel()
	f := setup(t)
	framework.HandleTx(f.app, made, "count", write, framework.MaxAttempts(1), framework.Concurrency(20))
	f.start()
	const n = 100
	for i := range n {
		f.Publish(made.New(fmt.Sprint(i), thing{Name: "x", N: i}))
	}
	f.Idle()
	require.Equal(t, n, f.effects())
	require.Empty(t, f.DeadLetters("things.count"))
}

// B40, the other side: a gateway's refused connection looks like the database's
// to an unwary check. It consumes attempts, and the transaction isn't replayed
// for it.
func TestAGatewaysNetworkErrorConsumesAttempts_B40(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	f := setup(t)
	var calls, called atomic.Int32
	framework.HandleTx(f.app, made, "in-tx", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
		calls.Add(1)
		return fmt.Errorf("charge: %w", refused)
	}, framework.MaxAttempts(3))
	framework.HandleCall(f.app, made, "in-call", call{
		call: func(context.Context, events.Event[thing]) (string, error) {
			called.Add(1)
			return "", fmt.Errorf("charge: %w", refused)
		},
	}, framework.MaxAttempts(3))
	f.start()
	f.Publish(made.New("k", thing{Name: "k"}))
	require.Equal(t, middleware.ReasonExhausted, f.AwaitDeadLetter("things.in-tx", nil).Reason)
	require.Equal(t, middleware.ReasonExhausted, f.AwaitDeadLetter("things.in-call", nil).Reason)
	require.EqualValues(t, 3, calls.Load())
	require.EqualValues(t, 3, called.Load())
}

// call is a CallHandler out of functions; nil ones do nothing.
type call struct {
	prepare func(context.Context, *sql.Tx, events.Event[thing]) error
	call    func(context.Context, events.Event[thing]) (string, error)
	commit  func(context.Context, *sql.Tx, events.Event[thing], string) error
}

func (c call) Prepare(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
	if c.prepare == nil {
		return nil
	}
	return c.prepare(ctx, tx, e)
}

func (c call) Call(ctx context.Context, e events.Event[thing]) (string, error) {
	if c.call == nil {
		return "", nil
	}
	return c.call(ctx, e)
}

func (c call) Commit(ctx context.Context, tx *sql.Tx, e events.Event[thing], r string) error {
	if c.commit == nil {
		return nil
	}
	return c.commit(ctx, tx, e, r)
}

func TestHandleCallStepsAndCopies(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var steps sync.Map
	step := func(name string) {
		n, _ := steps.LoadOrStore(name, new(atomic.Int32))
		n.(*atomic.Int32).Add(1)
	}
	framework.HandleCall(f.app, made, "charge", call{
		prepare: func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
			step("prepare")
			return framework.Emit(ctx, tx, counted.New("k", e.Data))
		},
		call: func(ctx context.Context, e events.Event[thing]) (string, error) {
			step("call")
			// No transaction is open: a write from outside gets through at once.
			return e.ID, f.app.Tx(ctx, func(ctx context.Context, tx *sql.Tx) error { return nil })
		},
		commit: func(ctx context.Context, tx *sql.Tx, e events.Event[thing], r string) error {
			step("commit")
			if r != e.ID {
				return framework.Permanent(fmt.Errorf("result %q", r))
			}
			if err := write(ctx, tx, e); err != nil {
				return err
			}
			return framework.Emit(ctx, tx, counted.New("k", e.Data), shipped.New("k", e.Data))
		},
	})
	f.app.Emits(counted.Descriptor(), shipped.Descriptor())
	f.start()
	sent := f.Publish(made.New("k", thing{Name: "k"}))[0]
	frameworktest.Await(f.System, shipped, nil)
	f.Send(made.Topic(), sent)
	f.Idle()
	for _, name := range []string{"prepare", "call", "commit"} {
		n, ok := steps.Load(name)
		require.True(t, ok, name)
		require.EqualValues(t, 1, n.(*atomic.Int32).Load(), name)
	}
	require.Equal(t, 1, f.effects())
	both := frameworktest.Published(f.System, counted)
	require.Len(t, both, 2)
	require.NotEqual(t, both[0].ID, both[1].ID, "Prepare's event and Commit's are two")
	require.Empty(t, f.DeadLetters("things.charge"))
}

func TestHandleCallPrepareDecides(t *testing.T) {
	t.Parallel()
	f := setup(t)
	framework.HandleCall(f.app, made, "charge", call{
		prepare: func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
			if err := write(ctx, tx, e); err != nil {
				return err
			}
			switch e.Data.Name {
			case "done":
				return fmt.Errorf("paid already: %w", framework.ErrDone)
			case "skip":
				return framework.Skip(errors.New("not ours"))
			}
			return nil
		},
		call: func(ctx context.Context, e events.Event[thing]) (string, error) {
			return "", framework.Permanent(errors.New("called"))
		},
	})
	f.start()
	done := f.Publish(made.New("1", thing{Name: "done"}))[0]
	f.Publish(made.New("2", thing{Name: "skip"}))
	f.Idle()
	f.Send(made.Topic(), done)
	f.Idle()
	require.Empty(t, f.DeadLetters("things.charge"), "Call must not run")
	require.Equal(t, 1, f.effects(), "ErrDone commits, Skip rolls back")
	require.Equal(t, 1, f.count("SELECT count(*) FROM headrace_inbox"))
}

func TestDispositions(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var calls atomic.Int32
	framework.Handle(f.app, made, "dispose", func(ctx context.Context, e events.Event[thing]) error {
		calls.Add(1)
		switch e.Data.Name {
		case "permanent":
			return fmt.Errorf("no: %w", framework.Permanent(errBroken))
		case "skip":
			return framework.Skip(errBroken)
		case "panic":
			panic("boom")
		}
		return nil
	}, framework.MaxAttempts(2))
	f.start()
	f.Publish(made.New("1", thing{Name: "permanent"}))
	require.Equal(t, middleware.ReasonPermanent, f.AwaitDeadLetter("things.dispose", nil).Reason)
	require.EqualValues(t, 1, calls.Load())
	f.Publish(made.New("2", thing{Name: "skip"}))
	f.Idle()
	require.EqualValues(t, 2, calls.Load())
	f.Publish(made.New("3", thing{Name: "panic"}))
	dead := f.AwaitDeadLetter("things.dispose", func(d frameworktest.DeadLetter) bool { return d.Reason == middleware.ReasonPanic })
	require.Contains(t, dead.Message.Metadata.Get(middleware.DeadLetterStack), "handle_test.go")
	require.EqualValues(t, 4, calls.Load())
}

// flakyBroker fails the first publishes to one topic.
type flakyBroker struct {
	broker.Broker
	topic string

	mu       sync.Mutex
	failures int
}

func (b *flakyBroker) Publisher() broker.Publisher {
	return &flakyPublisher{Publisher: b.Broker.Publisher(), b: b}
}

type flakyPublisher struct {
	broker.Publisher
	b *flakyBroker
}

func (p *flakyPublisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) error {
	p.b.mu.Lock()
	fail := topic == p.b.topic && p.b.failures > 0
	if fail {
		p.b.failures--
	}
	p.b.mu.Unlock()
	if fail {
		return &broker.PublishError{Topic: topic, Failed: map[int]error{0: errBroken}}
	}
	return p.Publisher.PublishBatch(ctx, topic, msgs)
}
