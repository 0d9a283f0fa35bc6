package lanes

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// Entries that consumers left behind more than once run one at a time, and each
// delivery is on the broker's record before the handler has it: a process that
// dies counts against the one that it died of.
func TestSuspectsRunAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		for i := range 9 {
			e := f.entry(i, "")
			e.Left, e.Stored = true, 2+i%2 // every other one is a suspect
			f.stored[e.ID] = e.Stored - 1
			f.reclaim = append(f.reclaim, e)
		}
		p := start(t, f, config(4, 12))
		record := func(id string) int {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.stored[id]
		}
		var running []*message.Message
		for range 4 {
			running = append(running, <-p.out)
		}
		time.Sleep(10 * time.Second) // heartbeats
		suspects := func() (n int) {
			for _, m := range running {
				if delivery(m).Count() == 3 {
					n++
				}
			}
			return n
		}
		require.Equal(t, 1, suspects())
		begun := map[string]int{}
		for _, m := range running {
			begun[m.UUID] = delivery(m).Count()
		}
		for i := range 9 {
			id := fmt.Sprintf("e%04d", i)
			want := 1 + i%2
			if n, ok := begun[id]; ok {
				want = n
			}
			require.Equal(t, want, record(id), "%s: only what runs is counted", id)
		}
		seen := map[string]int{}
		for len(seen) < 9 {
			require.LessOrEqual(t, suspects(), 1)
			m := running[0]
			running = running[1:]
			seen[m.UUID] = record(m.UUID)
			require.Equal(t, delivery(m).Count(), seen[m.UUID])
			m.Ack()
			synctest.Wait()
			select {
			case m := <-p.out:
				running = append(running, m)
			default:
			}
		}
	})
}

// A suspect whose count can't be written is not handed out until it can.
func TestASuspectWaitsForItsCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		down := true
		f.fail = func(call string) error {
			if call == "renew" && down {
				return errors.New("down")
			}
			return nil
		}
		e := f.entry(1, "")
		e.Left, e.Stored = true, 3
		f.reclaim = append(f.reclaim, e)
		p := start(t, f, config(1, 2))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		select {
		case <-p.out:
			require.Fail(t, "handed out uncounted")
		default:
		}
		f.mu.Lock()
		down = false
		f.mu.Unlock()
		m := <-p.out
		require.Equal(t, 3, delivery(m).Count())
		m.Ack()
	})
}

// Where the broker counts what it hands out, nothing is fetched beside a suspect,
// and a first fetch takes one entry: the neighbours of what kills a consumer are
// not counted up with it.
func TestNothingIsFetchedBesideASuspect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		for i := range 6 {
			e := f.entry(i, "")
			e.Left, e.Stored = i < 3, 4
			f.queue = append(f.queue, e)
		}
		cfg := config(4, 12)
		cfg.BrokerCounts = true
		p := start(t, f, cfg)
		for i := range 3 {
			m := <-p.out
			time.Sleep(10 * time.Second)
			synctest.Wait()
			require.Equal(t, fmt.Sprintf("e%04d", i), m.UUID)
			require.Empty(t, p.out)
			m.Ack()
		}
		for range 3 {
			m := <-p.out
			m.Ack()
		}
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		require.Equal(t, []int{1, 1, 1, 1}, f.limits[:4])
		require.Greater(t, f.limits[4], 1, "once one comes that is no suspect")
	})
}
