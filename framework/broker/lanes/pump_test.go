package lanes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a Source in memory whose calls can be made to fail.
type fake struct {
	mu       sync.Mutex
	queue    []*Entry // to be fetched
	reclaim  []*Entry // to be reclaimed
	bodies   map[string]string
	keys     map[string]string
	acked    []string
	released map[string]*Entry
	stored   map[string]int
	gone     map[string]bool // Renew and Load say: lost
	fail     func(call string) error
	changed  chan struct{}
	limits   []int // of the fetches that brought something
	closed   bool
}

func newFake() *fake {
	return &fake{
		bodies: map[string]string{}, keys: map[string]string{}, released: map[string]*Entry{},
		stored: map[string]int{}, gone: map[string]bool{}, changed: make(chan struct{}, 1),
	}
}

func (f *fake) entry(n int, key string) *Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := fmt.Sprintf("e%04d", n)
	f.bodies[id], f.keys[id] = id, key
	return &Entry{ID: id, Pos: Pos{Lo: uint64(n)}, Stored: 1, Raw: id}
}

func (f *fake) put(entries ...*Entry) {
	f.mu.Lock()
	f.queue = append(f.queue, entries...)
	f.mu.Unlock()
	notify(f.changed)
}

func (f *fake) failing(call string) error {
	if f.fail != nil {
		return f.fail(call)
	}
	return nil
}

func (f *fake) Fetch(ctx context.Context, limit int) ([]*Entry, error) {
	for {
		f.mu.Lock()
		if err := f.failing("fetch"); err != nil {
			f.mu.Unlock()
			return nil, err
		}
		n := min(limit, len(f.queue))
		out := slices.Clone(f.queue[:n])
		f.queue = f.queue[n:]
		if n > 0 {
			f.limits = append(f.limits, limit)
		}
		f.mu.Unlock()
		if n > 0 || ctx.Err() != nil {
			return out, nil //nolint:nilerr // an ended context is no error of a source
		}
		select {
		case <-ctx.Done():
		case <-f.changed:
		}
	}
}

func (f *fake) Reclaim(_ context.Context, limit int, mine func(string) bool) ([]*Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(limit, len(f.reclaim))
	out := slices.Clone(f.reclaim[:n])
	f.reclaim = f.reclaim[n:]
	return slices.DeleteFunc(out, func(e *Entry) bool { return mine(e.ID) }), nil
}

func (f *fake) Decode(e *Entry) (*message.Message, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	body := e.Raw.(string)
	switch body {
	case "malformed":
		return nil, errors.New("malformed")
	case "panic":
		panic("hostile")
	}
	m := message.NewMessage(e.ID, []byte(body))
	if k := f.keys[e.ID]; k != "" {
		m.Metadata.Set(orderingKey, k)
	}
	return m, nil
}

func (f *fake) Malformed(e *Entry) *message.Message {
	return message.NewMessage(e.ID, []byte(e.Raw.(string)))
}

func (f *fake) Ack(_ context.Context, entries []*Entry) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.failing("ack"); err != nil {
		return err
	}
	for _, e := range entries {
		f.acked = append(f.acked, e.ID)
	}
	return nil
}

func (f *fake) Renew(_ context.Context, refs []Ref) (lost []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.failing("renew"); err != nil {
		return nil, err
	}
	for _, r := range refs {
		f.stored[r.ID] = r.Stored
		if f.gone[r.ID] {
			lost = append(lost, r.ID)
		}
	}
	return lost, nil
}

func (f *fake) Load(_ context.Context, refs []Ref) (raw map[string]any, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.failing("load"); err != nil {
		return nil, err
	}
	raw = make(map[string]any)
	for _, r := range refs {
		f.stored[r.ID] = r.Stored
		if !f.gone[r.ID] {
			raw[r.ID] = f.bodies[r.ID]
		}
	}
	return raw, nil
}

func (f *fake) Release(_ context.Context, entries []*Entry) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.failing("release"); err != nil {
		return err
	}
	for _, e := range entries {
		f.released[e.ID] = e
	}
	return nil
}

func (f *fake) Close(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

func (f *fake) ackedIDs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := slices.Clone(f.acked)
	sort.Strings(out)
	return out
}

func config(concurrency, inFlight int) Config {
	return Config{
		SubscriberConfig: broker.SubscriberConfig{
			Group: "g", Consumer: "c", Concurrency: concurrency, MaxInFlight: inFlight,
			NackDelay: -1, DrainTimeout: 5 * time.Second, SuspectFrom: broker.DefaultSuspectFrom,
			Logger: slog.New(slog.DiscardHandler),
		},
		Topic: "t", MaxHeld: 1000, ReclaimEvery: time.Second, Heartbeat: time.Second,
	}
}

func start(t *testing.T, f *fake, cfg Config) *pump {
	t.Helper()
	p := startPump(context.Background(), f, cfg)
	t.Cleanup(func() {
		p.beginDrain()
		<-p.done
		require.True(t, f.closed)
		require.Empty(t, p.d.table, "nothing is left behind")
	})
	return p
}

// resident is what the dispatcher holds in memory.
func (d *dispatcher) snapshot() (resident, held int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.resident(), d.heldN
}

// TestNothingIsLostUnderFaults: random nacks, releases, failing calls and lost
// leases; each entry is acked once, in order within its key, and the bounds hold.
func TestNothingIsLostUnderFaults(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 1))
				var rngMu sync.Mutex
				roll := func(n int) bool {
					rngMu.Lock()
					defer rngMu.Unlock()
					return rng.IntN(n) == 0
				}
				f := newFake()
				const total = 600
				keys := 1 + int(seed)*4
				want := map[string][]string{}
				var entries []*Entry
				for i := range total {
					key := ""
					if i%5 != 0 {
						key = fmt.Sprint("k", rng.IntN(keys))
					}
					e := f.entry(i, key)
					entries = append(entries, e)
					if key != "" {
						want[key] = append(want[key], e.ID)
					}
				}
				f.fail = func(call string) error {
					if roll(8) {
						return errors.New(call + " failed")
					}
					return nil
				}
				cfg := config(4, 12)
				cfg.Order = true
				cfg.MaxHeld = 40
				p := start(t, f, cfg)
				f.put(entries...)

				got := map[string][]string{}
				var mu sync.Mutex
				running := map[string]bool{}
				deliveries := map[string]int{}
				acked := 0
				done := make(chan struct{})
				go func() {
					for m := range p.out {
						resident, held := p.d.snapshot()
						if resident > 12 || held > 40+12+12 {
							t.Errorf("bounds: %d resident, %d held", resident, held)
						}
						go func() {
							key := m.Metadata[orderingKey]
							d := middleware.DeliveryFrom(m.Context())
							mu.Lock()
							if key != "" && running[key] {
								t.Errorf("two of %s at once", key)
							}
							running[key] = true
							deliveries[m.UUID]++
							if d.Count() != deliveries[m.UUID] {
								t.Errorf("%s: count %d at delivery %d", m.UUID, d.Count(), deliveries[m.UUID])
							}
							mu.Unlock()
							time.Sleep(time.Duration(1+len(m.UUID)) * time.Millisecond)
							mu.Lock()
							defer mu.Unlock()
							running[key] = false
							switch {
							case roll(6):
								d.RedeliverAfter(time.Duration(50+deliveries[m.UUID]) * time.Millisecond)
								m.Nack()
							case roll(8):
								d.Release()
								deliveries[m.UUID]--
								m.Nack()
							default:
								if key != "" {
									got[key] = append(got[key], m.UUID)
								}
								acked++
								m.Ack()
								if acked == total {
									close(done)
								}
							}
						}()
					}
				}()
				<-done
				synctest.Wait()
				time.Sleep(time.Minute)
				mu.Lock()
				require.Equal(t, want, got)
				mu.Unlock()
				require.Len(t, f.ackedIDs(), total)
				require.Len(t, slices.Compact(f.ackedIDs()), total, "each once")
			})
		})
	}
}

func recv(t *testing.T, p *pump) *message.Message {
	t.Helper()
	select {
	case m, ok := <-p.out:
		require.True(t, ok)
		return m
	case <-time.After(2 * time.Hour):
		require.FailNow(t, "no message")
		return nil
	}
}

// TestDelaysAreExact: a nacked entry comes when its delay is over, not before,
// not later, whatever else goes on.
func TestDelaysAreExact(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		p := start(t, f, config(3, 3))
		f.put(f.entry(1, ""), f.entry(2, ""), f.entry(3, ""))
		begin := time.Now()
		for _, d := range []time.Duration{3 * time.Second, time.Second, 2 * time.Second} {
			m := recv(t, p)
			middleware.DeliveryFrom(m.Context()).RedeliverAfter(d)
			m.Nack()
		}
		for _, d := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second} {
			m := recv(t, p)
			require.Equal(t, d, time.Since(begin))
			m.Ack()
		}
	})
}

// TestOlderEntriesGoFirst: entries claimed from a dead member are handed out
// before newer ones of their key that wait here, even where those are delayed.
func TestOlderEntriesGoFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		cfg := config(2, 20)
		cfg.Order = true
		p := start(t, f, cfg)
		f.put(f.entry(10, "k"), f.entry(11, "k"), f.entry(12, "k"))
		m := recv(t, p)
		require.Equal(t, "e0010", m.UUID)
		older := []*Entry{f.entry(3, "k"), f.entry(4, "k")}
		f.mu.Lock()
		f.reclaim = older
		f.mu.Unlock()
		time.Sleep(2 * time.Second) // ReclaimEvery
		f.put(f.entry(13, "other")) // the fetch that waits comes back
		other := recv(t, p)
		require.Equal(t, "e0013", other.UUID)
		other.Ack()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		f.put(f.entry(14, "other"))
		recv(t, p).Ack()
		synctest.Wait()
		middleware.DeliveryFrom(m.Context()).RedeliverAfter(time.Hour)
		m.Nack()
		for _, want := range []string{"e0003", "e0004"} {
			m := recv(t, p)
			require.Equal(t, want, m.UUID)
			m.Ack()
		}
		begin := time.Now()
		for _, want := range []string{"e0010", "e0011", "e0012"} {
			m := recv(t, p)
			require.Equal(t, want, m.UUID)
			m.Ack()
		}
		require.InDelta(t, time.Hour, time.Since(begin), float64(time.Second))
	})
}

// TestHeartbeat: what is held is renewed for as long as it is held, with its
// count; what is lost is cancelled, forgotten and never settled.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		cfg := config(3, 3)
		cfg.NackDelay = time.Hour
		p := start(t, f, cfg)
		f.put(f.entry(1, ""), f.entry(2, ""), f.entry(3, ""))
		kept, lost, nacked := recv(t, p), recv(t, p), recv(t, p)
		nacked.Nack()
		f.mu.Lock()
		f.gone[lost.UUID] = true
		f.mu.Unlock()
		<-lost.Context().Done()
		require.ErrorIs(t, context.Cause(lost.Context()), broker.ErrLeaseLost)
		require.NoError(t, kept.Context().Err())
		f.mu.Lock()
		require.Equal(t, map[string]int{kept.UUID: 1, lost.UUID: 1, nacked.UUID: 1}, f.stored)
		f.gone[nacked.UUID] = true
		f.fail = func(call string) error {
			if call == "renew" {
				return errors.New("away")
			}
			return nil
		}
		f.mu.Unlock()
		time.Sleep(10 * time.Second)
		require.NoError(t, kept.Context().Err(), "a broker that is away takes no lease")
		f.mu.Lock()
		f.fail = nil
		f.mu.Unlock()
		time.Sleep(10 * time.Second)
		require.False(t, p.d.mine(nacked.UUID), "a held entry that is lost is forgotten")
		lost.Ack()
		kept.Ack()
		synctest.Wait()
		require.Equal(t, []string{kept.UUID}, f.ackedIDs())
	})
}

// TestAcksSurviveTheBroker: acks are kept while the broker is away, and are the
// last thing that a drain waits for, to its bound (B08).
func TestAcksSurviveTheBroker_B08(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			p := startPump(context.Background(), f, config(2, 2))
			f.put(f.entry(1, ""))
			m := recv(t, p)
			f.mu.Lock()
			f.fail = func(call string) error {
				if call == "ack" {
					return errors.New("away")
				}
				return nil
			}
			f.mu.Unlock()
			begin := time.Now()
			p.beginDrain()
			time.Sleep(time.Second)
			m.Ack()
			time.Sleep(2 * time.Second)
			if back {
				f.mu.Lock()
				f.fail = nil
				f.mu.Unlock()
			}
			<-p.done
			if back {
				require.Equal(t, []string{m.UUID}, f.ackedIDs())
			} else {
				require.Empty(t, f.ackedIDs())
				require.Equal(t, time.Second+settleTimeout, time.Since(begin), "the drain ends at its bound")
			}
		})
	}
}

// TestDrainReleasesWithCountAndDelay: each kind of entry goes back as it should.
func TestDrainReleasesWithCountAndDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		cfg := config(3, 10)
		cfg.NackDelay = 10 * time.Second
		p := startPump(context.Background(), f, cfg)
		f.put(f.entry(1, ""), f.entry(2, ""), f.entry(3, ""), f.entry(4, ""), f.entry(5, ""))
		held, running, deferred := recv(t, p), recv(t, p), recv(t, p)
		held.Nack() // counted: comes back after 10 s
		fourth := recv(t, p)
		synctest.Wait()
		time.Sleep(4 * time.Second)
		p.beginDrain()
		<-middleware.DeliveryFrom(running.Context()).Draining()
		synctest.Wait()
		middleware.DeliveryFrom(deferred.Context()).Release()
		deferred.Nack() // uncounted, at once
		running.Nack()  // counted, after the nack delay
		fourth.Ack()
		<-p.done
		type back struct {
			stored int
			delay  time.Duration
		}
		got := map[string]back{}
		for id, e := range f.released {
			got[id] = back{e.Stored, e.Delay}
		}
		require.Equal(t, map[string]back{
			held.UUID:     {1, 6 * time.Second},
			running.UUID:  {1, 10 * time.Second},
			deferred.UUID: {0, 0},
			"e0005":       {0, 0},
		}, got)
		require.Equal(t, []string{fourth.UUID}, f.ackedIDs())
	})
}

// TestMalformedIsNeverHot: an entry that OnMalformed refuses comes again after a
// second at the least; one that panics the decoder is no different.
func TestMalformedIsNeverHot_B19(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		cfg := config(1, 4)
		var at []time.Duration
		var log bytes.Buffer
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		begin := time.Now()
		done := make(chan struct{})
		cfg.OnMalformed = func(_ context.Context, raw *message.Message, reason error) error {
			at = append(at, time.Since(begin))
			if len(at) < 4 {
				return errors.New("refused")
			}
			close(done)
			return nil
		}
		p := start(t, f, cfg)
		bad := f.entry(1, "")
		f.bodies[bad.ID], bad.Raw = "panic", "panic"
		f.put(bad, f.entry(2, ""))
		recv(t, p).Ack()
		<-done
		require.Equal(t, []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second}, at)
		synctest.Wait()
		require.Equal(t, []string{"e0001", "e0002"}, f.ackedIDs())
		require.Equal(t, 3, strings.Count(log.String(), "malformed"), "OnMalformed itself tells of what it took")
	})
}

// TestHeldIsBounded: at MaxHeld nothing more is fetched.
func TestHeldIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		cfg := config(2, 4)
		cfg.NackDelay, cfg.MaxHeld = time.Hour, 10
		p := start(t, f, cfg)
		for i := range 50 {
			f.put(f.entry(i, ""))
		}
		n := 0
		for {
			select {
			case m := <-p.out:
				m.Nack()
				n++
				continue
			case <-time.After(time.Minute):
			}
			break
		}
		require.GreaterOrEqual(t, n, 10)
		require.LessOrEqual(t, n, 10+4, "MaxHeld, and what was in flight")
		f.mu.Lock()
		defer f.mu.Unlock()
		require.NotEmpty(t, f.queue)
	})
}

// TestInFlightBound: a fetch that was under way while held entries came back
// brings more than fits; what does not fit is held by id.
func TestInFlightBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		p := start(t, f, config(2, 2))
		f.put(f.entry(1, ""), f.entry(2, ""))
		for range 2 { // after the first, a fetch for one is under way
			m := recv(t, p)
			middleware.DeliveryFrom(m.Context()).RedeliverAfter(time.Second)
			m.Nack()
			synctest.Wait()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		f.put(f.entry(3, ""))
		synctest.Wait()
		resident, held := p.d.snapshot()
		require.Equal(t, 2, resident)
		require.Equal(t, 1, held)
		for range 3 {
			m := recv(t, p)
			if m.UUID == "e0003" {
				require.Equal(t, 1, middleware.DeliveryFrom(m.Context()).Count(), "holding is no delivery")
			}
			m.Ack()
		}
		synctest.Wait()
		require.Equal(t, []string{"e0001", "e0002", "e0003"}, f.ackedIDs())
	})
}

// TestBusyKeyLeavesRoom: while one key's handler is stuck, the entries behind it
// take half of the room at most.
func TestBusyKeyLeavesRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		cfg := config(2, 8)
		cfg.Order = true
		p := start(t, f, cfg)
		for i := range 100 {
			f.put(f.entry(i, "busy"))
		}
		stuck := recv(t, p)
		f.put(f.entry(200, "other"))
		other := recv(t, p)
		require.Equal(t, "e0200", other.UUID)
		other.Ack()
		stuck.Ack()
		for i := 1; i < 100; i++ {
			m := recv(t, p)
			require.Equal(t, fmt.Sprintf("e%04d", i), m.UUID)
			m.Ack()
		}
	})
}

// TestLostEntriesLeaveTheirLane: an entry whose lease is lost while it waits is
// never handed out, and its key goes on without it.
func TestLostEntriesLeaveTheirLane_B16(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		cfg := config(1, 20)
		cfg.Order, cfg.NackDelay = true, time.Hour
		p := start(t, f, cfg)
		for i := 1; i <= 6; i++ {
			f.put(f.entry(i, "k"))
		}
		lose := func(id string) {
			f.mu.Lock()
			f.gone[id] = true
			f.mu.Unlock()
			time.Sleep(3 * time.Second)
			require.False(t, p.d.mine(id))
		}
		first := recv(t, p)
		lose("e0003") // in the middle
		lose("e0006") // at the end
		first.Ack()
		second := recv(t, p)
		require.Equal(t, "e0002", second.UUID)
		second.Nack() // for an hour, in front of the others
		synctest.Wait()
		begin := time.Now()
		lose("e0002")
		for _, want := range []string{"e0004", "e0005"} {
			m := recv(t, p)
			require.Equal(t, want, m.UUID)
			m.Ack()
		}
		require.Less(t, time.Since(begin), time.Minute, "the key does not wait for what is lost")
		f.put(f.entry(7, "k"))
		m := recv(t, p)
		require.Equal(t, "e0007", m.UUID)
		m.Ack()
	})
}

// TestTheSameEntryTwice: a server that lost its last second may hand out again
// what is in hand here.
func TestTheSameEntryTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		p := start(t, f, config(2, 4))
		f.put(f.entry(1, ""))
		m := recv(t, p)
		f.put(f.entry(1, ""), f.entry(2, ""))
		next := recv(t, p)
		require.Equal(t, "e0002", next.UUID)
		m.Ack()
		next.Ack()
		synctest.Wait()
		require.Equal(t, []string{"e0001", "e0002"}, f.ackedIDs())
	})
}

// TestSubscriberCloses: a Close that comes while Subscribe is joining drains what
// it joined; later Subscribes are refused.
func TestSubscriberCloses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		joining, join := make(chan struct{}), make(chan struct{})
		s := NewSubscriber(config(1, 1), func(context.Context, string) error { return nil },
			func(context.Context, Config) (Source, error) {
				close(joining)
				<-join
				return newFake(), nil
			})
		require.NoError(t, s.SubscribeInitialize("t"))
		closed := make(chan struct{})
		go func() {
			<-joining
			go func() {
				_ = s.Close()
				close(closed)
			}()
			time.Sleep(time.Second)
			close(join)
		}()
		ch, err := s.Subscribe(context.Background(), "t")
		require.NoError(t, err)
		_, open := <-ch
		require.False(t, open)
		<-closed
		_, err = s.Subscribe(context.Background(), "t")
		require.ErrorIs(t, err, broker.ErrClosed)
	})
}
