// Package inboxtest tests a middleware.DedupStore for what its interface
// promises, and for results where it is a middleware.ResultStore. A store of your
// own is sound when Run passes on real storage, also with the race detector.
package inboxtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/middleware"
)

// Harness is the store under test.
type Harness struct {
	// First and Second are two stores on one storage, as two processes have them;
	// for a store that is one process's own the same one twice. Required. The
	// storage may hold other keys.
	First, Second middleware.DedupStore
	// Margin is how long after its end a lease or a mark still counts, for a store
	// that allows for clocks that differ. Default 0.
	Margin time.Duration
	// Holds tells whether the storage holds anything for key, expired or not, and
	// Clean removes what has expired. Clean may be nil where the storage does it
	// itself, within Patience. Nil Holds: the clean-up is not tested.
	Holds func(ctx context.Context, key string) (bool, error)
	Clean func(ctx context.Context) error
	// Goroutines is how many race for a key. Default 200.
	Goroutines int
	// Lease is that of the claims that the tests let end. It must exceed what a
	// few calls take on a loaded machine. Default 500 ms.
	Lease time.Duration
	// Patience bounds each wait. Default 30 s.
	Patience time.Duration
}

// tolerance is how far a storage's clock and ours may round apart.
const tolerance = 20 * time.Millisecond

// Run runs the suite, each part as a subtest on keys of its own.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.Second == nil {
		h.Second = h.First
	}
	if h.Goroutines == 0 {
		h.Goroutines = 200
	}
	if h.Lease == 0 {
		h.Lease = 500 * time.Millisecond
	}
	if h.Patience == 0 {
		h.Patience = 30 * time.Second
	}
	s := &suite{Harness: h, run: uuid.NewString()[:8]}
	for _, part := range []struct {
		name string
		test func(*testing.T)
	}{
		{"claim, release, commit", s.steps},
		{"a crashed claim frees itself", s.crash},
		{"a late commit is done or lost", s.lateCommit},
		{"a mark ends with its retention", s.retention},
		{"one of many acquires", s.race},
		{"two live workers never hold a key", s.exclusion},
		{"keys", s.keys},
		{"durations", s.durations},
		{"an ended context changes nothing", s.contexts},
		{"clean-up", s.cleanUp},
		{"a result is kept with its mark", s.results},
		{"a result ends with its mark", s.resultEnds},
		{"a mark and its result are one", s.resultAtOnce},
	} {
		if part.name == "clean-up" && h.Holds == nil {
			continue
		}
		if _, keeps := h.First.(middleware.ResultStore); !keeps && strings.Contains(part.name, "result") {
			continue
		}
		t.Run(part.name, part.test)
	}
}

type suite struct {
	Harness
	run string
}

// key is one that no other run and no other part of this one uses.
func (s *suite) key(name string) string { return fmt.Sprintf("inboxtest/%s/%s", s.run, name) }

func (s *suite) claim(t *testing.T, store middleware.DedupStore, key string, lease time.Duration) middleware.Claim {
	t.Helper()
	c, err := store.Claim(t.Context(), key, lease)
	require.NoError(t, err)
	require.Equal(t, key, c.Key)
	if c.State == middleware.ClaimAcquired {
		require.NotEmpty(t, c.Token)
		require.Zero(t, c.RetryAfter)
	} else {
		require.Empty(t, c.Token, "the token is its holder's secret")
	}
	return c
}

// acquire is a claim that must succeed.
func (s *suite) acquire(t *testing.T, store middleware.DedupStore, key string, lease time.Duration) middleware.Claim {
	t.Helper()
	c := s.claim(t, store, key, lease)
	require.Equal(t, middleware.ClaimAcquired, c.State)
	return c
}

func (s *suite) isDone(t *testing.T, key string) {
	t.Helper()
	for _, store := range []middleware.DedupStore{s.First, s.Second} {
		require.Equal(t, middleware.ClaimDone, s.claim(t, store, key, time.Minute).State)
	}
}

// release gives c back; that it is gone is no error or ErrClaimLost.
func (s *suite) release(t *testing.T, store middleware.DedupStore, c middleware.Claim) {
	t.Helper()
	if err := store.Release(t.Context(), c); err != nil {
		require.ErrorIs(t, err, middleware.ErrClaimLost)
	}
}

// untilAcquired claims key again and again while the answer is want, and checks
// that it is so until began+life, and no longer than until+life: the life of what
// holds it began between the two.
func (s *suite) untilAcquired(t *testing.T, key string, want middleware.ClaimState, began, until time.Time, life time.Duration) middleware.Claim {
	t.Helper()
	life += s.Margin
	for {
		asked := time.Now()
		c := s.claim(t, s.Second, key, time.Minute)
		if c.State == middleware.ClaimAcquired {
			require.GreaterOrEqual(t, time.Since(began), life-tolerance, "taken before its end")
			return c
		}
		require.Equal(t, want, c.State)
		require.LessOrEqual(t, asked.Sub(until), life+tolerance, "held beyond its end")
		if want == middleware.ClaimBusy {
			require.LessOrEqual(t, c.RetryAfter, life+tolerance)
			require.GreaterOrEqual(t, c.RetryAfter, time.Duration(0))
		}
		pause(t, 5*time.Millisecond)
	}
}

// pause is the pace of a poll; it ends with the test.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
	case <-time.After(d):
	}
}
