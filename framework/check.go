package framework

import (
	"fmt"
	"time"

	"github.com/headrace-go/headrace/framework/broker"
)

// check applies the rules that keep messages from being lost or handled twice.
// Each fault names the handler, the rule, the danger and the remedy.
func (a *App) check() []error {
	var errs []error
	features := a.cfg.Broker.Features()
	names, groups := map[string]int{}, map[string]string{}
	for _, h := range a.handlers {
		refuse := func(rule, danger, remedy string) {
			errs = append(errs, fmt.Errorf("framework: handler %q: %s: %s: %s", h.name, rule, danger, remedy))
		}
		if !handlerName.MatchString(h.name) {
			refuse("its name must be lower case letters, digits and dashes",
				"it is part of group, queue and metric names", "rename it, such as \"charge-order\"")
		}
		if names[h.name]++; names[h.name] == 2 {
			refuse("its name is registered more than once",
				"two handlers would share one group and each see half of the messages", "give each handler a name of its own")
		}
		if other, taken := groups[h.group]; taken && other != h.name {
			refuse(fmt.Sprintf("its group %q is also that of handler %q", h.group, other),
				"the two would share the messages, so each would miss some", "leave framework.Group out, or give each a group of its own")
		}
		groups[h.group] = h.name

		if h.kind != kindPlain && a.cfg.DB == nil {
			refuse("it is transactional and the service has no database",
				"its effect, its inbox row and its events could not commit together", "set Config.DB, or register it with Handle")
		}
		if h.kind != kindPlain && h.policy.noDedup {
			refuse("NoDedup on a transactional handler",
				"its inbox row is what makes a redelivery harmless", "leave NoDedup out")
		}
		if h.policy.order && !features.OrderPerKey {
			refuse(fmt.Sprintf("OrderByKey on broker %q, which keeps no order", a.cfg.Broker.Name()),
				"events of one key would overtake each other", "choose a broker with order per key, or leave OrderByKey out")
		}
		a.checkPolicy(h, features, refuse)
		if _, err := a.stackOf(h); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func (a *App) checkPolicy(h *handler, features broker.Features, refuse func(rule, danger, remedy string)) {
	p := h.policy
	if p.timeout <= 0 {
		refuse(fmt.Sprintf("its timeout is %s", p.timeout), "an attempt could run for ever", "set framework.Timeout or delivery.handler_timeout above 0")
		return
	}
	if p.maxAttempts < 1 {
		refuse(fmt.Sprintf("it has %d attempts", p.maxAttempts), "it would never run", "set framework.MaxAttempts or delivery.max_attempts to 1 or more")
		return
	}
	if p.maxAge < 0 {
		refuse(fmt.Sprintf("its MaxAge is %s", p.maxAge), "every event would be stale", "set framework.MaxAge above 0, or leave it out")
	}
	budget := deliveryBudget(p)
	if features.FixedLease && budget > p.lease {
		refuse(fmt.Sprintf("%d attempts of up to %s take %s with their waits, and the lease of %s can't be renewed on broker %q", p.maxAttempts, p.timeout, budget, p.lease, a.cfg.Broker.Name()),
			"another consumer would get the message while this one works on it", "lower the timeout or the attempts, or raise the lease")
	}
	if p.noDedup {
		return
	}
	window := a.redeliveryWindow(h)
	if retention := a.cfg.Profile.Dedup.Retention; retention <= window {
		refuse(fmt.Sprintf("dedup.retention is %s and a message may come again for %s", retention, window.Round(time.Second)),
			"a late copy would be handled again", "raise dedup.retention, or lower dedup.redelivery_window, the attempts or the deliveries")
	}
}

// deliveryBudget is the longest that one delivery is worked on: every attempt to
// its deadline and every wait at its cap.
func deliveryBudget(p policy) time.Duration {
	total := p.timeout
	wait := p.backoff.Base
	for range p.maxAttempts - 1 {
		total += p.timeout + min(wait, p.backoff.Cap)
		if total < 0 {
			return 1<<63 - 1
		}
		if wait < p.backoff.Cap {
			wait *= 2
		}
	}
	return total
}

// redeliveryWindow is the longest time after which a copy may still come: what
// the profile says of replays, or every delivery to its last moment.
func (a *App) redeliveryWindow(h *handler) time.Duration {
	p := h.policy
	window := time.Duration(max(p.maxDeliveries, 1)) * (deliveryBudget(p) + p.lease + max(p.nackDelay, 0))
	if window < 0 {
		return 1<<63 - 1
	}
	return max(window, a.cfg.Profile.Dedup.RedeliveryWindow)
}
