package middleware_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/stretchr/testify/require"
)

type parkRow struct {
	key, id string
	seq     int64
}

// lines is a ParkStore in memory that can be down.
type lines struct {
	mu   sync.Mutex
	rows []parkRow
	last int64
	down error
	gone string // the head that goes just before the next Add
	adds []string
}

func (l *lines) head(key, id string, seq int64) middleware.ParkHead {
	for _, r := range l.rows {
		if r.key == key {
			return middleware.ParkHead{Parked: true, Mine: r.id == id || r.seq == seq, Seq: r.seq, ID: r.id}
		}
	}
	return middleware.ParkHead{}
}

func (l *lines) Head(_ context.Context, key, id string, seq int64) (middleware.ParkHead, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head(key, id, seq), l.down
}

func (l *lines) Add(_ context.Context, key, id string, seq int64) (int64, middleware.ParkHead, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down != nil {
		return 0, middleware.ParkHead{}, l.down
	}
	l.adds = append(l.adds, id)
	l.rows = slices.DeleteFunc(l.rows, func(r parkRow) bool { return r.id == l.gone })
	at := slices.IndexFunc(l.rows, func(r parkRow) bool { return r.key == key && (r.id == id || r.seq == seq) })
	if at < 0 {
		l.last++
		l.rows = append(l.rows, parkRow{key, id, l.last})
		at = len(l.rows) - 1
	}
	return l.rows[at].seq, l.head(key, id, l.rows[at].seq), nil
}

func (l *lines) Remove(_ context.Context, key, id string, seq int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down != nil {
		return l.down
	}
	l.rows = slices.DeleteFunc(l.rows, func(r parkRow) bool { return r.key == key && (r.id == id || r.seq == seq) })
	return nil
}

func (l *lines) set(change func(*lines)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

func (l *lines) ids() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := []string{}
	for _, r := range l.rows {
		ids = append(ids, r.id)
	}
	return ids
}

// keyed is the nth message of a key, as its nth delivery.
func keyed(id, key string, delivery int) *message.Message {
	msg := newMessage(id)
	if key != "" {
		msg.Metadata[events.KeyOrdering] = key
	}
	msg, _ = delivered(msg, delivery, nil)
	return msg
}

// parking is a handler with poison, park and retry around it.
type parking struct {
	store   *lines
	dlq     *sink
	handler message.HandlerFunc
	layers  []message.HandlerMiddleware
	ran     []string
	fails   map[string]error
}

func newParking(t testing.TB, change func(*middleware.ParkConfig)) *parking {
	p := &parking{store: &lines{}, dlq: newSink(), fails: map[string]error{}}
	cfg := middleware.ParkConfig{Store: p.store, Logger: quiet}
	if change != nil {
		change(&cfg)
	}
	park, err := middleware.Park(cfg)
	require.NoError(t, err)
	p.layers = []message.HandlerMiddleware{
		poison(t, middleware.PoisonConfig{Publisher: p.dlq, Handler: "charge-order", Parking: park}),
		park.Middleware,
		retry(t, middleware.RetryConfig{MaxAttempts: 2, Backoff: middleware.Backoff{Base: time.Nanosecond, Cap: time.Nanosecond}}),
	}
	p.handler = func(msg *message.Message) ([]*message.Message, error) {
		id := msg.Metadata[events.KeyID]
		p.ran = append(p.ran, id)
		return nil, p.fails[id]
	}
	return p
}

func (p *parking) handle(msg *message.Message) error {
	_, err := middleware.Chain(p.layers...)(p.handler)(msg)
	return err
}

func dead(msgs []*message.Message) map[string]string {
	all := map[string]string{}
	for _, m := range msgs {
		all[m.Metadata[events.KeyID]] = m.Metadata[middleware.DeadLetterReason]
	}
	return all
}

// The later messages of a failed key go to the dead letters unrun, in line
// behind it, and say behind whom; others run.
func TestLaterMessagesOfAFailedKeyAreParked(t *testing.T) {
	t.Parallel()
	p := newParking(t, nil)
	p.fails["a1"] = errBoom
	for _, m := range []*message.Message{keyed("a1", "a", 1), keyed("a2", "a", 1), keyed("b1", "b", 1), keyed("a3", "a", 1), keyed("n", "", 1)} {
		require.NoError(t, p.handle(m))
	}
	require.Equal(t, []string{"a1", "a1", "b1", "n"}, p.ran)
	require.Equal(t, []string{"a1", "a2", "a3"}, p.store.ids())
	got := p.dlq.messages()
	require.Equal(t, map[string]string{"a1": middleware.ReasonExhausted, "a2": middleware.ReasonParked, "a3": middleware.ReasonParked}, dead(got))
	for i, want := range []map[string]string{
		{middleware.DeadLetterParksKey: "1", middleware.DeadLetterParkSeq: "1", middleware.DeadLetterAttempts: "2"},
		{middleware.DeadLetterParksKey: "1", middleware.DeadLetterParkSeq: "2", middleware.DeadLetterAttempts: "0", middleware.DeadLetterParkedBehind: "a1"},
		{middleware.DeadLetterParksKey: "1", middleware.DeadLetterParkSeq: "3", middleware.DeadLetterAttempts: "0", middleware.DeadLetterParkedBehind: "a1"},
	} {
		for k, v := range want {
			require.Equal(t, v, got[i].Metadata[k], "%d %s", i, k)
		}
	}
	require.Contains(t, got[1].Metadata[middleware.DeadLetterError], "parked behind a1")
	require.Equal(t, got[1].Metadata[middleware.DeadLetterFingerprint], got[2].Metadata[middleware.DeadLetterFingerprint])

	// A crash behind the row: the first comes again and runs.
	delete(p.fails, "a1")
	require.NoError(t, p.handle(keyed("a2", "a", 2)))
	require.NoError(t, p.handle(keyed("a1", "a", 2)))
	require.Equal(t, []string{"a1", "a1", "b1", "n", "a1"}, p.ran)
	require.Equal(t, []string{"a2", "a3"}, p.store.ids())
	require.NoError(t, p.handle(keyed("a3", "a", 2)), "not its turn")
	require.NoError(t, p.handle(keyed("a2", "a", 2)))
	require.NoError(t, p.handle(keyed("a3", "a", 2)))
	require.Equal(t, []string{"a1", "a2", "a3"}, p.ran[4:])
	require.Empty(t, p.store.ids())
}

// A message that was handed out too often holds up its key as well, though it did
// not run.
func TestWhatWasHandedOutTooOftenHoldsUpItsKey(t *testing.T) {
	t.Parallel()
	p := newParking(t, nil)
	require.NoError(t, p.handle(keyed("a1", "a", middleware.DefaultMaxDeliveries+1)))
	require.NoError(t, p.handle(keyed("a2", "a", 1)))
	require.Empty(t, p.ran)
	require.Equal(t, map[string]string{"a1": middleware.ReasonDeliveriesExhausted, "a2": middleware.ReasonParked}, dead(p.dlq.messages()))
	require.Equal(t, "a1", p.dlq.messages()[1].Metadata[middleware.DeadLetterParkedBehind])
}

// What parking adds to a dead letter fits into what is kept free for its story.
func TestAParkedDeadLetterFitsTheBroker(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	store, dlq := &lines{last: 1 << 60}, newSink()
	park, err := middleware.Park(middleware.ParkConfig{Store: store, Logger: quiet})
	require.NoError(t, err)
	handle := middleware.Chain(
		poison(t, middleware.PoisonConfig{Publisher: dlq, Handler: "h", MaxBytes: limit, Parking: park}), park.Middleware,
	)(fail(middleware.Permanent(errBoom)))
	for _, id := range []string{"first-" + strings.Repeat("x", 1000), "second"} {
		m := keyed(id, "a", 1)
		m.Payload = bytes.Repeat([]byte("x"), limit-middleware.DeadLetterReserve-len(id))
		_, err := handle(m)
		require.NoError(t, err)
	}
	require.Len(t, dlq.messages(), 2)
	for _, m := range dlq.messages() {
		require.LessOrEqual(t, sizeOf(m), limit)
		require.Equal(t, "1", m.Metadata[middleware.DeadLetterParksKey])
		require.NotEmpty(t, m.Metadata[middleware.DeadLetterParkSeq])
	}
}

// The row is there before the dead letter, and while it can't be written there is
// no dead letter either.
func TestTheLineComesBeforeTheDeadLetter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newParking(t, nil)
		p.fails["a1"] = middleware.Permanent(errBoom)
		p.dlq.set(errors.New("no dead letters today"))
		require.ErrorIs(t, p.handle(keyed("a1", "a", 1)), middleware.ErrDeadLetterUnpublished)
		require.Equal(t, []string{"a1"}, p.store.ids())

		p.dlq.set(nil)
		p.handler = func(*message.Message) ([]*message.Message, error) {
			p.store.set(func(l *lines) { l.down = errors.New("no database") })
			return nil, middleware.Permanent(errBoom)
		}
		err := p.handle(keyed("b1", "b", 1))
		require.ErrorIs(t, err, middleware.ErrParkStore)
		disposition, delay := middleware.DispositionOf(err)
		require.Equal(t, middleware.DispositionDefer, disposition)
		require.Positive(t, delay)
		require.Empty(t, p.dlq.messages())

		// It is asked again for a while, then the message is given back uncounted.
		msg := keyed("c1", "c", 1)
		begun := time.Now()
		err = p.handle(msg)
		require.ErrorIs(t, err, middleware.ErrParkStore)
		require.GreaterOrEqual(t, time.Since(begun), middleware.DefaultParkBudget)
		require.True(t, middleware.DeliveryFrom(msg.Context()).Released())
		require.Empty(t, p.dlq.messages())
	})
}

// What does not wait in a line: what is skipped, what was handled, and what is
// the first by the time that it would be put there.
func TestWhatNeedNotWait(t *testing.T) {
	t.Parallel()
	p := newParking(t, func(c *middleware.ParkConfig) {
		c.Passes = func(m *message.Message) bool { return m.Metadata[events.KeyID] == "other" }
		c.Handled = func(_ context.Context, m *message.Message) (bool, error) {
			return m.Metadata[events.KeyID] == "copy", nil
		}
	})
	p.fails["a1"], p.fails["other"], p.fails["copy"] = errBoom, middleware.Skip(errBoom), nil
	for _, id := range []string{"a1", "other", "copy"} {
		require.NoError(t, p.handle(keyed(id, "a", 1)))
	}
	require.Equal(t, []string{"a1", "a1", "other", "copy"}, p.ran)
	require.Equal(t, []string{"a1"}, p.store.adds)
	p.store.set(func(l *lines) { l.gone = "a1" })
	require.NoError(t, p.handle(keyed("a2", "a", 1)))
	require.Equal(t, "a2", p.ran[len(p.ran)-1], "nobody was before it any more")
	require.Empty(t, p.store.ids())

	// A copy that fails when another one was handled holds nobody up.
	p.fails["copy"] = middleware.Permanent(errBoom)
	require.NoError(t, p.handle(keyed("copy", "a", 1)))
	require.Empty(t, p.store.ids())
	require.Empty(t, p.dlq.messages()[1].Metadata[middleware.DeadLetterParksKey])
}

// However it ends well, a message leaves its line; otherwise it stays.
func TestWhoLeavesTheLine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		stays  bool
		inside bool // the handler's transaction did it
	}{
		"handled":                  {},
		"in the transaction":       {inside: true, stays: true},
		"skipped":                  {err: middleware.Skip(errBoom)},
		"deferred":                 {err: middleware.Defer(errBoom, time.Second), stays: true},
		"redelivered":              {err: middleware.Redeliver(errBoom, time.Second), stays: true},
		"failed":                   {err: middleware.Permanent(errBoom), stays: true},
		"shutting down":            {err: middleware.ErrShuttingDown, stays: true},
		"a panic is no skip":       {err: nil, stays: true},
		"skipped by a later check": {err: middleware.SkipBecause(middleware.SkipStale, errBoom)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParking(t, nil)
			p.store.rows = []parkRow{{"a", "a1", 7}}
			p.handler = func(m *message.Message) ([]*message.Message, error) {
				require.EqualValues(t, 7, middleware.ParkPlaceFrom(m.Context()).Seq)
				if c.inside {
					middleware.ParkPlaceFrom(m.Context()).Left()
				}
				if name == "a panic is no skip" {
					panic(middleware.Skip(errBoom))
				}
				return nil, c.err
			}
			_ = p.handle(keyed("a1", "a", 2))
			require.Equal(t, c.stays, len(p.store.ids()) == 1)
			require.Nil(t, middleware.ParkPlaceFrom(keyed("x", "a", 1).Context()))
		})
	}
}

// On the redrive topic a message is known by its place, a bounced one is not
// counted, and a discard takes out and runs nothing. Elsewhere none of that is
// believed.
func TestWhatTheRedriveTopicSays(t *testing.T) {
	t.Parallel()
	for _, topic := range []string{"in", "another"} {
		t.Run(topic, func(t *testing.T) {
			t.Parallel()
			p := newParking(t, func(c *middleware.ParkConfig) { c.RedriveTopic = topic })
			p.store.rows = []parkRow{{"a", "a1", 1}, {"a", "a2", 2}, {"b", "b1", 3}, {"b", "b2", 4}}
			p.store.last = 4
			var mu sync.Mutex
			var ran []string
			in := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
			t.Cleanup(func() { _ = in.Close() })
			startRouter(t, in, nil, func(m *message.Message) ([]*message.Message, error) {
				mu.Lock()
				defer mu.Unlock()
				ran = append(ran, m.Metadata[events.KeyID])
				return nil, nil
			}, p.layers...)
			send := func(id, key, seq string, more map[string]string) {
				m := keyed(id, key, 1)
				m.Metadata[middleware.DeadLetterParkSeq] = seq
				for k, v := range more {
					m.Metadata[k] = v
				}
				require.NoError(t, in.Publish("in", m))
			}
			send("mended-id", "a", "1", nil) // an edit gave it another id
			send("", "b", "3", map[string]string{middleware.DeadLetterDiscarded: "1"})
			send("b2", "b", "4", nil)
			send("a3", "a", "9", map[string]string{middleware.DeadLetterRedriveCount: "2", middleware.DeadLetterRedrivesParked: "1"})
			mu.Lock()
			defer mu.Unlock()
			if topic == "another" {
				require.Empty(t, ran)
				require.Len(t, p.dlq.messages(), 4)
				return
			}
			require.Equal(t, []string{"mended-id", "b2"}, ran, fmt.Sprint(dead(p.dlq.messages())))
			require.Equal(t, []string{"a2", "a3"}, p.store.ids())
			bounced := p.dlq.only(t)
			require.Equal(t, []string{"2", "2", "5"}, []string{
				bounced.Metadata[middleware.DeadLetterRedriveCount], bounced.Metadata[middleware.DeadLetterRedrivesParked], bounced.Metadata[middleware.DeadLetterParkSeq],
			})
		})
	}
}

// Faults of a ParkConfig are told before anything starts.
func TestParkConfig(t *testing.T) {
	t.Parallel()
	_, err := middleware.Park(middleware.ParkConfig{Budget: -1, StoreTimeout: -1})
	for _, want := range []string{"Park.Store is nil", "Park.Budget is -1ns", "Park.StoreTimeout is -1ns"} {
		require.ErrorContains(t, err, want)
	}
	park, err := middleware.Park(middleware.ParkConfig{Store: &lines{}})
	require.NoError(t, err)
	require.Equal(t, middleware.KindPark, middleware.LayerOf(park.Middleware).Kind)
}
