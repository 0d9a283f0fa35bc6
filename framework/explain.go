package framework

import (
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/middleware"
)

// Explanation is the effective pipeline of each handler of a service.
type Explanation struct {
	Service string `json:"service"`
	// Env is the profile's name.
	Env string `json:"env"`
	// Broker is the broker's name; OrderPerKey and the like are its Features.
	Broker string `json:"broker"`
	// Handlers are in the order of registration.
	Handlers []HandlerExplanation `json:"handlers"`
	// Findings are what Validate refuses; empty when the service may start.
	Findings []*Finding `json:"findings"`
}

// HandlerExplanation is one handler, the stack around it and every number of its
// policy.
type HandlerExplanation struct {
	Name            string `json:"name"`
	Group           string `json:"group"`
	Topic           string `json:"topic"`
	DeadLetterTopic string `json:"dead_letter_topic"`
	RedriveTopic    string `json:"redrive_topic"`
	Event           string `json:"event"`
	Version         string `json:"version"`
	// Kind is "handle", "handle_tx" or "handle_call".
	Kind string `json:"kind"`
	// Stack are the layers, outermost first, in words.
	Stack []string `json:"stack"`
	// Numbers are the settings that hold for it.
	Numbers []Number `json:"numbers"`
}

// Where a Number comes from, beside config's sources.
const (
	// FromCode: an option of the handler.
	FromCode config.Source = "code"
	// FromProfile: the profile that the App was given, by whatever way.
	FromProfile config.Source = "profile"
	// Computed: from other numbers.
	Computed config.Source = "computed"
)

// Number is one setting with its effective value.
type Number struct {
	// Name says what it is, Value how much.
	Name  string `json:"name"`
	Value string `json:"value"`
	// Source is where it comes from; Key is the profile's key that sets it where
	// code does not, empty where only code can.
	Source config.Source `json:"source"`
	Key    string        `json:"key,omitempty"`
}

// Explain tells how each handler will run, with every number and where that comes
// from, also for an App that Validate refuses. It starts nothing.
func (a *App) Explain() Explanation {
	x := Explanation{
		Service: a.cfg.Service, Env: a.cfg.Profile.Env, Broker: a.cfg.Broker.Name(),
		Handlers: []HandlerExplanation{}, Findings: FindingsOf(a.Validate()),
	}
	pipeline := a.Pipeline()
	for i, h := range a.handlers {
		info := pipeline[i]
		e := HandlerExplanation{
			Name: info.Name, Group: info.Group, Topic: info.Topic, DeadLetterTopic: info.DeadLetterTopic,
			RedriveTopic: info.RedriveTopic, Event: info.Event, Version: info.Version, Kind: info.Kind,
			Numbers: a.numbers(h),
		}
		filter := false
		for _, l := range info.Layers {
			if l.Name == "user" && !filter { // the App's own gate is the first of them
				filter = true
				l.Name, l.Detail = "filter", "other types defined on this topic are skipped, any other dead-lettered"
			}
			e.Stack = append(e.Stack, strings.TrimSpace(l.Name+" "+l.Detail))
		}
		if h.kind != kindPlain {
			e.Stack = append(e.Stack, "inbox row in the handler's transaction, kept "+a.cfg.Profile.Dedup.Retention.String())
		}
		x.Handlers = append(x.Handlers, e)
	}
	return x
}

// numbers lists the policy of h.
func (a *App) numbers(h *handler) []Number {
	p, features := h.policy, a.cfg.Broker.Features()
	var all []Number
	add := func(name, key string, code bool, value any) {
		n := Number{Name: name, Key: key, Value: fmt.Sprint(value), Source: FromCode}
		if !code {
			n.Source = a.sourceOf(key)
		}
		all = append(all, n)
	}
	set := h.code
	none := func(zero bool, value any, text string) any {
		if zero {
			return text
		}
		return value
	}
	add("timeout of an attempt", "delivery.handler_timeout", set["timeout"], p.timeout)
	add("attempts in a delivery", "delivery.max_attempts", set["maxAttempts"], p.maxAttempts)
	add("backoff", "delivery.backoff_base", set["backoff"], p.backoff.Base)
	add("backoff at most", "delivery.backoff_cap", set["backoff"], p.backoff.Cap)
	add("last attempt begins within", "delivery.max_elapsed", set["maxElapsed"], none(p.maxElapsed == 0, p.maxElapsed, "no bound"))
	add("redeliveries after", "delivery.redeliver", set["redeliver"], none(len(p.redeliver) == 0, p.redeliver, "none"))
	add("deliveries", "delivery.max_deliveries", set["maxDeliveries"], p.maxDeliveries)
	add("transient errors retried for", "delivery.transient_budget", set["transient"], p.transient)
	add("delay of what is given back", "delivery.nack_delay", set["nackDelay"], p.nackDelay)
	add("messages at once", "delivery.concurrency", set["concurrency"], p.concurrency)
	add("messages in flight", "delivery.max_in_flight", set["maxInFlight"], none(p.maxInFlight == 0, p.maxInFlight, fmt.Sprintf("%d (10 x at once)", 10*p.concurrency)))
	lease := p.lease.String() + ", renewed while held"
	if features.FixedLease {
		lease = p.lease.String() + ", not renewed"
	}
	add("lease", "delivery.lease", set["lease"], lease)
	add("order within a key", "", set["order"], p.order)
	add("later events of a failed key are parked", "", set["park"], p.park)
	add("oldest event", "", set["maxAge"], none(p.maxAge == 0, p.maxAge, "any"))
	add("attempts a second", "", set["ratePerSecond"], none(p.ratePerSecond == 0, fmt.Sprintf("%v, burst %d", p.ratePerSecond, p.rateBurst), "no limit"))
	breaker := "none"
	if p.breaker != nil {
		b := p.breaker.WithDefaults()
		breaker = fmt.Sprintf("opens after %d failures for %s, %d probes", b.Failures, b.OpenFor, b.Probes)
	}
	add("breaker", "", set["breaker"], breaker)
	if p.noDedup {
		add("handled events known for", "", true, "not known: each delivery runs")
	} else {
		add("handled events known for", "dedup.retention", false, a.cfg.Profile.Dedup.Retention)
		add("copies may come for", "dedup.redelivery_window", false, a.cfg.Profile.Dedup.RedeliveryWindow)
	}
	if stack, err := a.stackOf(h); err == nil {
		budget := middleware.Budget(stack.Layers())
		all = append(all,
			Number{Name: "attempts in all, at most", Value: fmt.Sprint(p.maxAttempts * (len(p.redeliver) + 1)), Source: Computed},
			Number{Name: "one delivery takes, at most", Value: budget.String(), Source: Computed},
			Number{Name: "last copy after, at most", Value: a.redeliveryWindow(h, budget).String(), Source: Computed})
	}
	return all
}

// sourceOf tells where the profile has a key's value from.
func (a *App) sourceOf(key string) config.Source {
	if key == "" {
		return config.FromDefault
	}
	if s, ok := a.cfg.Sources[key]; ok {
		return s
	}
	if config.Value(a.cfg.Profile, key) == config.Value(config.Default(), key) {
		return config.FromDefault
	}
	return FromProfile
}

// WriteText writes the explanation for people.
func (x Explanation) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s, profile %s\n", x.Service, x.Broker, x.Env)
	for _, h := range x.Handlers {
		fmt.Fprintf(&b, "\n%s  %s %s of topic %s, group %s (%s)\n", h.Name, h.Event, h.Version, h.Topic, h.Group, h.Kind)
		fmt.Fprintf(&b, "  dead letters go to %s, replays come from %s\n", h.DeadLetterTopic, h.RedriveTopic)
		for _, l := range h.Stack {
			fmt.Fprintf(&b, "  → %s\n", l)
		}
		table := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
		fmt.Fprintln(table, "  SETTING\tVALUE\tFROM\tKEY")
		for _, n := range h.Numbers {
			fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", n.Name, n.Value, n.Source, n.Key)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	if len(x.Findings) > 0 {
		b.WriteString("\nIt does not start:\n")
		for _, f := range x.Findings {
			fmt.Fprintf(&b, "  %v\n", f)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// setInCode tells, by the policy's field, what the options set: they are run on
// values that nobody would choose.
func setInCode(opts []HandlerOption) map[string]bool {
	odd := func() policy {
		const d, n = time.Duration(math.MinInt64 + 1), math.MinInt64 + 1
		return policy{
			timeout: d, maxAge: d, concurrency: n, maxInFlight: n, maxAttempts: n, maxElapsed: d, redeliver: []time.Duration{d},
			transient: d, backoff: middleware.Backoff{Base: d, Cap: d}, lease: d, maxDeliveries: n, nackDelay: d,
			ratePerSecond: math.Inf(-1), breaker: &middleware.BreakerConfig{Failures: n},
		}
	}
	p := odd()
	for _, opt := range opts {
		if opt != nil {
			opt(&p)
		}
	}
	set := map[string]bool{}
	before, after := reflect.ValueOf(odd()), reflect.ValueOf(p)
	for i := range before.NumField() {
		name := before.Type().Field(i).Name
		if name == "breaker" { // it holds functions
			set[name] = p.breaker == nil || p.breaker.Failures != math.MinInt64+1
			continue
		}
		set[name] = fmt.Sprint(before.Field(i)) != fmt.Sprint(after.Field(i))
	}
	return set
}
