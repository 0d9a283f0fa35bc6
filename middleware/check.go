package middleware

import (
	"fmt"
	"math"
	"time"
)

// Plan is a chain of middlewares around one handler, and what it stands on.
type Plan struct {
	// Handler is the handler's name in findings.
	Handler string
	// Layers are the middlewares, outermost first: of LayersOf, a Stack's Layers,
	// or declared by hand.
	Layers []Layer
	// Ordered: the handler wants the messages of one key in order.
	Ordered bool
	// Lease is how long the broker leaves a message to a consumer; 0 when it never
	// takes it back, or when it is not known.
	Lease time.Duration
	// Renewed: the lease is extended while a message is held.
	Renewed bool
	// Redelivery is the longest time after which a copy of a message may still
	// come; 0 when it is not known.
	Redelivery time.Duration
}

// Check finds what is dangerous about a chain of middlewares. It starts nothing,
// and can be used with a bare Watermill router:
//
//	findings := middleware.Check(middleware.Plan{Handler: "charge-order", Layers: middleware.LayersOf(chain...)})
//
// What it does not know it takes to be right.
func Check(p Plan) []*Finding {
	c := checker{Plan: p}
	c.order()
	c.marks()
	c.times()
	return c.findings
}

type checker struct {
	Plan
	findings []*Finding
}

func (c *checker) refuse(rule Rule, found, danger, fix string) {
	c.findings = append(c.findings, &Finding{Handler: c.Handler, Rule: rule, Found: found, Danger: danger, Fix: fix})
}

// first is the outermost layer of a kind, or -1.
func (c *checker) first(kind Kind) int {
	for i, l := range c.Layers {
		if l.Kind == kind {
			return i
		}
	}
	return -1
}

// inside calls fn with the layers of a kind within the layer at i.
func (c *checker) inside(i int, kind Kind, fn func(Layer)) {
	if i < 0 {
		return
	}
	for _, l := range c.Layers[i+1:] {
		if l.Kind == kind {
			fn(l)
		}
	}
}

// order looks at what wraps what.
func (c *checker) order() {
	retry, poison, timeout, dedup := c.first(KindRetry), c.first(KindPoison), c.first(KindTimeout), c.first(KindDedup)
	if poison < 0 {
		c.refuse(RuleNoPoison, "no layer dead-letters", "a message that always fails is redelivered for ever and its story is told nowhere",
			"put middleware.Poison around the retry")
	}
	c.inside(retry, KindPoison, func(Layer) {
		c.refuse(RulePoisonInsideRetry, "poison stands inside retry",
			"the first failure is dead-lettered and acked, and the retry never sees it", "put poison around retry")
	})
	c.inside(retry, KindRetry, func(Layer) {
		c.refuse(RuleRetryInsideRetry, "a retry stands inside another",
			"their attempts multiply, and the inner one's waits are spent out of one attempt's timeout", "leave one of them out")
	})
	c.inside(timeout, KindRetry, func(Layer) {
		c.refuse(RuleTimeoutAroundRetry, "timeout stands around retry",
			"all attempts share one deadline, so the later ones begin expired", "put timeout inside retry")
	})
	c.inside(timeout, KindPoison, func(Layer) {
		c.refuse(RuleTimeoutAroundPoison, "timeout stands around poison",
			"after a timeout the dead letter is published on a context that has ended, so it never arrives", "put timeout inside poison")
	})
	c.inside(dedup, KindPoison, func(Layer) {
		c.refuse(RuleDedupAroundPoison, "dedup stands around poison",
			"a dead-lettered message counts as handled, so its replay is dropped as a duplicate", "put dedup innermost, around the handler alone")
	})
}

// marks looks at what settles a message too soon.
func (c *checker) marks() {
	for _, l := range c.Layers {
		switch {
		case l.MarksBeforeWork:
			c.refuse(RuleMarksBeforeWork, fmt.Sprintf("%q marks a message as handled before it was", l.Name),
				"one that fails comes back, looks like a duplicate and is acked: it is lost", "use middleware.Dedup, which claims, runs, then commits or releases")
		case l.Kind == KindAck:
			c.refuse(RuleMarksBeforeWork, fmt.Sprintf("%q acks before the work", l.Name),
				"a failure or a crash after the ack loses the message", "leave it out: the router acks once the handler has succeeded")
		case l.Kind == KindIgnore:
			c.refuse(RuleErrorsIgnored, fmt.Sprintf("%q turns errors into success", l.Name),
				"the message is acked, neither counted nor logged nor dead-lettered", "return middleware.Skip from the handler, which is counted and logged")
		}
		if l.Overtakes && c.Ordered {
			c.refuse(RuleOrderOvertaken, fmt.Sprintf("order by key with %q, which retries beside the later messages", l.Name),
				"a message that failed is overtaken by later ones of its key", "leave it out, or the order: middleware.Retry keeps it")
		}
	}
}

// times compares durations.
func (c *checker) times() {
	attempt, bounded := c.attempt()
	budget := Budget(c.Layers)
	if c.Lease > 0 && !c.Renewed {
		switch {
		case !bounded && c.first(KindTimeout) < 0:
			c.refuse(RuleNoTimeout, fmt.Sprintf("no timeout, and the lease of %s is not renewed", c.Lease),
				"another consumer gets the message while this one still works on it", "put middleware.Timeout inside the retry, below the lease")
		case attempt > c.Lease:
			c.refuse(RuleTimeoutAboveLease, fmt.Sprintf("one attempt may take %s, the lease is %s and is not renewed", attempt, c.Lease),
				"another consumer gets the message while this one still works on it", "lower the timeout or raise the lease")
		case budget > c.Lease:
			c.refuse(RuleBudgetAboveLease, fmt.Sprintf("all attempts may take %s with their waits, the lease is %s and is not renewed", budget, c.Lease),
				"another consumer gets the message while this one still works on it", "lower the timeout or the attempts, let the broker redeliver after a delay, or raise the lease")
		}
	}
	redeliveries := 0
	for _, l := range c.Layers {
		redeliveries = max(redeliveries, l.Redeliveries)
	}
	for _, l := range c.Layers {
		if l.Kind == KindDedup && l.Keeps > 0 && c.Redelivery > 0 && l.Keeps <= c.Redelivery {
			c.refuse(RuleDedupRetention, fmt.Sprintf("keys are kept %s and a copy may come for %s", l.Keeps, c.Redelivery.Round(time.Second)),
				"a late copy is handled again", "keep keys longer than the longest redelivery")
		}
		if l.Kind == KindPoison && l.Deliveries > 0 && redeliveries >= l.Deliveries {
			c.refuse(RuleRedeliveries, fmt.Sprintf("%d redeliveries after the first delivery and at most %d deliveries", redeliveries, l.Deliveries),
				"the message is dead-lettered unrun before its last attempts", fmt.Sprintf("raise the deliveries above %d, with a margin for crashes", redeliveries+1))
		}
	}
}

// attempt is the longest that one attempt may take; not bounded without a
// timeout.
func (c *checker) attempt() (time.Duration, bool) {
	for i := len(c.Layers) - 1; i >= 0; i-- {
		if l := c.Layers[i]; l.Kind == KindTimeout && l.Takes > 0 {
			return l.Takes, true
		}
	}
	return 0, false
}

// Budget is the longest that the layers work on one delivery: every attempt to
// its deadline and every wait at its longest. It never overflows.
func Budget(layers []Layer) time.Duration {
	var total time.Duration
	for i := len(layers) - 1; i >= 0; i-- {
		l := layers[i]
		switch l.Kind {
		case KindTimeout:
			total = max(total, l.Takes)
		case KindRateLimit:
			total = plus(total, l.Takes)
		case KindRetry:
			one := total
			for range min(max(l.Attempts, 1)-1, 1_000_000) {
				if total = plus(total, one); total == math.MaxInt64 {
					break
				}
			}
			total = plus(total, l.Takes)
			if l.Elapsed > 0 {
				total = min(total, plus(l.Elapsed, one))
			}
		}
	}
	return total
}

func plus(a, b time.Duration) time.Duration {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxInt64
}
