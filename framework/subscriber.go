package framework

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
)

// subscriber makes the subscriber of one handler's group.
func (a *App) subscriber(h *handler) (message.Subscriber, error) {
	onMalformed, err := a.malformed(h)
	if err != nil {
		return nil, err
	}
	p := h.policy
	sub, err := a.cfg.Broker.Subscriber(broker.SubscriberConfig{
		Group:        h.group,
		Concurrency:  p.concurrency,
		MaxInFlight:  p.maxInFlight,
		Order:        p.order,
		Lease:        p.lease,
		NackDelay:    p.nackDelay,
		DrainTimeout: a.subscriberBudget(),
		OnMalformed:  onMalformed,
		Logger:       a.logger.With("handler", h.name),
	})
	if err != nil {
		return nil, fmt.Errorf("framework: handler %q: subscriber on broker %q: %w", h.name, a.cfg.Broker.Name(), err)
	}
	return sub, nil
}
