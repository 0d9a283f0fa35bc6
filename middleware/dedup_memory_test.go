package middleware_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace-go/headrace/framework/inbox/inboxtest"
	"github.com/headrace-go/headrace/middleware"
	"github.com/stretchr/testify/require"
)

func claim(t testing.TB, s middleware.DedupStore, key string) middleware.Claim {
	t.Helper()
	c, err := s.Claim(context.Background(), key, time.Minute)
	require.NoError(t, err)
	require.Equal(t, key, c.Key)
	return c
}

func TestMemoryDedupClaims(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})
		first := claim(t, s, "k")
		require.Equal(t, middleware.ClaimAcquired, first.State)
		time.Sleep(20 * time.Second)
		busy := claim(t, s, "k")
		require.Equal(t, middleware.ClaimBusy, busy.State)
		require.Equal(t, 40*time.Second, busy.RetryAfter)

		require.NoError(t, s.Release(t.Context(), first))
		require.ErrorIs(t, s.Release(t.Context(), first), middleware.ErrClaimLost)
		second := claim(t, s, "k")
		require.Equal(t, middleware.ClaimAcquired, second.State)
		require.NotEqual(t, first.Token, second.Token)
		require.ErrorIs(t, s.Commit(t.Context(), first, time.Hour), middleware.ErrClaimLost)
		require.ErrorIs(t, s.Release(t.Context(), first), middleware.ErrClaimLost)

		require.NoError(t, s.Commit(t.Context(), second, time.Hour))
		require.Equal(t, middleware.ClaimDone, claim(t, s, "k").State)
		require.ErrorIs(t, s.Release(t.Context(), second), middleware.ErrClaimLost, "a done key stays done")
		time.Sleep(time.Hour)
		require.Equal(t, middleware.ClaimAcquired, claim(t, s, "k").State, "retention ended")
	})
}

func TestMemoryDedupLeaseEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})
		late := claim(t, s, "late")
		time.Sleep(2 * time.Minute)
		require.NoError(t, s.Commit(t.Context(), late, time.Hour), "nobody took it over")
		lost := claim(t, s, "lost")
		time.Sleep(2 * time.Minute)
		taken := claim(t, s, "lost")
		require.Equal(t, middleware.ClaimAcquired, taken.State)
		require.ErrorIs(t, s.Commit(t.Context(), lost, time.Hour), middleware.ErrClaimLost)
		require.NoError(t, s.Commit(t.Context(), taken, time.Hour))
	})
}

func TestMemoryDedupIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := middleware.NewMemoryDedup(middleware.MemoryDedupConfig{MaxKeys: 100})
		held := claim(t, s, "held")
		for i := range 1000 {
			c := claim(t, s, fmt.Sprint(i))
			require.NoError(t, s.Commit(t.Context(), c, time.Hour))
			require.LessOrEqual(t, s.Len(), 101)
		}
		require.Equal(t, middleware.ClaimDone, claim(t, s, "900").State)
		require.Equal(t, middleware.ClaimAcquired, claim(t, s, "899").State, "the oldest went first")
		require.Equal(t, middleware.ClaimBusy, claim(t, s, "held").State, "a running claim is never dropped")
		require.NoError(t, s.Release(t.Context(), held))

		// Expired keys are cleared by later commits.
		time.Sleep(2 * time.Hour)
		c := claim(t, s, "new")
		require.NoError(t, s.Commit(t.Context(), c, time.Hour))
		require.LessOrEqual(t, s.Len(), 2)
	})
}

// A key's second life is not cut short by what is left of its first.
func TestMemoryDedupSecondLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := middleware.NewMemoryDedup(middleware.MemoryDedupConfig{MaxKeys: 3})
		commit := func(key string, retention time.Duration) {
			require.NoError(t, s.Commit(t.Context(), claim(t, s, key), retention))
		}
		commit("a", time.Minute)
		time.Sleep(2 * time.Minute)
		commit("a", time.Hour)
		commit("b", time.Hour)
		commit("c", time.Hour)
		for _, key := range []string{"a", "b", "c"} {
			require.Equal(t, middleware.ClaimDone, claim(t, s, key).State, key)
		}
	})
}

func TestMemoryDedupConformance(t *testing.T) {
	t.Parallel()
	s := middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})
	inboxtest.Run(t, inboxtest.Harness{First: s})
}

func ExampleNewMemoryDedup() {
	store := middleware.NewMemoryDedup(middleware.MemoryDedupConfig{MaxKeys: 1000})
	ctx := context.Background()
	first, _ := store.Claim(ctx, "charge-order/event-1", time.Minute)
	_ = store.Commit(ctx, first, time.Hour)
	second, _ := store.Claim(ctx, "charge-order/event-1", time.Minute)
	fmt.Println(first.State == middleware.ClaimAcquired, second.State == middleware.ClaimDone)
	// Output: true true
}
