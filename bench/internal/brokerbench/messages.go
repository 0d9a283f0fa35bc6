package brokerbench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// perCall is how many messages one call publishes.
const perCall = 100

type placed struct {
	OrderID  string `json:"order_id"`
	Customer string `json:"customer"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

var orderPlaced = events.Define[placed]("order.placed", "1.0")

// event makes a message as a service publishes it. Ordering keys are those of
// 5,000 orders.
func event(n int) (*message.Message, error) {
	key := fmt.Sprint("order-", n%5000)
	id := events.NewID()
	env, err := orderPlaced.New(key, placed{OrderID: key, Customer: "customer-1", Amount: 4200, Currency: "EUR"}).Seal(events.Stamp{
		ID: id, Source: "orders", CorrelationID: id, CausationID: id, Now: time.Now().UTC(),
		TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	})
	if err != nil {
		return nil, err
	}
	payload, err := env.Encode()
	if err != nil {
		return nil, err
	}
	m := message.NewMessage(env.ID, payload)
	for k, v := range env.Headers() {
		m.Metadata[k] = v
	}
	return m, nil
}

func batch(n int) ([]*message.Message, error) {
	msgs := make([]*message.Message, n)
	var err error
	for i := range msgs {
		if msgs[i], err = event(i); err != nil {
			return nil, err
		}
	}
	return msgs, nil
}

// fill publishes n different messages.
func fill(ctx context.Context, p broker.Publisher, topic string, n int) error {
	for n > 0 {
		msgs, err := batch(min(n, 1000))
		if err != nil {
			return err
		}
		if err := p.PublishBatch(ctx, topic, msgs); err != nil {
			return err
		}
		n -= len(msgs)
	}
	return nil
}

// publishing measures calls of publish with a hundred messages each.
func publishing(n int, m *meter, publish func([]*message.Message) error) error {
	msgs, err := batch(perCall)
	if err != nil {
		return err
	}
	m.start()
	defer m.stop()
	for left := n; left > 0; left -= perCall {
		if err := publish(msgs[:min(left, perCall)]); err != nil {
			return err
		}
	}
	return nil
}

// draining measures a bare subscriber until it has acked n messages; its Close
// belongs to the work where closed is true.
func draining(ctx context.Context, n int, m *meter, sub message.Subscriber, topic string, closed bool) error {
	m.start()
	ch, err := sub.Subscribe(ctx, topic)
	if err != nil {
		return err
	}
	for range n {
		select {
		case msg, open := <-ch:
			if !open {
				return errors.New("the subscription ended")
			}
			msg.Ack()
		case <-time.After(time.Minute):
			return errors.New("no message for a minute")
		}
	}
	if !closed {
		m.stop()
		return sub.Close()
	}
	err = sub.Close()
	m.stop()
	return err
}

// app measures a service with one handler and the whole stack around it, from its
// start to its drained end.
func app(ctx context.Context, n int, m *meter, c framework.Config, topic string,
	register func(a *framework.App, t events.Type[placed], handled func()),
) error {
	c.Service, c.Logger = "bench", quiet
	c.Profile.Env = "bench"
	c.Profile.Admin.StatsInterval = time.Hour
	a, err := framework.New(c)
	if err != nil {
		return err
	}
	t := events.Define[placed]("order.placed", "1.0", events.Topic(topic))
	all := make(chan struct{})
	var seen atomic.Int64
	register(a, t, func() {
		if seen.Add(1) == int64(n) {
			close(all)
		}
	})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	m.start()
	go func() { ended <- a.Run(ctx) }()
	select {
	case <-all:
	case err := <-ended:
		return fmt.Errorf("the app ended: %w", err)
	case <-time.After(3 * time.Minute):
		stop()
		return errors.Join(fmt.Errorf("%d of %d were handled in 3 minutes", seen.Load(), n), <-ended)
	}
	stop()
	err = <-ended
	m.stop()
	return err
}

// plain registers a handler that does nothing but count.
func plain(a *framework.App, t events.Type[placed], handled func()) {
	framework.Handle(a, t, "count", func(context.Context, events.Event[placed]) error { handled(); return nil },
		framework.Group("g"))
}

// withStack is the configuration of an App that keeps its keys in store.
func withStack(b broker.Broker, store middleware.DedupStore) framework.Config {
	return framework.Config{Broker: b, DedupStore: store, Profile: config.Default()}
}

// decodeMetadata is what a hand-written consumer does with a row's metadata.
func decodeMetadata(raw []byte) (message.Metadata, error) {
	md := message.Metadata{}
	return md, json.Unmarshal(raw, &md)
}
