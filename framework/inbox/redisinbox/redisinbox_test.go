package redisinbox

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/middleware"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func store(t *testing.T) *Store {
	t.Helper()
	s, err := New(Config{Client: testenv.Redis(t).Client()})
	require.NoError(t, err)
	return s
}

func TestClaimCommitRelease(t *testing.T) {
	t.Parallel()
	s := store(t)
	ctx := t.Context()
	c, err := s.Claim(ctx, "k", time.Minute)
	require.NoError(t, err)
	require.Equal(t, middleware.ClaimAcquired, c.State)
	require.NotEmpty(t, c.Token)

	busy, err := s.Claim(ctx, "k", time.Minute)
	require.NoError(t, err)
	require.Equal(t, middleware.ClaimBusy, busy.State)
	require.Empty(t, busy.Token)
	require.InDelta(t, time.Minute, busy.RetryAfter, float64(10*time.Second))

	require.NoError(t, s.Release(ctx, middleware.Claim{Key: "k", Token: "another's"}), "changes nothing")
	require.ErrorIs(t, s.Commit(ctx, middleware.Claim{Key: "k", Token: "another's"}, time.Hour), middleware.ErrClaimLost)
	require.NoError(t, s.Release(ctx, c))
	require.ErrorIs(t, s.Commit(ctx, c, time.Hour), middleware.ErrClaimLost)
	c, err = s.Claim(ctx, "k", time.Minute)
	require.NoError(t, err)
	require.Equal(t, middleware.ClaimAcquired, c.State)
	require.NoError(t, s.Commit(ctx, c, time.Hour))
	require.NoError(t, s.Release(ctx, c), "a done key stays done")
	done, err := s.Claim(ctx, "k", time.Minute)
	require.NoError(t, err)
	require.Equal(t, middleware.ClaimDone, done.State)

	_, err = s.Claim(ctx, "", time.Minute)
	require.Error(t, err)
	_, err = s.Claim(ctx, "k", 0)
	require.Error(t, err)
	require.Error(t, s.Commit(ctx, c, 0))
	_, err = New(Config{})
	require.ErrorContains(t, err, "Client is nil")
}

// A claim whose worker died frees itself when its lease ends; the late worker
// then can neither commit nor take the new claim away. A done key ends with its
// retention.
func TestLeaseAndRetentionEnd(t *testing.T) {
	t.Parallel()
	s := store(t)
	ctx := t.Context()
	dead, err := s.Claim(ctx, "k", 30*time.Millisecond)
	require.NoError(t, err)
	var c middleware.Claim
	require.Eventually(t, func() bool {
		c, err = s.Claim(ctx, "k", time.Minute)
		require.NoError(t, err)
		return c.State == middleware.ClaimAcquired
	}, 10*time.Second, 5*time.Millisecond)
	require.ErrorIs(t, s.Commit(ctx, dead, time.Hour), middleware.ErrClaimLost)
	require.NoError(t, s.Release(ctx, dead))
	require.NoError(t, s.Commit(ctx, c, 30*time.Millisecond))
	require.Eventually(t, func() bool {
		c, err = s.Claim(ctx, "k", time.Minute)
		require.NoError(t, err)
		return c.State == middleware.ClaimAcquired
	}, 10*time.Second, 5*time.Millisecond)
}

// Two live workers never both hold a key.
func TestRace(t *testing.T) {
	t.Parallel()
	s := store(t)
	var holders, handled atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				c, err := s.Claim(t.Context(), "k", time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				switch c.State {
				case middleware.ClaimDone:
					return
				case middleware.ClaimAcquired:
					if holders.Add(1) != 1 {
						t.Error("two hold the key")
					}
					n := handled.Add(1)
					holders.Add(-1)
					if n < 20 {
						err = s.Release(t.Context(), c)
					} else {
						err = s.Commit(t.Context(), c, time.Hour)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, int64(20), handled.Load())
}
