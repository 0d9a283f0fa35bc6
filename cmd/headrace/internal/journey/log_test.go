package journey

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/memory"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/orders"
)

// forgetting is a broker that keeps nothing for a group that comes later.
type forgetting struct{ broker.Broker }

func (f forgetting) Features() broker.Features {
	features := f.Broker.Features()
	features.ReplayForNewGroup = false
	return features
}

// A journey is read whether the broker keeps what was published or not.
func TestReadOnEachSortOfBroker(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(broker.Broker) broker.Broker{
		"kept": func(b broker.Broker) broker.Broker { return b }, "recorded": func(b broker.Broker) broker.Broker { return forgetting{b} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := wrap(memory.New(memory.Config{}))
			defer b.Close()
			began := time.Now()
			log, err := Read(t.Context(), b, []string{"order.placed", "order.cancelled"})
			require.NoError(t, err)
			defer log.Close()
			e, err := orders.Cancelled.New("o-1", orders.CancelledData{
				OrderID: "o-1", Customer: orders.Customer{ID: "c", Email: "ada@example.com", Language: "en"},
				Total: events.Money{Amount: 1, Currency: "EUR"}, Reason: "customer_request", PreviousState: "placed",
			}).Seal(events.Stamp{ID: events.NewID(), Source: "orders", CorrelationID: "journey-1"})
			require.NoError(t, err)
			payload, err := e.Encode()
			require.NoError(t, err)
			m := message.NewMessage(e.ID, payload)
			for k, v := range e.Headers() {
				m.Metadata.Set(k, v)
			}
			require.NoError(t, b.Publisher().Publish("order.cancelled", m, message.NewMessage("no-event", []byte("x"))))
			hops, err := Await(t.Context(), log, []string{"order.placed", "order.cancelled"}, "journey-1", began.Add(-time.Minute),
				func(hops []Hop) bool { return len(hops) == 1 })
			require.NoError(t, err)
			require.Equal(t, e.ID, hops[0].Event.ID)
			hops, err = Collect(t.Context(), log, []string{"order.cancelled"}, "journey-1", time.Now().Add(time.Hour))
			require.NoError(t, err)
			require.Empty(t, hops, "since holds")
		})
	}
}
