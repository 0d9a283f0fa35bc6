package framework_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// closedTopic is a broker that takes nothing for one topic while it is closed.
type closedTopic struct {
	broker.Broker
	topic string

	mu     sync.Mutex
	closed bool
	tries  []time.Time
}

func (b *closedTopic) Publisher() broker.Publisher { return &closedPublisher{b.Broker.Publisher(), b} }

func (b *closedTopic) refuses(topic string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if topic == b.topic {
		b.tries = append(b.tries, time.Now())
	}
	return topic == b.topic && b.closed
}

func (b *closedTopic) set(closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = closed
}

func (b *closedTopic) attempts() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]time.Time(nil), b.tries...)
}

type closedPublisher struct {
	broker.Publisher
	b *closedTopic
}

func (p *closedPublisher) Publish(topic string, msgs ...*message.Message) error {
	if p.b.refuses(topic) {
		return errBroken
	}
	return p.Publisher.Publish(topic, msgs...)
}

// B06: a handler that always fails while its dead letters can't be written. The
// source is not acked, the tries are spaced, the others go on, and once the dead
// letters are back there is one copy and the source is empty.
func TestDeadLettersThatCannotBeWritten_B06(t *testing.T) {
	t.Parallel()
	var closed sync.Map // by stage
	onStages(t, func(c *framework.Config) {
		b := &closedTopic{Broker: c.Broker, topic: "things.one.dlq", closed: true}
		closed.Store(c.Broker, b)
		c.Broker = b
	}, func(t *testing.T, f *fixture) {
		v, _ := closed.Load(f.conn.Broker)
		dlq := v.(*closedTopic)
		var good atomic.Int32
		framework.Handle(f.app, made, "one", func(_ context.Context, e events.Event[thing]) error {
			if e.Data.Name == "bad" {
				return framework.Permanent(errBroken)
			}
			good.Add(1)
			return nil
		}, framework.MaxDeliveries(few(f.Broker(), 2)), framework.Concurrency(1))
		f.start()
		f.Publish(made.New("a", thing{Name: "bad"}))
		for i := range 5 {
			f.Publish(made.New(fmt.Sprint(i), thing{Name: "good"}))
		}
		require.Eventually(t, func() bool { return len(dlq.attempts()) >= 3 }, frameworktest.Timeout, 10*time.Millisecond)
		require.EqualValues(t, 5, good.Load())
		require.Empty(t, f.DeadLetters("things.one"))
		require.Eventually(t, func() bool {
			s, err := f.Broker().Admin().Stats(t.Context(), subscriptionOf("one"))
			return err == nil && s.Lag+s.Pending == 1
		}, frameworktest.Timeout, 10*time.Millisecond, "the source is not acked, and nothing else is left")
		dlq.set(false)
		f.AwaitDeadLetter("things.one", nil)
		f.Idle()
		dead := f.DeadLetters("things.one")
		require.Len(t, dead, 1)
		require.Equal(t, middleware.ReasonPermanent, dead[0].Reason, "what went wrong first, however often it came")
		tries := dlq.attempts()
		for i := 1; i < len(tries); i++ {
			require.GreaterOrEqual(t, tries[i].Sub(tries[i-1]), 400*time.Millisecond, "try %d", i)
		}
	})
}

// B13: whatever way an attempt breaks down, in a handler or in a middleware, with
// retries or without: it is a failed attempt, then a dead letter with a stack that
// is cut; the process lives and goes on.
func TestBreakdowns_B13(t *testing.T) {
	t.Parallel()
	breakdowns := map[string]func(){
		"panic":   func() { panic("x") },
		"nil":     func() { panic(nil) }, //nolint:govet // the case
		"goexit":  runtime.Goexit,
		"nil map": func() { var m map[string]int; m["x"]++ }, //nolint:staticcheck // the case
		"deep": func() {
			var down func(int)
			down = func(n int) {
				if n == 0 {
					panic(strings.Repeat("long ", 5000))
				}
				down(n - 1)
			}
			down(500)
		},
	}
	breakDown := func(where, name string) {
		if kind, ok := strings.CutPrefix(name, where+"/"); ok {
			breakdowns[kind]()
		}
	}
	for _, attempts := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d attempts", attempts), func(t *testing.T) {
			t.Parallel()
			onStages(t, func(c *framework.Config) {
				c.Middleware = []message.HandlerMiddleware{func(next message.HandlerFunc) message.HandlerFunc {
					return func(msg *message.Message) ([]*message.Message, error) {
						breakDown("middleware", msg.Metadata.Get("extra_name"))
						return next(msg)
					}
				}}
			}, func(t *testing.T, f *fixture) {
				var calls atomic.Int32
				framework.HandleTx(f.app, made, "one", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
					calls.Add(1)
					if err := write(ctx, tx, e); err != nil {
						return err
					}
					breakDown("handler", e.Data.Name)
					return nil
				}, framework.MaxAttempts(attempts))
				f.start()
				n := 0
				for kind := range breakdowns {
					for _, where := range []string{"handler", "middleware"} {
						n++
						env, err := made.New("k", thing{Name: where + "/" + kind}).Seal(events.Stamp{ID: events.NewID(), Source: "test", Now: time.Now()})
						require.NoError(t, err)
						payload, err := env.Encode()
						require.NoError(t, err)
						m := message.NewMessage(env.ID, payload)
						m.Metadata.Set("extra_name", where+"/"+kind)
						f.SendRaw(made.Topic(), m)
					}
				}
				f.Publish(made.New("k", thing{Name: "good"}))
				f.Idle()
				require.Equal(t, 1, f.effects(), "only the good one's writes stay")
				dead := f.DeadLetters("things.one")
				require.Len(t, dead, n)
				for _, d := range dead {
					require.Equal(t, middleware.ReasonPanic, d.Reason)
					require.NotEmpty(t, d.Message.Metadata.Get(middleware.DeadLetterStack))
					require.LessOrEqual(t, len(d.Message.Metadata.Get(middleware.DeadLetterStack)), middleware.DefaultMaxStackBytes)
					require.Equal(t, fmt.Sprint(attempts), d.Message.Metadata.Get(middleware.DeadLetterAttempts))
				}
				require.EqualValues(t, len(breakdowns)*attempts+1, calls.Load())
			})
		})
	}
}

// B19, B29: what is no event, from outside the framework, then a good one. Each
// has its raw copy in the dead letters, none is taken for a copy of another for
// want of an id, each was tried once, and the good one is handled.
func TestWhatIsNoEvent_B19_B29(t *testing.T) {
	t.Parallel()
	onStages(t, nil, func(t *testing.T, f *fixture) {
		framework.Handle(f.app, made, "one", plain)
		f.start()
		bad := []string{
			"null", "[]", `{"id":"018f`, `{}`,
			`{"type":"thing.made","source":"s","version":"1.0","timestamp":"2026-01-02T03:04:05Z","data":{"name":"a"}}`,
			`{"type":"thing.made","source":"s","version":"1.0","timestamp":"2026-01-02T03:04:05Z","data":{"name":"b"}}`,
		}
		for _, payload := range bad {
			f.SendRaw(made.Topic(), message.NewMessage("same", []byte(payload)))
		}
		f.SendRaw(made.Topic(), message.NewMessage("empty", nil))
		f.Publish(made.New("k", thing{Name: "good"}))
		f.Idle()
		dead := f.DeadLetters("things.one")
		var got []string
		for _, d := range dead {
			require.Equal(t, middleware.ReasonDecode, d.Reason)
			require.Equal(t, "1", d.Message.Metadata.Get(middleware.DeadLetterAttempts))
			require.Equal(t, "1", d.Message.Metadata.Get(middleware.DeadLetterDeliveries))
			got = append(got, string(d.Message.Payload))
		}
		require.ElementsMatch(t, append(bad, ""), got)
		require.InDelta(t, 1, f.metric("headrace_messages_total", map[string]string{"outcome": "handled"}), 0)
		require.InDelta(t, len(bad)+1, f.metric("headrace_messages_total", map[string]string{"outcome": "dead_lettered"}), 0)
	})
}

// B29: a handler publishes two events and the second publish fails once: the
// second attempt publishes both with the ids of the first.
func TestProducedIDsAreStable_B29(t *testing.T) {
	t.Parallel()
	onStages(t, func(c *framework.Config) {
		withoutDB(c)
		c.Broker = &flakyBroker{Broker: c.Broker, topic: shipped.Topic(), failures: 1}
	}, func(t *testing.T, f *fixture) {
		f.app.Emits(counted.Descriptor(), shipped.Descriptor())
		firsts, seconds := f.Listen(counted.Topic()), f.Listen(shipped.Topic())
		framework.Handle(f.app, made, "one", func(ctx context.Context, e events.Event[thing]) error {
			return errors.Join(
				framework.Publish(ctx, counted.New("k", e.Data)),
				framework.Publish(ctx, shipped.New("k", e.Data)))
		})
		f.start()
		f.Publish(made.New("k", thing{Name: "a"}))
		first := firsts.Any()
		require.Equal(t, first.ID, firsts.Any().ID, "the second attempt's has the first one's id")
		require.NotEqual(t, first.ID, seconds.Any().ID)
		f.Idle()
		require.Empty(t, f.DeadLetters("things.one"))
	})
}

// A shutdown in the middle of the retries is no failure: the message is given
// back, and the next process handles it; it is neither lost, nor doubled, nor
// dead-lettered.
func TestAShutdownInMidRetry_B14(t *testing.T) {
	t.Parallel()
	onStages(t, nil, func(t *testing.T, f *fixture) {
		tried := make(chan struct{}, 10)
		deliveries := few(f.Broker(), 1)
		register := func(app *framework.App, fail error) {
			framework.HandleTx(app, made, "one", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
				tried <- struct{}{}
				return errors.Join(write(ctx, tx, e), fail)
			}, framework.MaxDeliveries(deliveries))
		}
		register(f.app, framework.RetryAfter(errBroken, time.Hour))
		run := f.start()
		f.Publish(made.New("k", thing{Name: "a"}))
		await(t, tried, "the first attempt")
		began := time.Now()
		require.NoError(t, run.Stop())
		require.Less(t, time.Since(began), 5*time.Second, "the wait of an hour ended with the drain")
		require.Empty(t, f.DeadLetters("things.one"))

		next := onConnections(t, f.conn, nil)
		register(next, nil)
		f.Start(next)
		await(t, tried, "the next process")
		f.Idle()
		require.Equal(t, 1, f.effects())
		require.Empty(t, f.DeadLetters("things.one"), "the delivery that the drain ended was not counted")
	})
}
