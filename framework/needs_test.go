package framework_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
)

// What a handler states as a need is met by the broker, emulated, or refused in a
// sentence that names the need, the broker and the remedy.
func TestNeeds(t *testing.T) {
	t.Parallel()
	can := broker.Features{
		OrderPerKey: true, OrderAcrossReplicas: true, Delay: true, DeliveryCount: true, CompetingConsumers: true,
		ReplayForNewGroup: true, Durable: true,
	}
	but := func(change func(*broker.Features)) broker.Features {
		f := can
		change(&f)
		return f
	}
	const large = 400 << 10
	for name, c := range map[string]struct {
		features broker.Features
		opt      framework.HandlerOption
		need     string
		met      framework.Met
		how      string // a part of it
		rule     middleware.Rule
	}{
		"order": {can, framework.OrderByKey(), "order per key", framework.MetByBroker, "across replicas", ""},
		"order within a replica": {
			but(func(f *broker.Features) { f.OrderAcrossReplicas = false }), framework.OrderByKey(),
			"order per key", framework.MetPartly, "run one", "",
		},
		"no order": {
			but(func(f *broker.Features) { f.OrderPerKey, f.OrderAcrossReplicas = false, false }), framework.OrderByKey(),
			"order per key", framework.MetNo, "broker.aws.fifo", framework.RuleOrder,
		},
		"any delay": {can, framework.NeedDelay(2 * time.Hour), "delay of 2h0m0s", framework.MetByBroker, "any length", ""},
		"a delay within the longest": {
			but(func(f *broker.Features) { f.MaxDelay = 12 * time.Hour }), framework.NeedDelay(2 * time.Hour),
			"delay of 2h0m0s", framework.MetByBroker, "12h", "",
		},
		"a delay that the consumer holds": {
			but(func(f *broker.Features) { f.MaxDelay, f.HoldsDelay = 30*time.Second, true }), framework.NeedDelay(2 * time.Hour),
			"delay of 2h0m0s", framework.MetEmulated, "within 30s", "",
		},
		"a delay above the longest": {
			but(func(f *broker.Features) { f.MaxDelay = 15 * time.Minute }), framework.NeedDelay(2 * time.Hour),
			"delay of 2h0m0s", framework.MetNo, "15m0s at most", framework.RuleDelay,
		},
		"no delay": {
			but(func(f *broker.Features) { f.Delay = false }), framework.NeedDelay(2 * time.Hour),
			"delay of 2h0m0s", framework.MetNo, "choose a broker with delays", framework.RuleDelay,
		},
		"the delays of redeliveries": {
			but(func(f *broker.Features) { f.MaxDelay = 12 * time.Hour }), framework.Redeliver(time.Minute, time.Hour),
			"delay of 1h6m0s", framework.MetByBroker, "12h", "",
		},
		"any payload": {can, framework.NeedPayload(large), "events of 409600 bytes", framework.MetByBroker, "no limit", ""},
		"a payload that fits": {
			but(func(f *broker.Features) { f.MaxMessageBytes = 1 << 20 }), framework.NeedPayload(large),
			"events of 409600 bytes", framework.MetByBroker, "up to ", "",
		},
		"a payload in a bucket": {
			but(func(f *broker.Features) { f.ClaimCheckAbove = 256 << 10 }), framework.NeedPayload(large),
			"events of 409600 bytes", framework.MetEmulated, "claim check", "",
		},
		"a payload that is too large": {
			but(func(f *broker.Features) { f.MaxMessageBytes = 256 << 10 }), framework.NeedPayload(large),
			"events of 409600 bytes", framework.MetNo, "broker.aws.claim_check_url", framework.RulePayload,
		},
		"replay": {can, framework.NeedReplay(), "replay for a new group", framework.MetByBroker, "still holds", ""},
		"no replay": {
			but(func(f *broker.Features) { f.ReplayForNewGroup = false }), framework.NeedReplay(),
			"replay for a new group", framework.MetNo, "redisstream, sql", framework.RuleReplay,
		},
		"deliveries": {can, framework.Timeout(time.Second), "deliveries counted", framework.MetByBroker, "across a crash", ""},
		"no delivery count": {
			but(func(f *broker.Features) { f.DeliveryCount = false }), framework.Timeout(time.Second),
			"deliveries counted", framework.MetPartly, "for ever", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, func(cfg *framework.Config) { cfg.Broker = featured{Broker: cfg.Broker, features: c.features} })
			framework.Handle(f.app, made, "one", plain, c.opt)
			var found framework.Need
			for _, n := range f.app.Needs() {
				require.Equal(t, "one", n.Handler)
				if n.Need == c.need {
					found = n
				}
			}
			require.Equal(t, c.met, found.Met, "%+v", f.app.Needs())
			require.Contains(t, found.How, c.how)
			err := f.app.Validate()
			if c.rule == "" {
				require.NoError(t, err)
				return
			}
			findings := framework.FindingsOf(err)
			require.Len(t, findings, 1, "%v", err)
			require.Equal(t, c.rule, findings[0].Rule)
			for _, named := range []string{`handler "one"`, "memory"} {
				require.ErrorContains(t, err, named)
			}
		})
	}
}

// The need of the whole service.
func TestNeedOfTheService(t *testing.T) {
	t.Parallel()
	f := setup(t, func(cfg *framework.Config) {
		cfg.MaxEventBytes = 400 << 10
		cfg.Broker = featured{Broker: cfg.Broker, features: broker.Features{MaxMessageBytes: 256 << 10}}
	})
	needs := f.app.Needs()
	require.Len(t, needs, 1)
	require.Equal(t, []any{"", framework.MetNo}, []any{needs[0].Handler, needs[0].Met})
	findings := framework.FindingsOf(f.app.Validate())
	require.Len(t, findings, 1)
	require.Equal(t, framework.RulePayload, findings[0].Rule)
}

// A need that makes no sense is refused too.
func TestNeedsBelowZero(t *testing.T) {
	t.Parallel()
	f := setup(t)
	framework.Handle(f.app, made, "one", plain, framework.NeedDelay(-time.Second), framework.NeedPayload(-1))
	require.Len(t, framework.FindingsOf(f.app.Validate()), 2)
}
