package lanes

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/middleware"
)

// A held entry that is due while there is no room for it comes once there is,
// though nothing else happens any more.
func TestADueEntryWaitsForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		p := start(t, f, config(1, 2))
		f.put(f.entry(0, ""))
		first := <-p.out
		middleware.DeliveryFrom(first.Context()).RedeliverAfter(time.Second)
		first.Nack()
		for i := range 3 {
			f.put(f.entry(1+i, ""))
		}
		running := <-p.out
		synctest.Wait()
		resident, held := p.d.snapshot()
		require.Equal(t, 2, resident)
		require.Equal(t, 1, held)
		time.Sleep(2 * time.Second) // it is due, and there is no room
		synctest.Wait()
		seen := map[string]int{}
		for {
			seen[running.UUID] = middleware.DeliveryFrom(running.Context()).Count()
			running.Ack()
			if len(seen) == 4 {
				break
			}
			select {
			case running = <-p.out:
			case <-time.After(time.Minute):
				require.Fail(t, "stalled", "handled %v", seen)
			}
		}
		require.Equal(t, 2, seen[first.UUID])
	})
}
