package inboxtest

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/middleware"
)

// Of many that claim at once exactly one acquires: a key that nobody had, one
// whose holder died, and one whose mark is over.
func (s *suite) race(t *testing.T) {
	for _, before := range []string{"nothing", "a dead claim", "an old mark"} {
		t.Run(before, func(t *testing.T) {
			key := s.key("race " + before)
			if before != "nothing" {
				c := s.acquire(t, s.First, key, s.Lease/5)
				if before == "an old mark" {
					require.NoError(t, s.First.Commit(t.Context(), c, s.Lease/5))
				}
				pause(t, s.Lease/5+s.Margin+tolerance)
			}
			var acquired, done atomic.Int64
			start := make(chan struct{})
			var all sync.WaitGroup
			for n := range s.Goroutines {
				store := s.First
				if n%2 == 1 {
					store = s.Second
				}
				all.Go(func() {
					<-start
					c, err := store.Claim(t.Context(), key, time.Hour)
					switch {
					case err != nil:
						t.Error(err)
					case c.State == middleware.ClaimAcquired:
						acquired.Add(1)
					case c.State == middleware.ClaimDone:
						done.Add(1)
					}
				})
			}
			close(start)
			all.Wait()
			require.Equal(t, int64(1), acquired.Load())
			require.Zero(t, done.Load())
		})
	}
}

// Workers that claim, work and give back in turn never meet, and once one has
// committed nobody works any more.
func (s *suite) exclusion(t *testing.T) {
	key := s.key("exclusion")
	const turns = 10
	var inside, worked, committed atomic.Int64
	var all sync.WaitGroup
	for n := range s.Goroutines / 4 {
		store := s.First
		if n%2 == 1 {
			store = s.Second
		}
		all.Go(func() {
			for {
				c, err := store.Claim(t.Context(), key, time.Hour)
				if err != nil {
					t.Error(err)
					return
				}
				switch c.State {
				case middleware.ClaimDone:
					return
				case middleware.ClaimBusy:
					pause(t, 10*time.Millisecond)
					continue
				}
				if inside.Add(1) != 1 {
					t.Error("two hold the key")
				}
				last := worked.Add(1) == turns
				inside.Add(-1)
				if last {
					committed.Add(1)
					err = store.Commit(t.Context(), c, time.Hour)
				} else {
					err = store.Release(t.Context(), c)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, int64(turns), worked.Load())
	require.Equal(t, int64(1), committed.Load())
}
