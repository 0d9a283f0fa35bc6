package framework

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
)

// redriveShare is the part of a handler's concurrency that its redrives may
// take.
const redriveShare = 4

// subscriptions are what a handler's group reads: its topic, and what is
// replayed to it.
func (h *handler) subscriptions() []broker.Subscription {
	return []broker.Subscription{
		{Topic: h.event.Topic, Group: h.group, Type: h.event.Name},
		{Topic: broker.RedriveTopic(h.group), Group: h.group},
	}
}

// suspectFrom is the delivery that nacks alone don't explain, with one crash on
// top, and still within the deliveries that the message has.
func suspectFrom(p policy) int {
	from := len(p.redeliver) + broker.DefaultSuspectFrom
	if p.maxDeliveries > 0 {
		from = min(from, max(p.maxDeliveries-1, 2))
	}
	return from
}

// subscribers makes the subscribers of one handler's group: of its topic, and of
// its redrives, which come beside what is new.
func (a *App) subscribers(h *handler) (live, redrives message.Subscriber, err error) {
	onMalformed, err := a.malformed(h)
	if err != nil {
		return nil, nil, err
	}
	p := h.policy
	cfg := broker.SubscriberConfig{
		Group:        h.group,
		Concurrency:  p.concurrency,
		MaxInFlight:  p.maxInFlight,
		Order:        p.order,
		Lease:        p.lease,
		NackDelay:    p.nackDelay,
		DrainTimeout: a.subscriberBudget(),
		SuspectFrom:  suspectFrom(p),
		OnMalformed:  onMalformed,
		Gate:         h.gate,
		Logger:       a.logger.With("handler", h.name),
	}
	if live, err = a.cfg.Broker.Subscriber(cfg); err != nil {
		return nil, nil, fmt.Errorf("framework: handler %q: subscriber on broker %q: %w", h.name, a.cfg.Broker.Name(), err)
	}
	cfg.Concurrency = max(p.concurrency/redriveShare, 1)
	cfg.MaxInFlight = min(p.maxInFlight, 10*cfg.Concurrency)
	if redrives, err = a.cfg.Broker.Subscriber(cfg); err != nil {
		return nil, nil, fmt.Errorf("framework: handler %q: subscriber of its redrives on broker %q: %w", h.name, a.cfg.Broker.Name(), err)
	}
	return live, redrives, nil
}
