package framework

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
)

// Finding is one reason why an App does not start: the handler, the rule, what
// was found, the danger and the fix.
type Finding = middleware.Finding

// FindingsOf returns every Finding in err's tree: what Validate or Run refused.
func FindingsOf(err error) []*Finding { return middleware.FindingsOf(err) }

// The rules of an App beside those of a chain (middleware.Check).
const (
	// RuleHandlerName: a name that can't be part of a group, a queue, a metric.
	RuleHandlerName middleware.Rule = "handler-name"
	// RuleHandlerTwice: two handlers of one name.
	RuleHandlerTwice middleware.Rule = "handler-registered-twice"
	// RuleGroupShared: two handlers of one group.
	RuleGroupShared middleware.Rule = "group-shared"
	// RuleNoDatabase: a transactional handler without a database.
	RuleNoDatabase middleware.Rule = "transaction-without-database"
	// RuleNoDedup: a transactional handler without its inbox row.
	RuleNoDedup middleware.Rule = "transaction-without-dedup"
	// RuleOrder: order on a broker that keeps none.
	RuleOrder middleware.Rule = "order-unsupported"
	// RuleParkWithoutOrder: parking where events of a key run side by side.
	RuleParkWithoutOrder middleware.Rule = "park-without-order"
	// RuleParkWithoutDatabase: parking with no place for what is parked.
	RuleParkWithoutDatabase middleware.Rule = "park-without-database"
	// RuleAttempts: a handler that never runs, or whose settings can't work.
	RuleAttempts middleware.Rule = "attempts"
	// RuleMaxAge: every event would be stale.
	RuleMaxAge middleware.Rule = "max-age"
	// RuleDelay: a delay that the broker can't hold.
	RuleDelay middleware.Rule = "delay-above-broker"
	// RuleUncounted: redeliveries on a broker that does not count deliveries.
	RuleUncounted middleware.Rule = "deliveries-uncounted"
	// RuleDeadLetters: the group's dead letters have no place to go.
	RuleDeadLetters middleware.Rule = "dead-letters-unusable"
	// RulePayload: events larger than what the broker carries.
	RulePayload middleware.Rule = "payload-above-broker"
)

// refusal adds a finding about one handler.
type refusal func(rule middleware.Rule, found, danger, fix string)

// check applies the rules that keep messages from being lost or handled twice.
func (a *App) check() []error {
	var errs []error
	features := a.cfg.Broker.Features()
	names, groups := map[string]int{}, map[string]string{}
	errs = append(errs, a.checkPayload(features)...)
	for _, h := range a.handlers {
		refuse := func(rule middleware.Rule, found, danger, fix string) {
			errs = append(errs, &Finding{Handler: h.name, Rule: rule, Found: found, Danger: danger, Fix: fix})
		}
		if !handlerName.MatchString(h.name) {
			refuse(RuleHandlerName, "its name must be lower case letters, digits and dashes",
				"it is part of group, queue and metric names", "rename it, such as \"charge-order\"")
		}
		if names[h.name]++; names[h.name] == 2 {
			refuse(RuleHandlerTwice, "its name is registered more than once",
				"two handlers would share one group and each see half of the messages", "give each handler a name of its own")
		}
		if other, taken := groups[h.group]; taken && other != h.name {
			refuse(RuleGroupShared, fmt.Sprintf("its group %q is also that of handler %q", h.group, other),
				"the two would share the messages, so each would miss some", "leave framework.Group out, or give each a group of its own")
		}
		groups[h.group] = h.name

		if h.kind != kindPlain && a.cfg.DB == nil {
			refuse(RuleNoDatabase, "it is transactional and the service has no database",
				"its effect, its inbox row and its events could not commit together", "set Config.DB, or register it with Handle")
		}
		if h.kind != kindPlain && h.policy.noDedup {
			refuse(RuleNoDedup, "NoDedup on a transactional handler",
				"its inbox row is what makes a redelivery harmless", "leave NoDedup out")
		}
		if h.policy.order && !features.OrderPerKey {
			refuse(RuleOrder, fmt.Sprintf("OrderByKey on broker %q, which keeps no order", a.cfg.Broker.Name()),
				"events of one key would overtake each other", "choose a broker with order per key, or leave OrderByKey out")
		}
		if h.policy.park && !h.policy.order {
			refuse(RuleParkWithoutOrder, "ParkKey without OrderByKey",
				"a later event of a key may run beside the one that fails, so nothing could be kept in order", "add framework.OrderByKey, or leave ParkKey out")
		}
		if h.policy.park && a.cfg.DB == nil {
			refuse(RuleParkWithoutDatabase, "ParkKey, and the service has no database",
				"nothing would remember which keys are held up, so later events would overtake the failed one", "set Config.DB, or leave ParkKey out")
		}
		a.checkNeeds(h, features, refuse)
		a.checkDeadLetters(h, features, refuse)
		if !a.checkPolicy(h, refuse) {
			continue
		}
		a.checkDelays(h, features, refuse)
		stack, err := a.stackOf(h)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, f := range middleware.Check(middleware.Plan{
			Handler: h.name, Layers: stack.Layers(), Ordered: h.policy.order,
			Lease: h.policy.lease, Renewed: !features.FixedLease,
		}) {
			errs = append(errs, f)
		}
		a.checkRetention(h, stack, refuse)
	}
	return errs
}

// checkPolicy looks at single numbers; it returns false where the rest makes no
// sense any more.
func (a *App) checkPolicy(h *handler, refuse refusal) bool {
	p := h.policy
	if p.maxAge < 0 {
		refuse(RuleMaxAge, fmt.Sprintf("its MaxAge is %s", p.maxAge), "every event would be stale", "set framework.MaxAge above 0, or leave it out")
	}
	if p.timeout <= 0 {
		refuse(middleware.RuleNoTimeout, fmt.Sprintf("its timeout is %s", p.timeout), "an attempt could run for ever", "set framework.Timeout or delivery.handler_timeout above 0")
		return false
	}
	if p.maxAttempts < 1 {
		refuse(RuleAttempts, fmt.Sprintf("it has %d attempts", p.maxAttempts), "it would never run", "set framework.MaxAttempts or delivery.max_attempts to 1 or more")
		return false
	}
	return true
}

// restartMargin is how many deliveries are kept for restarts where the broker
// counts what a stopping process gives back.
const restartMargin = 4

// checkDelays compares what the handler wants held back with what the broker can
// hold.
func (a *App) checkDelays(h *handler, features broker.Features, refuse refusal) {
	p := h.policy
	name := a.cfg.Broker.Name()
	if need := len(p.redeliver) + 1 + restartMargin; features.CountsReleases && p.maxDeliveries > 0 && p.maxDeliveries < need {
		refuse(middleware.RuleRedeliveries, fmt.Sprintf("at most %d deliveries on broker %q, which counts what a stopping process gives back", p.maxDeliveries, name),
			"a few restarts would dead-letter messages unrun", fmt.Sprintf("set framework.MaxDeliveries or delivery.max_deliveries to %d or more", need))
	}
	if len(p.redeliver) > 0 && !features.DeliveryCount {
		refuse(RuleUncounted, fmt.Sprintf("%d redeliveries on broker %q, which does not count deliveries", len(p.redeliver), name),
			"nothing would tell the last one, so a failing message would come for ever", "leave framework.Redeliver out, or choose a broker that counts")
	}
	if len(p.redeliver) > 0 && !features.Delay {
		refuse(RuleDelay, fmt.Sprintf("redeliveries after %v on broker %q, which holds nothing back", p.redeliver, name),
			"the message would come again at once", "leave framework.Redeliver out, or choose a broker with delays")
		return
	}
	if features.MaxDelay == 0 || features.HoldsDelay {
		return
	}
	above := func(what string, d time.Duration, fix string) {
		if d > features.MaxDelay {
			refuse(RuleDelay, fmt.Sprintf("%s is %s, and broker %q holds a message back for %s at most", what, d, name, features.MaxDelay),
				"the message would come too early, or the broker would refuse the delay", fix)
		}
	}
	if len(p.redeliver) > 0 {
		longest := slices.Max(p.redeliver)
		above("its longest redelivery delay, with a tenth for spreading,", longest+longest/10, "lower framework.Redeliver or delivery.redeliver")
	}
	above("delivery.nack_delay", p.nackDelay, "lower it")
	if p.breaker != nil {
		open := p.breaker.WithDefaults().OpenFor
		above("its breaker's OpenFor, with a tenth for spreading,", open+open/10, "lower framework.Breaker's OpenFor")
	}
}

// checkRetention holds the life of a key against the last copy of an event.
func (a *App) checkRetention(h *handler, stack *middleware.Stack, refuse refusal) {
	if h.policy.noDedup {
		return
	}
	window := a.redeliveryWindow(h, middleware.Budget(stack.Layers()))
	if retention := a.cfg.Profile.Dedup.Retention; retention <= window {
		refuse(middleware.RuleDedupRetention, fmt.Sprintf("dedup.retention is %s and a message may come again for %s", retention, window.Round(time.Second)),
			"a late copy would be handled again", "raise dedup.retention, or lower dedup.redelivery_window, the attempts or the deliveries")
	}
}

// deadLetterEntries is how many metadata entries an event's dead letter may have:
// its own headers, the story, and the story before it.
const deadLetterEntries = 40

// parkEntries is how many more there are with ParkKey.
const parkEntries = 4

// checkDeadLetters finds groups whose dead letters could not be written, or would
// be read by the handler itself.
func (a *App) checkDeadLetters(h *handler, features broker.Features, refuse refusal) {
	for _, own := range []string{broker.DeadLetterTopic(h.group), broker.RedriveTopic(h.group)} {
		if h.event.Topic == own {
			refuse(RuleDeadLetters, fmt.Sprintf("it takes its events from %q, which is its own", own),
				"what it dead-letters would come back to it for ever", "handle another topic, or name the group otherwise with framework.Group")
		}
	}
	entries := deadLetterEntries
	if h.policy.park {
		entries += parkEntries
	}
	if n := features.MaxMetadataEntries; n > 0 && n < entries {
		refuse(RuleDeadLetters, fmt.Sprintf("broker %q takes %d metadata entries, a dead letter has up to %d", a.cfg.Broker.Name(), n, entries),
			"dead letters would be refused, so a failing message would come for ever", "choose a broker, or a marshaller of its adapter, that packs metadata")
	}
	if n := features.MaxMessageBytes; n > 0 && n < 2*middleware.DeadLetterReserve {
		refuse(RuleDeadLetters, fmt.Sprintf("broker %q takes messages of %d bytes, and a dead letter's story alone needs %d", a.cfg.Broker.Name(), n, middleware.DeadLetterReserve),
			"dead letters would be refused, so a failing message would come for ever", "choose a broker with larger messages, or store payloads beside it")
	}
}

// checkPayload compares the service's largest event with what the broker carries.
func (a *App) checkPayload(features broker.Features) []error {
	limit := eventLimit(features)
	if a.cfg.MaxEventBytes <= 0 || limit == 0 || a.cfg.MaxEventBytes <= limit {
		return nil
	}
	return []error{&Finding{
		Rule: RulePayload,
		Found: fmt.Sprintf("Config.MaxEventBytes is %d, and broker %q carries events of %d bytes, a dead letter's story kept free",
			a.cfg.MaxEventBytes, a.cfg.Broker.Name(), limit),
		Danger: "larger events would be refused once they are written",
		Fix:    "keep large data elsewhere and publish where it is, or choose a broker that stores payloads beside it",
	}}
}

// eventLimit is the largest event that can also be dead-lettered; 0 is no limit.
func eventLimit(features broker.Features) int {
	if features.MaxMessageBytes == 0 {
		return 0
	}
	return max(features.MaxMessageBytes-middleware.DeadLetterReserve, 1)
}

// redeliveryWindow is the longest time after which a copy may still come: what
// the profile says of replays, or every delivery to its last moment.
func (a *App) redeliveryWindow(h *handler, budget time.Duration) time.Duration {
	p := h.policy
	window := times(max(p.maxDeliveries, 1), plus(budget, plus(p.lease, max(p.nackDelay, 0))))
	for _, d := range p.redeliver {
		window = plus(window, d+d/10)
	}
	return max(window, a.cfg.Profile.Dedup.RedeliveryWindow)
}

// plus and times stop at the longest duration.
func plus(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func times(n int, d time.Duration) time.Duration {
	if d > 0 && time.Duration(n) > math.MaxInt64/d {
		return math.MaxInt64
	}
	return time.Duration(n) * d
}
