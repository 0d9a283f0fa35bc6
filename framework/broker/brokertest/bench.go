package brokertest

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/headrace-go/headrace/pkg/events"
)

// BenchMessages makes n messages for an adapter's benchmarks: about 100 bytes of
// payload and the usual metadata. They have ordering keys in turn, so many
// different ones as keys says; none with 0.
func BenchMessages(n, keys int) []*message.Message {
	out := make([]*message.Message, n)
	for i := range out {
		out[i] = message.NewMessage(uuid.NewString(), []byte(`{"id":"01890a5d","type":"order.placed","data":{"order_id":"o-1","total":{"amount":4200,"currency":"EUR"}}}`))
		out[i].Metadata = message.Metadata{
			events.KeyID: out[i].UUID, events.KeyType: "order.placed", events.KeySource: "orders",
			events.KeyVersion: "1.0", events.KeyCorrelation: "01890a5d-ac96-774b-bcce-b302099a8057",
		}
		if keys > 0 {
			out[i].Metadata[events.KeyOrdering] = fmt.Sprint("order-", i%keys)
		}
	}
	return out
}
