package inboxtest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/middleware"
)

// Every printable key up to the limit is one of its own, with no trimming, no
// folding and no pattern in it; any other is refused.
func (s *suite) keys(t *testing.T) {
	long := s.key("long/")
	long += strings.Repeat("x", middleware.MaxDedupKeyBytes-1-len(long))
	var odd strings.Builder
	for b := byte(0x20); b < 0x7f; b++ {
		odd.WriteByte(b)
	}
	good := []string{long + "a", long + "b", long}
	for _, tail := range []string{
		"case", "CASE", "space", "space ", "space  ", "space\\", "a_b", "a%b", "acb", "a*", "a?", "{tag}", "tag", "'", "''", `"`, "`",
		"%00", "$1", ":1", "?", "null", "NULL", "0", "00", "1e3", "1000", odd.String(),
	} {
		good = append(good, s.key("odd/"+tail))
	}
	claims := make([]middleware.Claim, 0, len(good))
	for _, key := range good {
		c, err := s.First.Claim(t.Context(), key, time.Minute)
		require.NoError(t, err, "%q", key)
		require.Equal(t, middleware.ClaimAcquired, c.State, "%q is a key of its own", key)
		claims = append(claims, c)
	}
	for i, c := range claims {
		if i%2 == 0 {
			require.NoError(t, s.Second.Commit(t.Context(), c, time.Hour))
		} else {
			require.NoError(t, s.Second.Release(t.Context(), c))
		}
	}
	for i, key := range good {
		c := s.claim(t, s.First, key, time.Minute)
		if i%2 == 1 {
			require.Equal(t, middleware.ClaimAcquired, c.State, "%q", key)
			require.NoError(t, s.First.Release(t.Context(), c))
			continue
		}
		require.Equal(t, middleware.ClaimDone, c.State, "%q", key)
	}
	for _, key := range []string{" ", s.run[:1]} { // other runs may have them too
		c, err := s.First.Claim(t.Context(), key, time.Minute)
		require.NoError(t, err, "%q", key)
		if c.State == middleware.ClaimAcquired {
			s.release(t, s.First, c)
		}
	}
	for _, key := range []string{"", long + "ab", strings.Repeat("x", 100_000), "nul\x00", "tab\t", "line\n", "del\x7f", "naïve", "\xff"} {
		_, err := s.First.Claim(t.Context(), key, time.Minute)
		require.Error(t, err, "%.20q", key)
		require.Less(t, len(err.Error()), 1000, "a refusal is short")
	}
}

func (s *suite) durations(t *testing.T) {
	key := s.key("durations")
	for _, d := range []time.Duration{0, -time.Second} {
		_, err := s.First.Claim(t.Context(), key, d)
		require.ErrorContains(t, err, d.String())
	}
	c := s.acquire(t, s.First, key, time.Minute)
	for _, d := range []time.Duration{0, -time.Second} {
		err := s.First.Commit(t.Context(), c, d)
		require.ErrorContains(t, err, d.String())
		require.NotErrorIs(t, err, middleware.ErrClaimLost)
	}
	require.Equal(t, middleware.ClaimBusy, s.claim(t, s.Second, key, time.Minute).State)
	require.NoError(t, s.First.Commit(t.Context(), c, 10*365*24*time.Hour), "ten years")
	s.isDone(t, key)

	short := s.key("nanosecond") // rounded up, never to a claim without an end
	_, _ = s.First.Claim(t.Context(), short, time.Nanosecond)
	require.Eventually(t, func() bool {
		c, err := s.Second.Claim(t.Context(), short, time.Minute)
		return err == nil && c.State == middleware.ClaimAcquired
	}, s.Margin+s.Patience, 10*time.Millisecond)
}

func (s *suite) contexts(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	key := s.key("contexts")
	_, err := s.First.Claim(ended, key, time.Hour)
	require.ErrorIs(t, err, context.Canceled)
	c := s.acquire(t, s.First, key, time.Hour)
	require.ErrorIs(t, s.First.Commit(ended, c, time.Hour), context.Canceled)
	require.Equal(t, middleware.ClaimBusy, s.claim(t, s.Second, key, time.Hour).State)
	require.ErrorIs(t, s.First.Release(ended, c), context.Canceled)
	require.Equal(t, middleware.ClaimBusy, s.claim(t, s.Second, key, time.Hour).State)
	require.NoError(t, s.First.Commit(t.Context(), c, time.Hour))

	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	_, err = s.First.Claim(late, key, time.Hour)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// What has expired goes, and nothing else.
func (s *suite) cleanUp(t *testing.T) {
	claimed, done := s.key("cleanup/claimed"), s.key("cleanup/done")
	s.acquire(t, s.First, claimed, time.Hour)
	require.NoError(t, s.First.Commit(t.Context(), s.acquire(t, s.First, done, time.Hour), time.Hour))
	oldClaim, oldMark := s.key("cleanup/old claim"), s.key("cleanup/old mark")
	s.acquire(t, s.First, oldClaim, s.Lease/10)
	require.NoError(t, s.First.Commit(t.Context(), s.acquire(t, s.First, oldMark, time.Hour), s.Lease/10))
	deadline := time.Now().Add(s.Patience)
	for _, key := range []string{oldClaim, oldMark} {
		for {
			if s.Clean != nil {
				require.NoError(t, s.Clean(t.Context()))
			}
			held, err := s.Holds(t.Context(), key)
			require.NoError(t, err)
			if !held {
				break
			}
			require.True(t, time.Now().Before(deadline), "%s is still there", key)
			pause(t, 10*time.Millisecond)
		}
	}
	for _, key := range []string{claimed, done} {
		held, err := s.Holds(t.Context(), key)
		require.NoError(t, err)
		require.True(t, held, "%s went", key)
	}
	s.isDone(t, done)
	require.Equal(t, middleware.ClaimBusy, s.claim(t, s.Second, claimed, time.Minute).State)
}
