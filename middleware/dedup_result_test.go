package middleware_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/stretchr/testify/require"
)

// seen is what a broker would show of a message.
func seen(msgs []*message.Message) []string {
	out := make([]string, 0, len(msgs))
	for _, m := range msgs {
		out = append(out, fmt.Sprintf("%q %q %v", m.UUID, m.Payload, m.Metadata))
	}
	return out
}

// produce is a handler that returns two new messages at each call, with ids of
// its own.
func produce(c *counter) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		n := c.note(msg.Metadata[events.KeyID])
		a := message.NewMessage(watermill.NewUUID(), []byte(fmt.Sprintf("a%d\x00\xff", n)))
		a.Metadata[events.KeyType] = "payment.charged"
		a.Metadata["odd"] = "\xff=;\n"
		return []*message.Message{a, message.NewMessage(watermill.NewUUID(), nil)}, nil
	}
}

// B29: with KeepResult a failed publish does not run the handler again, and what
// is published then, and for each later copy, is the same with the same ids.
func TestB29KeepResultOverAFailedPublish(t *testing.T) {
	t.Parallel()
	out, store, calls := &flaky{failures: 1, sink: newSink()}, newResultStore(), newCounter()
	b := startRouter(t, nil, out, produce(calls), middleware.Correlate(middleware.CorrelationConfig{}),
		dedup(t, middleware.DedupConfig{Store: store, KeepResult: true}))
	b.publish(t, newMessage("1"))
	for range 2 {
		await(t, "what was produced", out.arrived)
	}
	b.publish(t, newMessage("1"))
	for range 2 {
		await(t, "what was produced, again", out.arrived)
	}
	require.Equal(t, 1, calls.of("1"))
	tried := out.tried()
	require.Len(t, tried, 6)
	require.Equal(t, tried[:2], tried[2:4], "after the failure")
	require.Equal(t, tried[:2], tried[4:], "for the copy")
	got := out.messages()
	for _, m := range got {
		require.Equal(t, "1", m.Metadata[events.KeyCorrelation], "copies are stamped as the first was")
		delete(m.Metadata, events.KeyTraceParent)
	}
	require.Equal(t, seen(got[:2]), seen(got[2:]))
}

// A process that dies between the commit and the publish: the redelivery
// publishes what was committed. Ids that the handler left out are those that
// Correlate gives, so they do not depend on which layer is there.
func TestKeepResultOverACrash(t *testing.T) {
	t.Parallel()
	store := newResultStore()
	h := &failing{}
	run := func() []*message.Message {
		produced, err := dedup(t, middleware.DedupConfig{Store: store, KeepResult: true, Handler: "charge-order"})(
			func(msg *message.Message) ([]*message.Message, error) {
				_, _ = h.handle(msg)
				return []*message.Message{message.NewMessage("", []byte("a")), nil, message.NewMessage("", []byte("b"))}, nil
			})(newMessage("1"))
		require.NoError(t, err)
		return produced
	}
	first := run() // never acked
	require.Len(t, first, 3)
	again := run()
	require.Equal(t, 1, h.count())
	require.Equal(t, seen([]*message.Message{first[0], first[2]}), seen(again))
	require.NotEqual(t, again[0].UUID, again[1].UUID)
	plain, err := middleware.Correlate(middleware.CorrelationConfig{})(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("", []byte("a"))}, nil
	})(newMessage("1"))
	require.NoError(t, err)
	require.Equal(t, plain[0].UUID, again[0].UUID)

	again[0].Payload[0] = 'x'
	require.Equal(t, "a", string(run()[0].Payload), "a copy is nobody else's memory")

	produced, err := dedup(t, middleware.DedupConfig{Store: store, Handler: "charge-order"})(succeed)(newMessage("1"))
	require.NoError(t, err)
	require.Len(t, produced, 2, "also once KeepResult is off: it may not be published yet")
}

// What is too large is handled as without KeepResult: recorded once published.
func TestKeepResultTooLarge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		payload, limit int
		metadata       string
		store          error
		kept           bool
	}{
		"fits":                   {payload: 1000, limit: 1100, kept: true},
		"payload too large":      {payload: 1100, limit: 1100},
		"metadata too large":     {payload: 1000, limit: 1100, metadata: strings.Repeat("x", 200)},
		"default limit":          {payload: middleware.DefaultMaxResultBytes},
		"the most":               {payload: middleware.MaxResultBytes - 100, limit: middleware.MaxResultBytes, kept: true},
		"the store takes less":   {payload: 1000, store: middleware.ErrResultTooLarge},
		"the store names a size": {payload: 1000, store: fmt.Errorf("item: %w", middleware.ErrResultTooLarge)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newResultStore()
			store.fail = func(int) error { return c.store }
			h := &failing{}
			run := func() (*message.Message, []*message.Message) {
				msg := newMessage("1")
				produced, err := dedup(t, middleware.DedupConfig{Store: store, KeepResult: true, MaxResultBytes: c.limit})(
					func(msg *message.Message) ([]*message.Message, error) {
						_, _ = h.handle(msg)
						m := message.NewMessage("o", make([]byte, c.payload))
						m.Metadata["m"] = c.metadata
						return []*message.Message{m}, nil
					})(msg)
				require.NoError(t, err)
				return msg, produced
			}
			msg, produced := run()
			require.Len(t, produced, 1)
			if c.kept {
				_, produced = run()
				require.Len(t, produced, 1)
				require.Equal(t, 1, h.count())
				return
			}
			msg.Nack()
			await(t, "the release", store.released)
			msg, produced = run()
			require.Len(t, produced, 1, "the claim was held until then")
			require.Equal(t, 2, h.count())
			msg.Ack()
			await(t, "the commit", store.committed)
			_, produced = run()
			require.Empty(t, produced)
			require.Equal(t, 2, h.count())
		})
	}
}

// A store that is down when the handler has succeeded: its messages go out, and
// the result is kept when they are.
func TestKeepResultStoreDown(t *testing.T) {
	t.Parallel()
	store := newResultStore()
	down := true
	store.fail = func(int) error {
		if down {
			return errBoom
		}
		return nil
	}
	calls := newCounter()
	run := dedup(t, middleware.DedupConfig{Store: store, KeepResult: true, StoreTimeout: 50 * time.Millisecond})(produce(calls))
	msg := newMessage("1")
	first, err := run(msg)
	require.NoError(t, err)
	require.Len(t, first, 2)
	down = false
	msg.Ack()
	await(t, "the commit", store.committed)
	again, err := run(newMessage("1"))
	require.NoError(t, err)
	require.Equal(t, seen(first), seen(again))
	require.Equal(t, 1, calls.of("1"))
}

// A worker whose claim was taken over publishes nothing: when its message comes
// again it publishes what the winner produced.
func TestKeepResultClaimLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newResultStore()
		var winner []*message.Message
		calls := newCounter()
		cfg := middleware.DedupConfig{Store: store, KeepResult: true, Lease: time.Second, Handler: "h"}
		slow := dedup(t, cfg)(func(msg *message.Message) ([]*message.Message, error) {
			time.Sleep(2 * time.Second)
			var err error
			winner, err = dedup(t, cfg)(produce(calls))(newMessage("1"))
			require.NoError(t, err)
			return produce(calls)(msg)
		})
		msg, d := delivered(newMessage("1"), 1, nil)
		produced, err := slow(msg)
		require.ErrorIs(t, err, middleware.ErrClaimLost)
		require.Empty(t, produced)
		disposition, after := middleware.DispositionOf(err)
		require.Equal(t, middleware.DispositionDefer, disposition)
		require.Positive(t, after)
		require.True(t, d.Released())
		again, err := slow(newMessage("1"))
		require.NoError(t, err)
		require.Equal(t, seen(winner), seen(again))
	})
}

// A handler that returns nothing is recorded at once, without a result.
func TestKeepResultOfNothing(t *testing.T) {
	t.Parallel()
	store := newResultStore()
	run := dedup(t, middleware.DedupConfig{Store: store, KeepResult: true})(succeed)
	for range 2 {
		produced, err := run(newMessage("1"))
		require.NoError(t, err)
		require.Empty(t, produced)
	}
	require.Len(t, store.committed, 1)
}

// A result that can't be read is a dead letter, not a silent duplicate.
func TestKeptResultUnreadable(t *testing.T) {
	t.Parallel()
	whole := keptBytes(t)
	for n := 1; n < len(whole); n++ {
		_, err := duplicateOf(t, whole[:n])
		require.ErrorIs(t, err, middleware.ErrResultUnreadable, n)
	}
	for _, bad := range [][]byte{{2}, {0}, append(bytes.Clone(whole), 0), {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}} {
		_, err := duplicateOf(t, bad)
		require.ErrorIs(t, err, middleware.ErrResultUnreadable)
		disposition, _ := middleware.DispositionOf(err)
		require.Equal(t, middleware.DispositionPermanent, disposition)
	}
	produced, err := duplicateOf(t, whole)
	require.NoError(t, err)
	require.Len(t, produced, 2)
}

func FuzzKeptResult(f *testing.F) {
	f.Add([]byte{1, 1, 1, 'u', 1, 1, 'k', 1, 'v', 1, 'p'})
	f.Add([]byte{1, 200})
	f.Fuzz(func(t *testing.T, b []byte) {
		produced, err := duplicateOf(t, b)
		if err == nil {
			require.LessOrEqual(t, len(produced), len(b))
		} else {
			require.ErrorIs(t, err, middleware.ErrResultUnreadable)
		}
	})
}

// duplicateOf hands Dedup a copy of a message whose kept result is b.
func duplicateOf(t testing.TB, b []byte) ([]*message.Message, error) {
	store := &stubStore{claim: middleware.Claim{State: middleware.ClaimDone, Result: b}}
	return dedup(t, middleware.DedupConfig{Store: store})(succeed)(newMessage("1"))
}

// keptBytes is a result as it is stored.
func keptBytes(t testing.TB) []byte {
	store := newResultStore()
	_, err := dedup(t, middleware.DedupConfig{Store: store, KeepResult: true, Handler: "h"})(produce(newCounter()))(newMessage("1"))
	require.NoError(t, err)
	c, err := store.Claim(t.Context(), "h/1", time.Minute)
	require.NoError(t, err)
	require.Equal(t, middleware.ClaimDone, c.State)
	return c.Result
}

func TestKeepResultNeedsAStoreThatCan(t *testing.T) {
	t.Parallel()
	cfg := middleware.DedupConfig{Store: &stubStore{}, KeepResult: true, MaxResultBytes: middleware.MaxResultBytes + 1}
	_, err := middleware.Dedup(cfg)
	require.ErrorContains(t, err, "*middleware_test.stubStore, keeps no results")
	require.ErrorContains(t, err, "MaxResultBytes is 262145")
	_, err = middleware.NewStack(middleware.StackConfig{
		Handler: "h", Poison: middleware.PoisonConfig{Publisher: newSink(), Topic: "dead"}, Dedup: &cfg,
	})
	require.ErrorContains(t, err, "keeps no results")
}

// The memory's results are bounded: the oldest keys go first.
func TestMemoryDedupResultsAreBounded(t *testing.T) {
	t.Parallel()
	s := middleware.NewMemoryDedup(middleware.MemoryDedupConfig{MaxResults: 1})
	half := make([]byte, middleware.MaxResultBytes/2) // two fit, the least there is
	commit := func(key string, result []byte) {
		require.NoError(t, s.CommitResult(t.Context(), claim(t, s, key), time.Hour, result))
	}
	for i := range 10 {
		commit(fmt.Sprint(i), half)
		require.LessOrEqual(t, s.Len(), 2)
	}
	require.Len(t, claim(t, s, "9").Result, len(half))
	require.Len(t, claim(t, s, "8").Result, len(half))
	commit("whole", make([]byte, middleware.MaxResultBytes))
	require.Equal(t, 1, s.Len())
	require.Len(t, claim(t, s, "whole").Result, middleware.MaxResultBytes)
	require.Equal(t, middleware.ClaimAcquired, claim(t, s, "9").State)
	for i := range 100 {
		commit(fmt.Sprint("without", i), nil)
	}
	require.Equal(t, 102, s.Len(), "keys without a result cost none of it")
}

// resultStore tells when a key was committed or released, and fails as told.
type resultStore struct {
	*middleware.MemoryDedup
	committed, released chan struct{}
	mu                  sync.Mutex
	calls               int
	fail                func(call int) error
}

func newResultStore() *resultStore {
	return &resultStore{
		MemoryDedup: middleware.NewMemoryDedup(middleware.MemoryDedupConfig{}),
		committed:   make(chan struct{}, 100), released: make(chan struct{}, 100),
	}
}

func (s *resultStore) CommitResult(ctx context.Context, c middleware.Claim, retention time.Duration, result []byte) error {
	s.mu.Lock()
	s.calls++
	n := s.calls
	s.mu.Unlock()
	if s.fail != nil {
		if err := s.fail(n); err != nil {
			return err
		}
	}
	err := s.MemoryDedup.CommitResult(ctx, c, retention, result)
	s.committed <- struct{}{}
	return err
}

func (s *resultStore) Commit(ctx context.Context, c middleware.Claim, retention time.Duration) error {
	err := s.MemoryDedup.Commit(ctx, c, retention)
	s.committed <- struct{}{}
	return err
}

func (s *resultStore) Release(ctx context.Context, c middleware.Claim) error {
	err := s.MemoryDedup.Release(ctx, c)
	s.released <- struct{}{}
	return err
}

// A copy of a message publishes what the first one produced.
func ExampleDedupConfig_keepResult() {
	dedup, err := middleware.Dedup(middleware.DedupConfig{
		Store:      middleware.NewMemoryDedup(middleware.MemoryDedupConfig{}),
		KeepResult: true,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	charges := 0
	h := dedup(func(msg *message.Message) ([]*message.Message, error) {
		charges++
		return []*message.Message{message.NewMessage(watermill.NewUUID(), []byte(fmt.Sprint("charge ", charges)))}, nil
	})
	first, _ := h(message.NewMessage("event-1", nil))
	again, _ := h(message.NewMessage("event-1", nil))
	fmt.Println(string(first[0].Payload), "and", string(again[0].Payload), first[0].UUID == again[0].UUID)
	// Output: charge 1 and charge 1 true
}
