package lanes

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
)

// While its gate is paused a subscription hands out and fetches nothing, renews
// what it holds and counts nothing; narrowed, it lets so many through at a time;
// opened, it goes on, and a drain does not wait for it.
func TestGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := &broker.Gate{}
		f := newFake()
		cfg := config(4, 12)
		cfg.Gate = gate
		p := start(t, f, cfg)
		for i := range 4 {
			f.put(f.entry(i, ""))
		}
		var held []*message.Message
		for range 4 {
			held = append(held, <-p.out)
		}
		for i := range 40 {
			f.put(f.entry(10+i, ""))
		}
		synctest.Wait()
		gate.Pause()
		resident, _ := p.d.snapshot()
		require.Equal(t, 12, resident)
		for _, m := range held[:3] {
			m.Ack()
		}
		held[3].Nack() // it comes again once the gate is open
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		select {
		case m := <-p.out:
			require.Fail(t, "handed out while paused", m.UUID)
		default:
		}
		f.mu.Lock()
		require.Len(t, f.queue, 32, "nothing was fetched")
		require.Len(t, f.stored, 9, "what is held was renewed")
		f.mu.Unlock()

		gate.Narrow(1)
		probe := <-p.out
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case m := <-p.out:
			require.Fail(t, "two at once", m.UUID)
		default:
		}
		require.Equal(t, 1, delivery(probe).Count())
		probe.Ack()
		second := <-p.out
		gate.Open()
		rest := []*message.Message{second}
		seen := map[string]int{}
		for len(seen) < 40 {
			for _, m := range rest {
				seen[m.UUID] = delivery(m).Count()
				m.Ack()
			}
			rest = rest[:0]
			synctest.Wait()
			for range 4 {
				select {
				case m := <-p.out:
					rest = append(rest, m)
				default:
				}
			}
		}
		for id, count := range seen {
			require.Equal(t, map[bool]int{true: 2, false: 1}[id == held[3].UUID], count, id)
		}
		gate.Pause()
	})
}

func delivery(m *message.Message) *middleware.Delivery { return middleware.DeliveryFrom(m.Context()) }
