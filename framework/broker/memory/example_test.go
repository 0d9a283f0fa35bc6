package memory_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/memory"
)

// A subscriber of the memory broker is a plain Watermill subscriber.
func ExampleNew() {
	b := memory.New(memory.Config{})
	defer b.Close()

	if err := b.Publisher().Publish("order.placed", message.NewMessage("1", []byte("hello"))); err != nil {
		fmt.Println(err)
		return
	}
	sub, err := b.Subscriber(broker.SubscriberConfig{Group: "payments.charge-order"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sub.Close()
	messages, err := sub.Subscribe(context.Background(), "order.placed")
	if err != nil {
		fmt.Println(err)
		return
	}
	msg := <-messages
	fmt.Println(msg.UUID, string(msg.Payload))
	msg.Ack()
	// Output: 1 hello
}
