package framework

import (
	"fmt"
	"slices"
	"time"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
)

// RuleReplay is broken by a new group that would not see what was published
// before it.
const RuleReplay middleware.Rule = "replay-unsupported"

// NeedDelay says that the handler gives messages back for up to d (Defer): the
// App refuses to start on a broker that can't hold one for so long. What Redeliver
// sets is a need already. Default 0: no such need.
func NeedDelay(d time.Duration) HandlerOption { return func(p *policy) { p.needDelay = d } }

// NeedPayload says that the handler's events have up to n bytes, envelope and
// metadata included: the App refuses to start on a broker that carries less and
// has no claim check. Config.MaxEventBytes says it for the whole service. Default
// 0: no such need.
func NeedPayload(n int) HandlerOption { return func(p *policy) { p.needPayload = n } }

// NeedReplay says that the handler must also get what was published before its
// group existed: the App refuses to start on a broker that does not keep it.
// Default: no such need.
func NeedReplay() HandlerOption { return func(p *policy) { p.needReplay = true } }

// Met says whether a broker gives what a service needs.
type Met string

// What Met can be.
const (
	// MetByBroker: the broker does it.
	MetByBroker Met = "yes"
	// MetEmulated: Headrace does it where the broker can't.
	MetEmulated Met = "emulated"
	// MetPartly: it holds under a condition, which Need.How names.
	MetPartly Met = "partly"
	// MetNo: the App refuses to start; Need.How says what to do.
	MetNo Met = "no"
)

// Need is one thing that a service needs of its broker.
type Need struct {
	// Handler is whose need it is; empty for the whole service's.
	Handler string `json:"handler,omitempty"`
	// Need is what is needed: "order per key", "delay of 2h0m0s".
	Need string `json:"need"`
	// Met tells whether the broker gives it, How in what way, or what to do.
	Met Met    `json:"met"`
	How string `json:"how"`

	rule   middleware.Rule
	danger string
}

// Needs compares what the service's handlers need with what its broker gives.
// Nothing is started or asked: the broker states its features. Run refuses to
// start while a need is not met.
func (a *App) Needs() []Need {
	f := a.cfg.Broker.Features()
	var all []Need
	if n := a.cfg.MaxEventBytes; n > 0 {
		all = append(all, a.payload("", n, f))
	}
	for _, h := range a.handlers {
		all = append(all, a.needsOf(h, f)...)
	}
	return all
}

func (a *App) needsOf(h *handler, f broker.Features) []Need {
	p := h.policy
	var all []Need
	if p.order {
		all = append(all, a.order(h, f))
	}
	if p.needPayload > 0 {
		all = append(all, a.payload(h.name, p.needPayload, f))
	}
	if d := longestDelay(p); d > 0 {
		all = append(all, a.delay(h, d, f))
	}
	if p.needReplay {
		all = append(all, a.replay(h, f))
	}
	return append(all, a.counted(h, f))
}

// longestDelay is the longest time for which a handler wants a message held back.
func longestDelay(p policy) time.Duration {
	d := p.needDelay
	if len(p.redeliver) > 0 {
		longest := slices.Max(p.redeliver)
		d = max(d, longest+longest/10) // a tenth for spreading
	}
	return d
}

func (a *App) order(h *handler, f broker.Features) Need {
	n := Need{Handler: h.name, Need: "order per key", Met: MetByBroker, How: "also across replicas", rule: RuleOrder}
	switch {
	case !f.OrderPerKey:
		n.Met, n.danger = MetNo, "events of one key would overtake each other"
		n.How = "choose a broker with order per key (with SQS and SNS broker.aws.fifo), or leave framework.OrderByKey out"
	case !f.OrderAcrossReplicas && f.Durable:
		n.Met, n.How = MetPartly, "within one replica: run one of the service"
	case !f.OrderAcrossReplicas:
		n.How = "within the one process"
	}
	return n
}

func (a *App) payload(handler string, size int, f broker.Features) Need {
	n := Need{Handler: handler, Need: fmt.Sprintf("events of %d bytes", size), Met: MetByBroker, rule: RulePayload}
	limit := eventLimit(f)
	above := eventLimit(broker.Features{MaxMessageBytes: f.ClaimCheckAbove})
	switch {
	case limit > 0 && size > limit:
		n.Met, n.danger = MetNo, "larger events would be refused once they are written"
		n.How = fmt.Sprintf("it carries %d, a dead letter's story kept free: store payloads beside it (with SQS and SNS broker.aws.claim_check_url), choose another broker, or keep large data elsewhere and publish where it is", limit)
	case above > 0 && size > above:
		n.Met, n.How = MetEmulated, fmt.Sprintf("claim check: a payload that does not fit into a message of %d bytes lies in a bucket", f.ClaimCheckAbove)
	case limit > 0:
		n.How = fmt.Sprintf("up to %d", limit)
	default:
		n.How = "no limit"
	}
	return n
}

func (a *App) delay(h *handler, d time.Duration, f broker.Features) Need {
	n := Need{Handler: h.name, Need: "delay of " + d.String(), Met: MetByBroker, How: "any length", rule: RuleDelay}
	switch {
	case !f.Delay:
		n.Met, n.danger, n.How = MetNo, "a message that is given back would come again at once", "choose a broker with delays, or leave the delay out"
	case f.MaxDelay == 0:
	case d <= f.MaxDelay:
		n.How = fmt.Sprintf("up to %s", f.MaxDelay)
	case f.HoldsDelay:
		n.Met, n.How = MetEmulated, fmt.Sprintf("the consumer holds the message; once that has ended it comes again within %s", f.MaxDelay)
	default:
		n.Met, n.danger = MetNo, "the message would come too early, or the broker would refuse the delay"
		n.How = fmt.Sprintf("it holds a message back for %s at most: lower framework.NeedDelay or the delays of Redeliver, or choose another broker", f.MaxDelay)
	}
	return n
}

func (a *App) replay(h *handler, f broker.Features) Need {
	n := Need{Handler: h.name, Need: "replay for a new group", Met: MetByBroker, How: "what the topic still holds", rule: RuleReplay}
	if !f.ReplayForNewGroup {
		n.Met, n.danger = MetNo, "the handler would miss all that was published before its group existed"
		n.How = "choose a broker that keeps what was read (redisstream, sql), or make the group before the first event and leave framework.NeedReplay out"
	}
	return n
}

func (a *App) counted(h *handler, f broker.Features) Need {
	n := Need{Handler: h.name, Need: "deliveries counted", Met: MetByBroker, How: "also across a crash"}
	switch {
	case !f.DeliveryCount:
		n.Met, n.How = MetPartly, "not across a crash: a message that kills the process comes again for ever"
	case f.CountsReleases:
		n.How = "also across a crash, and what was given back too"
	case !f.Durable:
		n.How = "within the one process"
	}
	return n
}

// checkNeeds refuses what the handler states as a need and the broker can't give.
func (a *App) checkNeeds(h *handler, features broker.Features, refuse refusal) {
	p := h.policy
	stated := []Need{}
	if p.needDelay > 0 {
		stated = append(stated, a.delay(h, p.needDelay, features))
	}
	if p.needPayload > 0 {
		stated = append(stated, a.payload(h.name, p.needPayload, features))
	}
	if p.needReplay {
		stated = append(stated, a.replay(h, features))
	}
	for _, n := range stated {
		if n.Met == MetNo {
			refuse(n.rule, fmt.Sprintf("it needs %s and broker %q does not give that", n.Need, a.cfg.Broker.Name()), n.danger, n.How)
		}
	}
	if p.needDelay < 0 {
		refuse(RuleDelay, fmt.Sprintf("its NeedDelay is %s", p.needDelay), "there is no such delay", "set it above 0, or leave it out")
	}
	if p.needPayload < 0 {
		refuse(RulePayload, fmt.Sprintf("its NeedPayload is %d", p.needPayload), "there is no such size", "set it above 0, or leave it out")
	}
}
