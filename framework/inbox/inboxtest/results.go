package inboxtest

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/middleware"
)

// resultsOf are the stores, where they keep results.
func (s *suite) resultsOf(t *testing.T) (first, second middleware.ResultStore) {
	t.Helper()
	first, ok := s.First.(middleware.ResultStore)
	require.True(t, ok)
	second, ok = s.Second.(middleware.ResultStore)
	require.True(t, ok, "Second keeps none")
	return first, second
}

func (s *suite) finds(t *testing.T, key string, want []byte) {
	t.Helper()
	for _, store := range []middleware.DedupStore{s.First, s.Second} {
		c := s.claim(t, store, key, time.Minute)
		require.Equal(t, middleware.ClaimDone, c.State)
		require.True(t, bytes.Equal(want, c.Result), "%d bytes came back, of %d", len(c.Result), len(want))
		for i := range c.Result { // it is the caller's own
			c.Result[i]++
		}
	}
}

// What was kept with the mark comes back as it was, for as long as the mark.
func (s *suite) results(t *testing.T) {
	first, second := s.resultsOf(t)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for name, result := range map[string][]byte{
		"one byte": {0}, "every byte": every, "text": []byte("d:c:'\"\\\n"), "the largest": bytes.Repeat(every, middleware.MaxResultBytes/256),
	} {
		key := s.key("results/" + name)
		given := bytes.Clone(result)
		c := s.acquire(t, first, key, time.Minute)
		require.NoError(t, first.CommitResult(t.Context(), c, time.Hour, given))
		for i := range given { // the store has its own
			given[i]++
		}
		s.finds(t, key, result)
		require.NoError(t, second.CommitResult(t.Context(), c, time.Hour, result), "a commit whose answer was lost is made again")
		s.release(t, first, c)
		s.finds(t, key, result)
	}

	key := s.key("results/none")
	c := s.acquire(t, first, key, time.Minute)
	require.Empty(t, c.Result)
	require.Empty(t, s.claim(t, second, key, time.Minute).Result, "busy")
	require.NoError(t, first.CommitResult(t.Context(), c, time.Hour, nil))
	s.finds(t, key, nil)

	key = s.key("results/too large")
	c = s.acquire(t, first, key, time.Minute)
	require.ErrorIs(t, first.CommitResult(t.Context(), c, time.Hour, make([]byte, middleware.MaxResultBytes+1)), middleware.ErrResultTooLarge)
	require.ErrorContains(t, first.CommitResult(t.Context(), c, 0, []byte("r")), "retention")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, first.CommitResult(ended, c, time.Hour, []byte("r")), context.Canceled)
	require.Equal(t, middleware.ClaimBusy, s.claim(t, second, key, time.Minute).State, "the claim is still held")
	require.NoError(t, first.Commit(t.Context(), c, time.Hour))
	s.finds(t, key, nil)
}

// A result ends with its mark, and only the holder of a claim gives one.
func (s *suite) resultEnds(t *testing.T) {
	first, second := s.resultsOf(t)
	key := s.key("result ends")
	old := s.acquire(t, first, key, time.Minute)
	began := time.Now()
	require.NoError(t, first.CommitResult(t.Context(), old, s.Lease, []byte("old")))
	next := s.untilAcquired(t, key, middleware.ClaimDone, began, time.Now(), s.Lease)
	require.Empty(t, next.Result)
	require.ErrorIs(t, first.CommitResult(t.Context(), old, time.Hour, []byte("old")), middleware.ErrClaimLost)
	require.Empty(t, s.claim(t, first, key, time.Minute).Result, "busy")
	require.NoError(t, second.Commit(t.Context(), next, time.Hour))
	s.finds(t, key, nil)

	key = s.key("result lost")
	dead := s.acquire(t, first, key, s.Lease)
	next = s.untilAcquired(t, key, middleware.ClaimBusy, time.Now().Add(-s.Lease-s.Margin), time.Now(), s.Lease)
	require.NoError(t, second.CommitResult(t.Context(), next, time.Hour, []byte("the winner's")))
	require.ErrorIs(t, first.CommitResult(t.Context(), dead, time.Hour, []byte("the loser's")), middleware.ErrClaimLost)
	s.finds(t, key, []byte("the winner's"))
}

// Whoever finds the key done finds the whole result with it.
func (s *suite) resultAtOnce(t *testing.T) {
	first, second := s.resultsOf(t)
	key := s.key("result at once")
	want := bytes.Repeat([]byte("0123456789abcdef"), 1024)
	c := s.acquire(t, first, key, time.Minute)
	var all sync.WaitGroup
	ready := make(chan struct{}, s.Goroutines)
	for range s.Goroutines / 10 {
		all.Go(func() {
			for n := 0; ; n++ {
				found, err := second.Claim(t.Context(), key, time.Minute)
				if n == 0 {
					ready <- struct{}{}
				}
				switch {
				case err != nil:
					t.Error(err)
					return
				case found.State == middleware.ClaimBusy:
					pause(t, time.Millisecond)
					continue
				case found.State == middleware.ClaimAcquired || !bytes.Equal(found.Result, want):
					t.Errorf("state %d with %d bytes", found.State, len(found.Result))
				}
				return
			}
		})
	}
	for range s.Goroutines / 10 {
		<-ready
	}
	if err := first.CommitResult(t.Context(), c, time.Hour, want); err != nil {
		t.Error(err)
	}
	all.Wait()
}
