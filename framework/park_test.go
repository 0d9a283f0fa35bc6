package framework_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/deadletter"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

const parkGroup = "things.count"

// counting is a handler with ParkKey that fails for the names that are broken.
type counting struct {
	*fixture
	queue *deadletter.Queue

	mu     sync.Mutex
	broken map[string]bool
	tried  []string
}

func newCounting(f *fixture) *counting {
	q, err := deadletter.New(deadletter.Config{Broker: f.Broker(), Group: parkGroup})
	require.NoError(f.t, err)
	return &counting{fixture: f, queue: q, broken: map[string]bool{}}
}

// attempt is one run of the handler.
func (c *counting) attempt(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried = append(c.tried, name)
	if c.broken[name] {
		return errBroken
	}
	return nil
}

func (c *counting) tx(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
	if err := c.attempt(e.Data.Name); err != nil {
		return err
	}
	if err := write(ctx, tx, e); err != nil {
		return err
	}
	framework.Logger(ctx).Debug("counted", "name", e.Data.Name)
	return nil
}

func (c *counting) breakDown(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = map[string]bool{}
	for _, n := range names {
		c.broken[n] = true
	}
}

// ran returns the attempts since the last call.
func (c *counting) ran() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	tried := c.tried
	c.tried = nil
	return tried
}

// publish sends one event of each name, one after the other; its key is the
// name's first letter.
func (c *counting) publish(names ...string) []events.Envelope {
	var all []events.Envelope
	for _, n := range names {
		all = append(all, c.Publish(made.New(n[:1], thing{Name: n}))...)
	}
	return all
}

// parked are the rows that hold up keys.
func (c *counting) parked() int { return c.count("SELECT count(*) FROM headrace_parked_keys") }

// letters are the dead letters' names and reasons, by name.
func (c *counting) letters() []string {
	var all []string
	for l, err := range c.queue.Browse(context.Background(), deadletter.Filter{}) {
		require.NoError(c.t, err)
		e, err := events.Decode(l.Message.Payload)
		require.NoError(c.t, err)
		all = append(all, frameworktest.Data[thing](c.t, e).Name+" "+l.Reason)
	}
	slices.Sort(all)
	return all
}

func (c *counting) replay(o deadletter.ReplayOptions) deadletter.Report {
	r, err := c.queue.Replay(context.Background(), o)
	require.NoError(c.t, err)
	c.Idle()
	return r
}

// fifo is one more stage: queues that keep order across replicas.
var fifo = stage{"sqs-fifo+postgres", func(t *testing.T, p *config.Profile) *connect.Connections {
	p.Database.Driver, p.Database.DSN = "postgres", config.Secret(testenv.PostgresDSN(t))
	p.Broker.Kind, p.Broker.Prefix = "sqs", "p"+events.NewID()[24:]
	p.Broker.AWS.Endpoint, p.Broker.AWS.Region, p.Broker.AWS.FIFO = sharedAWS(t), "us-east-1", true
	p.Broker.AWS.WaitTime = time.Second
	return opened(t, p)
}}

// A message that fails for good parks the later ones of its key, those that are
// there and those that come; mended, a replay handles them in order, each once.
// Other keys go on all the while.
func TestParkKey(t *testing.T) {
	t.Parallel()
	onTheseStages(t, append([]stage{fifo}, stages...), nil, func(t *testing.T, f *fixture) {
		if !f.Broker().Features().OrderPerKey {
			return
		}
		c := newCounting(f)
		framework.HandleTx(f.app, made, "count", c.tx, framework.OrderByKey(), framework.ParkKey(), framework.MaxAttempts(2))
		f.start()
		c.breakDown("a1")
		c.publish("a1", "a2", "b1", "a3")
		f.Idle()
		require.ElementsMatch(t, []string{"a1", "a1", "b1"}, c.ran())
		require.Equal(t, []string{"a1 exhausted", "a2 parked", "a3 parked"}, c.letters())
		c.publish("a4", "b2")
		f.Idle()
		require.Equal(t, []string{"b2"}, c.ran())
		require.Equal(t, 4, c.parked())

		var third deadletter.Letter
		for l, err := range c.queue.Browse(t.Context(), deadletter.Filter{Reasons: []string{middleware.ReasonParked}}) {
			require.NoError(t, err)
			require.True(t, l.ParksKey)
			require.Zero(t, l.Attempts)
			require.NotEmpty(t, l.ParkedBehind)
			if third.ID == "" || l.ParkSeq > third.ParkSeq {
				third = l
			}
		}
		c.breakDown()
		alone := deadletter.Filter{IDs: []string{third.ID}}
		r := c.replay(deadletter.ReplayOptions{Filter: alone})
		require.Equal(t, []int{0, 1}, []int{r.Replayed, r.Held})
		r = c.replay(deadletter.ReplayOptions{Filter: alone, AnyOrder: true})
		require.Equal(t, 1, r.Replayed)
		require.Empty(t, c.ran(), "it is not its turn")
		again, err := c.queue.Find(t.Context(), third.ID)
		require.NoError(t, err)
		require.Equal(t, []any{middleware.ReasonParked, 1, 1, third.ParkSeq, third.ParkedBehind},
			[]any{again[0].Reason, again[0].Redrives, again[0].RedrivesParked, again[0].ParkSeq, again[0].ParkedBehind})

		c.breakDown("a1")
		r = c.replay(deadletter.ReplayOptions{})
		require.Equal(t, 4, r.Replayed)
		require.Equal(t, []string{"a1", "a1"}, c.ran(), "the first fails again, nobody passes it")
		require.Equal(t, []string{"a1 exhausted", "a2 parked", "a3 parked", "a4 parked"}, c.letters())

		c.breakDown()
		r = c.replay(deadletter.ReplayOptions{MaxRedrives: 2})
		require.True(t, r.Complete(), "%+v", r)
		require.Equal(t, []string{"a1", "a2", "a3", "a4"}, c.ran())
		require.Empty(t, c.letters())
		require.Zero(t, c.parked())
		c.publish("a5")
		f.Idle()
		require.Equal(t, []string{"a5"}, c.ran())
		require.Equal(t, 7, f.effects())
	})
}

// The discard of the first lets the others go on; it is never run.
func TestADiscardReleasesTheKey(t *testing.T) {
	t.Parallel()
	onTheseStages(t, append([]stage{fifo}, stages...), nil, func(t *testing.T, f *fixture) {
		if !f.Broker().Features().OrderPerKey {
			return
		}
		c := newCounting(f)
		framework.HandleTx(f.app, made, "count", c.tx, framework.OrderByKey(), framework.ParkKey(), framework.MaxAttempts(1))
		f.start()
		c.breakDown("a1")
		first := c.publish("a1", "a2", "a3")[0]
		f.Idle()
		c.breakDown()
		c.ran()
		var archive bytes.Buffer
		r, err := c.queue.Discard(t.Context(), deadletter.DiscardOptions{Archive: &archive, Filter: deadletter.Filter{IDs: []string{first.ID}}})
		require.NoError(t, err)
		require.Equal(t, []int{1, 1}, []int{r.Discarded, r.Released})
		f.Idle()
		require.Equal(t, 2, c.parked())
		require.Empty(t, c.ran())
		require.InDelta(t, 1, f.metric("headrace_skipped_total", map[string]string{"reason": "discarded"}), 0)
		require.Equal(t, []string{"a2 parked", "a3 parked"}, c.letters())

		c.replay(deadletter.ReplayOptions{})
		require.Equal(t, []string{"a2", "a3"}, c.ran())
		require.Zero(t, c.parked())
		require.Empty(t, c.letters())
	})
}

// A discarded letter that is imported again stands at the end of its key's line.
func TestAnImportStandsAtTheEnd(t *testing.T) {
	t.Parallel()
	c := newCounting(setup(t))
	framework.HandleTx(c.app, made, "count", c.tx, framework.OrderByKey(), framework.ParkKey(), framework.MaxAttempts(1))
	c.start()
	c.breakDown("a1")
	first := c.publish("a1", "a2", "a3")[0]
	c.Idle()
	c.breakDown()
	c.ran()
	var archive bytes.Buffer
	_, err := c.queue.Discard(t.Context(), deadletter.DiscardOptions{Archive: &archive, Filter: deadletter.Filter{IDs: []string{first.ID}}})
	require.NoError(t, err)
	c.Idle()
	_, err = c.queue.Import(t.Context(), &archive, deadletter.ImportOptions{})
	require.NoError(t, err)
	c.replay(deadletter.ReplayOptions{})
	require.Equal(t, []string{"a2", "a3"}, c.ran())
	require.Equal(t, []string{"a1 parked"}, c.letters())
	c.replay(deadletter.ReplayOptions{})
	require.Equal(t, []string{"a1"}, c.ran())
	require.Zero(t, c.parked())
}

// Each kind of handler takes what it handled, skipped or knew out of its line.
func TestEveryKindOfHandlerLeavesItsLine(t *testing.T) {
	t.Parallel()
	opts := []framework.HandlerOption{framework.OrderByKey(), framework.ParkKey(), framework.MaxAttempts(1)}
	for name, register := range map[string]func(c *counting){
		"handle_tx": func(c *counting) { framework.HandleTx(c.app, made, "count", c.tx, opts...) },
		"handle": func(c *counting) {
			framework.Handle(c.app, made, "count", func(_ context.Context, e events.Event[thing]) error { return c.attempt(e.Data.Name) }, opts...)
		},
		"handle_call": func(c *counting) {
			framework.HandleCall(c.app, made, "count", call{
				call: func(_ context.Context, e events.Event[thing]) (string, error) { return "", c.attempt(e.Data.Name) },
			}, opts...)
		},
		"done in prepare": func(c *counting) {
			framework.HandleCall(c.app, made, "count", call{
				prepare: func(_ context.Context, _ *sql.Tx, e events.Event[thing]) error {
					if err := c.attempt(e.Data.Name); err != nil {
						return err
					}
					return framework.ErrDone
				},
			}, opts...)
		},
		"skips": func(c *counting) {
			framework.HandleTx(c.app, made, "count", func(_ context.Context, _ *sql.Tx, e events.Event[thing]) error {
				if err := c.attempt(e.Data.Name); err != nil {
					return err
				}
				return framework.Skip(errBroken)
			}, opts...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCounting(setup(t))
			register(c)
			c.start()
			c.breakDown("a1")
			sent := c.publish("a1", "a2")
			c.Idle()
			require.Equal(t, 2, c.parked())
			c.breakDown()
			c.ran()
			c.replay(deadletter.ReplayOptions{})
			require.Equal(t, []string{"a1", "a2"}, c.ran())
			require.Zero(t, c.parked())
			require.Empty(t, c.letters())

			// A late copy of what was handled is no reason to wait, and leaves no row.
			c.breakDown("a3")
			c.publish("a3")
			c.Send(made.Topic(), sent[0])
			c.Idle()
			want := 1
			if name == "handle" || name == "skips" { // nothing proves that it was handled
				want = 2
			}
			require.Equal(t, want, c.parked())
			c.breakDown()
			c.replay(deadletter.ReplayOptions{})
			require.Zero(t, c.parked())
			require.Empty(t, c.letters())
		})
	}
}

// Events that the handler leaves alone are not parked, on a topic that several
// types share or when they are too old.
func TestWhatIsSkippedIsNotParked(t *testing.T) {
	t.Parallel()
	one := events.Define[thing]("thing.opened", "1.0", events.Topic("things"))
	two := events.Define[thing]("thing.closed", "1.0", events.Topic("things"))
	c := newCounting(setup(t))
	framework.HandleTx(c.app, one, "count", c.tx, framework.OrderByKey(), framework.ParkKey(), framework.MaxAttempts(1), framework.MaxAge(time.Hour))
	c.app.Emits(two.Descriptor())
	c.start()
	c.breakDown("a1")
	c.Publish(one.New("a", thing{Name: "a1"}), two.New("a", thing{Name: "other"}), one.New("a", thing{Name: "a2"}))
	c.PublishAs(events.Stamp{ID: events.NewID(), Source: "test", Now: time.Now().Add(-2 * time.Hour)}, one.New("a", thing{Name: "old"}))
	c.Idle()
	require.Equal(t, []string{"a1 exhausted", "a2 parked"}, c.letters())
	require.Equal(t, 2, c.parked())
}

// A handler that parks no keys runs nothing of a discard, and forgets what its
// group has parked once.
func TestWithoutParkKey(t *testing.T) {
	t.Parallel()
	c := newCounting(setup(t))
	framework.HandleTx(c.app, made, "count", c.tx, framework.OrderByKey(), framework.ParkKey(), framework.MaxAttempts(1))
	run := c.start()
	c.breakDown("a1")
	c.publish("a1", "a2")
	c.Idle()
	require.NoError(t, run.Stop())
	require.Equal(t, 2, c.parked())
	c.ran()

	next := onConnections(t, c.conn, nil)
	framework.HandleTx(next, made, "count", c.tx, framework.OrderByKey())
	c.breakDown()
	c.Start(next)
	require.Eventually(t, func() bool { return c.parked() == 0 }, frameworktest.Timeout, 5*time.Millisecond)
	var archive bytes.Buffer
	r, err := c.queue.Discard(t.Context(), deadletter.DiscardOptions{Archive: &archive})
	require.NoError(t, err)
	require.Equal(t, 2, r.Released)
	c.Idle()
	require.Empty(t, c.ran())
	require.Empty(t, c.letters())
}

// What is parked shows in the metrics.
func TestParkedMetrics(t *testing.T) {
	t.Parallel()
	c := newCounting(setup(t, func(cfg *framework.Config) { cfg.Profile.Admin.StatsInterval = 5 * time.Millisecond }))
	framework.HandleTx(c.app, made, "count", c.tx, framework.OrderByKey(), framework.ParkKey(), framework.MaxAttempts(1))
	c.start()
	c.breakDown("a1", "b1")
	c.publish("a1", "a2", "b1")
	c.Idle()
	require.InDelta(t, 1, c.metric("headrace_dead_letters_total", map[string]string{"reason": middleware.ReasonParked}), 0)
	require.Eventually(t, func() bool {
		messages, _ := c.series("headrace_parked_messages", map[string]string{"handler": "count"})
		keys, _ := c.series("headrace_parked_keys", map[string]string{"group": parkGroup})
		return messages == 3 && keys == 2
	}, frameworktest.Timeout, 5*time.Millisecond)
}

// The layer and the setting show in the explanation.
func TestExplainTellsOfParking(t *testing.T) {
	t.Parallel()
	f := setup(t)
	framework.HandleTx(f.app, made, "count", write, framework.OrderByKey(), framework.ParkKey())
	x := f.app.Explain()
	require.Empty(t, x.Findings)
	i := slices.IndexFunc(x.Handlers[0].Stack, func(l string) bool {
		return l == "park the later messages of a failed key go to the dead letters unrun"
	})
	require.Positive(t, i, fmt.Sprint(x.Handlers[0].Stack))
	require.Contains(t, x.Handlers[0].Stack[i-1], "poison")
	require.Contains(t, x.Handlers[0].Stack[i+1], "retry")
	require.Contains(t, x.Handlers[0].Numbers, framework.Number{Name: "later events of a failed key are parked", Value: "true", Source: framework.FromCode})
}
