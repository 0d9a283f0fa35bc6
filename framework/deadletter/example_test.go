package deadletter_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/memory"
	"github.com/headrace-go/headrace/framework/deadletter"
	"github.com/headrace-go/headrace/middleware"
)

// A dead letter, as a handler left it, goes back to its group.
func ExampleQueue_Replay() {
	b := memory.New(memory.Config{})
	defer b.Close()
	dead := message.NewMessage("m1", []byte("{}"))
	dead.Metadata.Set(middleware.DeadLetterReason, middleware.ReasonTimeout)
	if err := b.Publisher().Publish(broker.DeadLetterTopic("payments.charge-order"), dead); err != nil {
		fmt.Println(err)
		return
	}

	q, err := deadletter.New(deadletter.Config{Broker: b, Group: "payments.charge-order"})
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := q.Replay(context.Background(), deadletter.ReplayOptions{
		Filter: deadletter.Filter{Reasons: []string{middleware.ReasonTimeout}},
	})
	fmt.Println(report.Replayed, "to", q.RedriveTopic(), err, report.Complete())
	// Output: 1 to payments.charge-order.redrive <nil> true
}
