package lanes

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/middleware"
)

// drainFake is a fake that is told of the drain.
type drainFake struct {
	*fake
	drained atomic.Bool
}

func (f *drainFake) Drain() { f.drained.Store(true) }

// Where the broker counts, a nack that counts goes back to it with what waits
// behind it; one that does not count is held here.
func TestTheBrokerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drainFake{fake: newFake()}
		f.put(f.entry(1, "k"), f.entry(2, "k"), f.entry(3, "k"), f.entry(4, "other"))
		cfg := config(2, 10)
		cfg.Order, cfg.BrokerCounts = true, true
		p := startPump(t.Context(), f, cfg)
		first, other := recv(t, p), recv(t, p)
		if first.UUID > other.UUID {
			first, other = other, first
		}

		// A deferral stays here, and its key waits for it.
		d := middleware.DeliveryFrom(first.Context())
		d.Release()
		d.RedeliverAfter(time.Second)
		first.Nack()
		other.Ack()
		synctest.Wait()
		f.mu.Lock()
		require.Empty(t, f.released)
		f.mu.Unlock()
		begun := time.Now()
		again := recv(t, p)
		require.Equal(t, first.UUID, again.UUID)
		require.Equal(t, time.Second, time.Since(begun))
		require.Equal(t, 1, middleware.DeliveryFrom(again.Context()).Count())

		// A failure goes back, in order, with its delay; the others without.
		middleware.DeliveryFrom(again.Context()).RedeliverAfter(5 * time.Second)
		again.Nack()
		synctest.Wait()
		f.mu.Lock()
		require.Len(t, f.released, 3)
		require.Equal(t, 5*time.Second, f.released["e0001"].Delay)
		require.Zero(t, f.released["e0002"].Delay)
		require.Zero(t, f.released["e0003"].Delay)
		f.mu.Unlock()

		// They come again by Fetch, as the broker likes; nothing of them is left here.
		resident, held := p.d.snapshot()
		require.Zero(t, resident)
		require.Zero(t, held)
		e := f.entry(1, "k")
		e.Stored = 2
		f.put(e)
		m := recv(t, p)
		require.Equal(t, 2, middleware.DeliveryFrom(m.Context()).Count())
		require.False(t, f.drained.Load())
		p.beginDrain()
		m.Nack()
		<-p.done
		require.True(t, f.drained.Load())
		f.mu.Lock()
		defer f.mu.Unlock()
		require.Contains(t, f.released, "e0001")
		require.True(t, f.closed)
	})
}
