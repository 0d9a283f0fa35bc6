package inboxtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/middleware"
)

func (s *suite) steps(t *testing.T) {
	key := s.key("steps")
	first := s.acquire(t, s.First, key, time.Minute)
	for _, store := range []middleware.DedupStore{s.First, s.Second} {
		busy := s.claim(t, store, key, time.Hour)
		require.Equal(t, middleware.ClaimBusy, busy.State)
		require.LessOrEqual(t, busy.RetryAfter, time.Minute+s.Margin+tolerance, "it is the holder's lease")
		if busy.RetryAfter != 0 {
			require.Greater(t, busy.RetryAfter, 30*time.Second)
		}
	}

	stranger := middleware.Claim{Key: key, Token: "another's"}
	s.release(t, s.Second, stranger)
	require.ErrorIs(t, s.Second.Commit(t.Context(), stranger, time.Hour), middleware.ErrClaimLost)
	require.Equal(t, middleware.ClaimBusy, s.claim(t, s.Second, key, time.Minute).State, "a stranger changed nothing")

	require.NoError(t, s.First.Release(t.Context(), first))
	require.ErrorIs(t, s.First.Commit(t.Context(), first, time.Hour), middleware.ErrClaimLost)
	s.release(t, s.First, first)

	second := s.acquire(t, s.Second, key, time.Minute)
	require.NotEqual(t, first.Token, second.Token)
	s.release(t, s.First, first)
	require.ErrorIs(t, s.First.Commit(t.Context(), first, time.Hour), middleware.ErrClaimLost)
	require.NoError(t, s.Second.Commit(t.Context(), second, time.Hour))
	s.isDone(t, key)
	require.NoError(t, s.First.Commit(t.Context(), second, time.Hour), "a commit whose answer was lost is made again")
	s.release(t, s.Second, second)
	require.ErrorIs(t, s.First.Commit(t.Context(), stranger, time.Hour), middleware.ErrClaimLost)
	s.isDone(t, key)

	other := s.key("steps, another")
	require.ErrorIs(t, s.First.Commit(t.Context(), middleware.Claim{Key: other, Token: second.Token}, time.Hour), middleware.ErrClaimLost)
	s.acquire(t, s.First, other, time.Minute)
}

// A worker that died holds its key until the lease ends and no longer; when it
// was only slow, it can neither commit nor release the next one's claim.
func (s *suite) crash(t *testing.T) {
	key := s.key("crash")
	began := time.Now()
	dead := s.acquire(t, s.First, key, s.Lease)
	next := s.untilAcquired(t, key, middleware.ClaimBusy, began, time.Now(), s.Lease)
	require.NotEqual(t, dead.Token, next.Token)
	require.ErrorIs(t, s.First.Commit(t.Context(), dead, time.Hour), middleware.ErrClaimLost)
	s.release(t, s.First, dead)
	require.Equal(t, middleware.ClaimBusy, s.claim(t, s.First, key, time.Minute).State, "the late worker changed nothing")
	require.NoError(t, s.Second.Commit(t.Context(), next, time.Hour))
	require.ErrorIs(t, s.First.Commit(t.Context(), dead, time.Hour), middleware.ErrClaimLost)
	s.isDone(t, key)
}

// A lease that ended with nobody to take the key over: the commit counts or says
// that it does not.
func (s *suite) lateCommit(t *testing.T) {
	key := s.key("late")
	late := s.acquire(t, s.First, key, s.Lease/5)
	pause(t, s.Lease/5+s.Margin+tolerance)
	if err := s.First.Commit(t.Context(), late, time.Hour); err != nil {
		require.ErrorIs(t, err, middleware.ErrClaimLost)
		s.acquire(t, s.Second, key, time.Minute)
		return
	}
	s.isDone(t, key)
}

func (s *suite) retention(t *testing.T) {
	key := s.key("retention")
	c := s.acquire(t, s.First, key, time.Hour)
	began := time.Now()
	require.NoError(t, s.First.Commit(t.Context(), c, s.Lease))
	again := s.untilAcquired(t, key, middleware.ClaimDone, began, time.Now(), s.Lease)
	require.NotEqual(t, c.Token, again.Token)
	require.ErrorIs(t, s.First.Commit(t.Context(), c, time.Hour), middleware.ErrClaimLost, "its mark is over")
	require.NoError(t, s.Second.Commit(t.Context(), again, time.Hour))
	s.isDone(t, key)
}
