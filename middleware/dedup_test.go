package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func dedup(t testing.TB, cfg middleware.DedupConfig) message.HandlerMiddleware {
	if cfg.Store == nil {
		cfg.Store = middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})
	}
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	return must(t)(middleware.Dedup(cfg))
}

// B02 and Watermill fault 5: only a success makes later copies duplicates.
func TestB02DedupWithRetry(t *testing.T) {
	t.Parallel()
	t.Run("fail twice then succeed", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			h := &failing{n: 2, err: errBoom}
			run := middleware.Chain(retry(t, middleware.RetryConfig{}), dedup(t, middleware.DedupConfig{}))(h.handle)
			for range 3 {
				_, err := run(newMessage("1"))
				require.NoError(t, err)
			}
			require.Equal(t, 3, h.count())
		})
	})
	t.Run("fail until redelivery", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			h := &failing{n: 7, err: errBoom}
			run := middleware.Chain(retry(t, middleware.RetryConfig{}), dedup(t, middleware.DedupConfig{}))(h.handle)
			_, err := run(newMessage("1"))
			require.Error(t, err)
			_, err = run(newMessage("1"))
			require.NoError(t, err)
			require.Equal(t, 8, h.count())
			_, err = run(newMessage("1"))
			require.NoError(t, err)
			require.Equal(t, 8, h.count())
		})
	})
	t.Run("succeed but lose the ack", func(t *testing.T) {
		t.Parallel()
		reg := prometheus.NewRegistry()
		h := &failing{}
		run := dedup(t, middleware.DedupConfig{Metrics: newMetrics(t, reg), Handler: "charge-order"})(h.handle)
		for range 3 { // the router acks each; the broker never hears of the first two
			_, err := run(newMessage("1"))
			require.NoError(t, err)
		}
		require.Equal(t, 1, h.count())
		require.Equal(t, 2.0, value(t, reg, "headrace_dedup_hits_total"))
	})
	t.Run("panic and goexit release the claim", func(t *testing.T) {
		t.Parallel()
		for _, crash := range []func(){func() { panic("x") }, runtime.Goexit} {
			calls := 0
			run := middleware.Chain(middleware.Recover(middleware.RecoverConfig{}), dedup(t, middleware.DedupConfig{}))(
				func(*message.Message) ([]*message.Message, error) {
					if calls++; calls == 1 {
						crash()
					}
					return nil, nil
				})
			_, err := run(newMessage("1"))
			require.Error(t, err)
			_, err = run(newMessage("1"))
			require.NoError(t, err)
			require.Equal(t, 2, calls)
		}
	})
}

// Watermill fault 5: the payload is no key, and handlers that share a store
// don't starve each other.
func TestFault5DedupKeys(t *testing.T) {
	t.Parallel()
	h := &failing{}
	run := dedup(t, middleware.DedupConfig{})(h.handle)
	for _, id := range []string{"1", "2", "3"} {
		msg := newMessage(id)
		msg.Payload = []byte(`{"same":"bytes"}`)
		_, err := run(msg)
		require.NoError(t, err)
	}
	require.Equal(t, 3, h.count())

	store := middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})
	names := []string{"charge", "refund", "a/b", "a", strings.Repeat("long", 200), "naïve"}
	for _, name := range names {
		h := &failing{}
		run := dedup(t, middleware.DedupConfig{Store: store, Handler: name})(h.handle)
		for _, id := range []string{"1", "b/1", strings.Repeat("i", 1000), "line\nbreak", "\x00", "\xff"} {
			for range 2 {
				_, err := run(newMessage(id))
				require.NoError(t, err)
			}
		}
		require.Equal(t, 6, h.count(), name)
	}
}

// A key is fit for any store: printable ASCII of at most 512 bytes.
func TestDedupKeysAreStorable(t *testing.T) {
	t.Parallel()
	store := &stubStore{}
	for _, id := range []string{"1", "a/b", strings.Repeat("é", 3000), "x\x00", "tab\t"} {
		for _, handler := range []string{"h", strings.Repeat("h/", 500)} {
			_, _ = dedup(t, middleware.DedupConfig{Store: store, Handler: handler})(succeed)(newMessage(id))
		}
	}
	seen := map[string]bool{}
	for _, key := range store.keys {
		require.LessOrEqual(t, len(key), 512)
		require.Equal(t, -1, strings.IndexFunc(key, func(r rune) bool { return r < 0x20 || r > 0x7e }))
		seen[key] = true
	}
	require.Len(t, seen, 10)
}

// B29: two different messages without an id are both handled, and counted.
func TestB29MessagesWithoutID(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	h := &failing{}
	run := dedup(t, middleware.DedupConfig{Metrics: newMetrics(t, reg), Handler: "charge-order"})(h.handle)
	for _, payload := range []string{"one", "two", "two"} {
		_, err := run(message.NewMessage("", []byte(payload)))
		require.NoError(t, err)
	}
	require.Equal(t, 3, h.count())
	require.Equal(t, 3.0, value(t, reg, "headrace_dedup_without_id_total"))
	// Without an event id the UUID is the key.
	for range 2 {
		_, err := run(message.NewMessage("u", nil))
		require.NoError(t, err)
	}
	require.Equal(t, 4, h.count())
}

// B29: what a handler returned is not lost when publishing it fails once: the
// message counts as handled only when the router has acked it.
func TestB29FailedPublishOfProduced(t *testing.T) {
	t.Parallel()
	out, store, calls := &flaky{failures: 1, sink: newSink()}, newSignalStore(), newCounter()
	b := startRouter(t, nil, out, func(msg *message.Message) ([]*message.Message, error) {
		calls.note(msg.Metadata[events.KeyID])
		return []*message.Message{message.NewMessage("", []byte("a")), message.NewMessage("", []byte("b"))}, nil
	}, middleware.Correlate(middleware.CorrelationConfig{}), retry(t, middleware.RetryConfig{}),
		dedup(t, middleware.DedupConfig{Store: store}))
	b.publish(t, newMessage("1"))
	await(t, "the first output", out.arrived)
	await(t, "the second output", out.arrived)
	require.Equal(t, 2, calls.of("1"))
	tried := out.tried()
	require.Len(t, tried, 4)
	require.Equal(t, tried[:2], tried[2:], "ids are stable across attempts")
	await(t, "the commit", store.committed)
	b.publish(t, newMessage("1"))
	await(t, "the duplicate", store.done)
	require.Equal(t, 2, calls.of("1"))
}

// signalStore tells when a key was committed, and when one was found done.
type signalStore struct {
	*middleware.MemoryDedup
	committed, done chan struct{}
}

func newSignalStore() *signalStore {
	return &signalStore{
		MemoryDedup: middleware.NewMemoryDedup(middleware.MemoryDedupConfig{}),
		committed:   make(chan struct{}, 100), done: make(chan struct{}, 100),
	}
}

func (s *signalStore) Claim(ctx context.Context, key string, lease time.Duration) (middleware.Claim, error) {
	c, err := s.MemoryDedup.Claim(ctx, key, lease)
	if c.State == middleware.ClaimDone {
		s.done <- struct{}{}
	}
	return c, err
}

func (s *signalStore) Commit(ctx context.Context, c middleware.Claim, retention time.Duration) error {
	err := s.MemoryDedup.Commit(ctx, c, retention)
	s.committed <- struct{}{}
	return err
}

// flaky refuses the first publishes.
type flaky struct {
	*sink
	mu       sync.Mutex
	failures int
	ids      []string
}

func (f *flaky) Publish(topic string, msgs ...*message.Message) error {
	f.mu.Lock()
	for _, m := range msgs {
		f.ids = append(f.ids, m.UUID)
	}
	fail := f.failures > 0
	f.failures--
	f.mu.Unlock()
	if fail {
		return errBoom
	}
	return f.sink.Publish(topic, msgs...)
}

func (f *flaky) tried() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.ids...)
}

// stubStore answers as told and notes what it is asked.
type stubStore struct {
	mu        sync.Mutex
	claim     middleware.Claim
	claimErr  error
	commitErr []error
	keys      []string
	leases    []time.Duration
	commits   int
	releases  int
	ctxErrs   []error
}

func (s *stubStore) Claim(_ context.Context, key string, lease time.Duration) (middleware.Claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys, s.leases = append(s.keys, key), append(s.leases, lease)
	c := s.claim
	c.Key = key
	return c, s.claimErr
}

func (s *stubStore) Commit(ctx context.Context, _ middleware.Claim, _ time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commits++
	s.ctxErrs = append(s.ctxErrs, ctx.Err())
	if len(s.commitErr) > 0 {
		err := s.commitErr[0]
		s.commitErr = s.commitErr[1:]
		return err
	}
	return nil
}

func (s *stubStore) Release(ctx context.Context, _ middleware.Claim) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releases++
	s.ctxErrs = append(s.ctxErrs, ctx.Err())
	return nil
}

func TestDedupDefersWhatItCannotDecide(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		store *stubStore
		want  error
		after time.Duration
	}{
		"busy":         {&stubStore{claim: middleware.Claim{State: middleware.ClaimBusy}}, middleware.ErrBusy, time.Second},
		"busy a while": {&stubStore{claim: middleware.Claim{State: middleware.ClaimBusy, RetryAfter: 2 * time.Second}}, middleware.ErrBusy, 2 * time.Second},
		"busy long":    {&stubStore{claim: middleware.Claim{State: middleware.ClaimBusy, RetryAfter: time.Hour}}, middleware.ErrBusy, 5 * time.Second},
		"store down":   {&stubStore{claimErr: errBoom}, middleware.ErrDedupStore, 2500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &failing{}
			msg, d := delivered(newMessage("1"), 1, nil)
			_, err := dedup(t, middleware.DedupConfig{Store: c.store})(h.handle)(msg)
			disposition, after := middleware.DispositionOf(err)
			require.Equal(t, middleware.DispositionDefer, disposition)
			require.ErrorIs(t, err, c.want)
			require.GreaterOrEqual(t, after, c.after)
			require.LessOrEqual(t, after, 2*c.after)
			require.Zero(t, h.count())
			require.True(t, d.Released())
			delay, _ := d.NackDelay()
			require.Equal(t, after, delay)
		})
	}
	t.Run("shutdown", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		msg := newMessage("1")
		msg.SetContext(ctx)
		_, err := dedup(t, middleware.DedupConfig{Store: &stubStore{claimErr: context.Canceled}})(succeed)(msg)
		require.ErrorIs(t, err, middleware.ErrShuttingDown)
	})
	t.Run("a stock subscriber is not made to loop", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			store := &stubStore{claim: middleware.Claim{State: middleware.ClaimBusy, RetryAfter: 2 * time.Second}}
			_, err := middleware.Chain(retry(t, middleware.RetryConfig{}), dedup(t, middleware.DedupConfig{Store: store}))(succeed)(newMessage("1"))
			require.ErrorIs(t, err, middleware.ErrBusy)
			_, after := middleware.DispositionOf(err)
			require.Equal(t, after, time.Since(start), "waited out once, in process")
		})
	})
}

// Commit and release work on a context that outlives the message's.
func TestDedupSettlesAfterShutdown(t *testing.T) {
	t.Parallel()
	for _, handlerErr := range []error{nil, errBoom} {
		store := &stubStore{}
		ctx, cancel := context.WithCancel(t.Context())
		msg := newMessage("1")
		msg.SetContext(ctx)
		_, err := dedup(t, middleware.DedupConfig{Store: store})(func(*message.Message) ([]*message.Message, error) {
			cancel()
			return nil, handlerErr
		})(msg)
		require.Equal(t, handlerErr, err)
		require.Equal(t, []error{nil}, store.ctxErrs)
		require.Equal(t, handlerErr == nil, store.commits == 1)
		require.Equal(t, handlerErr != nil, store.releases == 1)
	}
}

// A handler that succeeded is not run again because its key could not be
// written: the write is tried again, and then given up.
func TestDedupCommitFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &stubStore{commitErr: []error{errBoom, errBoom}}
		_, err := dedup(t, middleware.DedupConfig{Store: store})(succeed)(newMessage("1"))
		require.NoError(t, err)
		require.Equal(t, 3, store.commits)
		require.Zero(t, store.releases)
	})
	synctest.Test(t, func(t *testing.T) {
		store := &stubStore{}
		for range 10_000 {
			store.commitErr = append(store.commitErr, errBoom)
		}
		start := time.Now()
		_, err := dedup(t, middleware.DedupConfig{Store: store})(succeed)(newMessage("1"))
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(start), middleware.DefaultDedupStoreTimeout)
	})
	store := &stubStore{commitErr: []error{fmt.Errorf("commit: %w", middleware.ErrClaimLost)}}
	_, err := dedup(t, middleware.DedupConfig{Store: store})(succeed)(newMessage("1"))
	require.NoError(t, err)
	require.Equal(t, 1, store.commits)
}

func TestDedupLeaseCoversTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &stubStore{}
		run := dedup(t, middleware.DedupConfig{Store: store, Lease: 30 * time.Second})
		_, err := run(succeed)(newMessage("1"))
		require.NoError(t, err)
		_, err = middleware.Chain(timeout(t, 2*time.Minute, nil), run)(succeed)(newMessage("1"))
		require.NoError(t, err)
		require.Equal(t, []time.Duration{30 * time.Second, 2*time.Minute + 5*time.Second}, store.leases)
	})
}

// A message with outputs that is never acked nor nacked leaves its claim to the
// lease, and no goroutine behind.
func TestDedupNeverSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &stubStore{}
		_, err := dedup(t, middleware.DedupConfig{Store: store, Lease: time.Second})(
			func(*message.Message) ([]*message.Message, error) { return []*message.Message{newMessage("o")}, nil })(newMessage("1"))
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		require.Zero(t, store.commits+store.releases)
	})
}

func TestDedupValidates(t *testing.T) {
	t.Parallel()
	_, err := middleware.Dedup(middleware.DedupConfig{Lease: -1, Retention: -2, StoreTimeout: -1})
	for _, want := range []string{"Store is nil", "Lease is -1", "Retention is -2", "StoreTimeout is -1"} {
		require.ErrorContains(t, err, want)
	}
}

func ExampleDedup() {
	dedup, err := middleware.Dedup(middleware.DedupConfig{
		Store: middleware.NewMemoryDedup(middleware.MemoryDedupConfig{}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fail := true
	h := dedup(func(msg *message.Message) ([]*message.Message, error) {
		if fail {
			fail = false
			return nil, errors.New("gateway is busy")
		}
		fmt.Println("charged for", msg.UUID)
		return nil, nil
	})
	for range 3 {
		_, err = h(message.NewMessage("event-1", nil))
		fmt.Println(err)
	}
	// Output:
	// gateway is busy
	// charged for event-1
	// <nil>
	// <nil>
}
