package combine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func double(_ context.Context, batch []int) []Answer[int] {
	out := make([]Answer[int], len(batch))
	for i, q := range batch {
		out[i].Value = 2 * q
	}
	return out
}

func TestEachCallerGetsItsOwnAnswer(t *testing.T) {
	var trips, biggest atomic.Int64
	g := &Group[int, int]{Max: 16, Timeout: time.Second, Ask: func(ctx context.Context, batch []int) []Answer[int] {
		trips.Add(1)
		for n := int64(len(batch)); n > biggest.Load(); {
			biggest.Store(n)
		}
		return double(ctx, batch)
	}}
	var wg sync.WaitGroup
	for worker := range 64 {
		wg.Go(func() {
			for i := range 200 {
				got, err := g.Do(t.Context(), worker*1000+i)
				if err != nil || got != 2*(worker*1000+i) {
					t.Errorf("%d: %d, %v", worker*1000+i, got, err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, biggest.Load(), int64(16))
	require.Less(t, trips.Load(), int64(64*200), "callers share trips")
	got, err := g.Do(context.Background(), 7)
	require.NoError(t, err)
	require.Equal(t, 14, got)
}

func TestACallerThatLeaves(t *testing.T) {
	release, began := make(chan struct{}), make(chan struct{}, 10)
	left := make(chan int, 10)
	g := &Group[int, int]{Max: 16, Timeout: 10 * time.Second, Left: func(q int, a Answer[int]) { left <- a.Value },
		Ask: func(ctx context.Context, batch []int) []Answer[int] {
			began <- struct{}{}
			<-release
			if err := ctx.Err(); err != nil {
				t.Error("the callers' end is the batch's end")
			}
			return double(ctx, batch)
		}}
	leader, stopLeader := context.WithCancelCause(t.Context())
	waiter, stopWaiter := context.WithCancelCause(t.Context())
	errs := make(chan error, 2)
	go func() { _, err := g.Do(leader, 1); errs <- err }()
	<-began
	go func() { _, err := g.Do(waiter, 2); errs <- err }()
	waits := func() int { g.mu.Lock(); defer g.mu.Unlock(); return len(g.queue) }
	require.Eventually(t, func() bool { return waits() == 1 }, 5*time.Second, time.Millisecond)
	stopWaiter(errors.New("waiter"))
	require.EqualError(t, <-errs, "waiter")
	require.Zero(t, waits(), "one that is not on its way is taken back")
	stopLeader(errors.New("leader"))
	require.EqualError(t, <-errs, "leader")
	close(release)
	require.Equal(t, 2, <-left)
	got, err := g.Do(t.Context(), 5)
	require.NoError(t, err)
	require.Equal(t, 10, got)
}

// Whoever leaves at any moment, the others get their answers and the group goes
// on.
func TestLeavingNeverStallsTheOthers(t *testing.T) {
	var asked, left atomic.Int64
	g := &Group[int, int]{Max: 4, Timeout: time.Second, Left: func(int, Answer[int]) { left.Add(1) },
		Ask: func(ctx context.Context, batch []int) []Answer[int] {
			asked.Add(int64(len(batch)))
			return double(ctx, batch)
		}}
	var wg sync.WaitGroup
	var answered atomic.Int64
	for worker := range 32 {
		wg.Go(func() {
			for i := range 300 {
				ctx, cancel := context.WithCancel(t.Context())
				if worker%2 == 0 {
					go cancel()
				}
				got, err := g.Do(ctx, i)
				switch {
				case err == nil && got == 2*i:
					answered.Add(1)
				case worker%2 == 0 && errors.Is(err, context.Canceled):
				default:
					t.Errorf("%d, %v", got, err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool { return answered.Load()+left.Load() == asked.Load() }, 5*time.Second, time.Millisecond)
	require.GreaterOrEqual(t, answered.Load(), int64(16*300))
}

func TestFailures(t *testing.T) {
	boom := errors.New("boom")
	g := &Group[int, int]{Max: 4, Timeout: time.Second, Ask: func(_ context.Context, batch []int) []Answer[int] {
		switch batch[0] {
		case 0:
			return nil
		case 1:
			panic("at the disco")
		}
		return []Answer[int]{{Err: boom}}
	}}
	_, err := g.Do(t.Context(), 0)
	require.ErrorContains(t, err, "0 answers to 1")
	_, err = g.Do(t.Context(), 1)
	require.ErrorContains(t, err, "at the disco")
	_, err = g.Do(t.Context(), 2)
	require.ErrorIs(t, err, boom)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = g.Do(ctx, 2)
	require.ErrorIs(t, err, context.Canceled)
}
