package framework_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	stock "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// forgetful is a dedup store that says that it marks keys before the work.
type forgetful struct{ middleware.DedupStore }

func (forgetful) MarksBeforeWork() bool { return true }

// Chain proof: each unsafe set-up is refused, by handler, rule, danger and fix,
// and nothing of it starts.
func TestUnsafeSetUpsAreRefused(t *testing.T) {
	t.Parallel()
	on := func(change func(*broker.Features)) configure {
		return func(c *framework.Config) {
			f := c.Broker.Features()
			change(&f)
			c.Broker = featured{Broker: c.Broker, features: f}
		}
	}
	with := func(layers ...message.HandlerMiddleware) configure {
		return func(c *framework.Config) { c.Middleware = layers }
	}
	deadLetterTopic := events.Define[thing]("thing.made", "1.0", events.Topic("things.one.dlq"))
	for name, c := range map[string]struct {
		configure configure
		opts      []framework.HandlerOption
		more      func(*framework.App)
		rule      middleware.Rule
		handler   string // default "one"
	}{
		"poison inside retry": {
			configure: func(c *framework.Config) {
				poison, err := stock.PoisonQueue(c.Broker.Publisher(), "lost")
				if err != nil {
					panic(err)
				}
				c.Middleware = []message.HandlerMiddleware{poison}
			},
			rule: middleware.RulePoisonInsideRetry,
		},
		"a dedup that marks before the work": {configure: with((&stock.Deduplicator{}).Middleware), rule: middleware.RuleMarksBeforeWork},
		"a dedup store that marks before the work": {configure: func(c *framework.Config) {
			c.DedupStore = forgetful{middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})}
		}, rule: middleware.RuleMarksBeforeWork},
		"an ack before the work":                      {configure: with(stock.InstantAck), rule: middleware.RuleMarksBeforeWork},
		"a second retry":                              {configure: with(stock.Retry{}.Middleware), rule: middleware.RuleRetryInsideRetry},
		"a timeout above a lease without heartbeat":   {configure: on(func(f *broker.Features) { f.FixedLease = true }), opts: []framework.HandlerOption{framework.Timeout(31 * time.Second)}, rule: middleware.RuleTimeoutAboveLease},
		"attempts above a lease without heartbeat":    {configure: on(func(f *broker.Features) { f.FixedLease = true }), opts: []framework.HandlerOption{framework.Timeout(10 * time.Second)}, rule: middleware.RuleBudgetAboveLease},
		"a dedup retention below the last redelivery": {opts: []framework.HandlerOption{framework.Redeliver(400*time.Hour, 400*time.Hour)}, rule: middleware.RuleDedupRetention},
		"a group of two handlers": {
			more: func(a *framework.App) { framework.Handle(a, made, "two", plain, framework.Group("things.one")) },
			rule: framework.RuleGroupShared, handler: "two",
		},
		"order on a broker without":  {configure: on(func(f *broker.Features) { f.OrderPerKey = false }), opts: []framework.HandlerOption{framework.OrderByKey()}, rule: framework.RuleOrder},
		"parking without order":      {opts: []framework.HandlerOption{framework.ParkKey()}, rule: framework.RuleParkWithoutOrder},
		"parking without a database": {configure: withoutDB, opts: []framework.HandlerOption{framework.OrderByKey(), framework.ParkKey()}, rule: framework.RuleParkWithoutDatabase},
		"too few metadata entries for a parked one": {
			configure: on(func(f *broker.Features) { f.MaxMetadataEntries = 43 }), opts: []framework.HandlerOption{framework.OrderByKey(), framework.ParkKey()}, rule: framework.RuleDeadLetters,
		},
		"order with retries beside": {configure: with((&stock.DelayOnError{}).Middleware), opts: []framework.HandlerOption{framework.OrderByKey()}, rule: middleware.RuleOrderOvertaken},
		"dead letters that come back": {more: func(a *framework.App) {
			framework.Handle(a, deadLetterTopic, "two", plain, framework.Group("things.one"))
		}, rule: framework.RuleDeadLetters, handler: "two"},
		"too few metadata entries for a story": {configure: on(func(f *broker.Features) { f.MaxMetadataEntries = 10 }), rule: framework.RuleDeadLetters},
		"too few bytes for a story":            {configure: on(func(f *broker.Features) { f.MaxMessageBytes = 3000 }), rule: framework.RuleDeadLetters},
		"redeliveries without delays":          {configure: on(func(f *broker.Features) { f.Delay = false }), opts: []framework.HandlerOption{framework.Redeliver(time.Second)}, rule: framework.RuleDelay},
		"a redelivery above the largest delay": {configure: on(func(f *broker.Features) { f.MaxDelay = time.Hour }), opts: []framework.HandlerOption{framework.Redeliver(time.Hour)}, rule: framework.RuleDelay},
		"a breaker above the largest delay":    {configure: on(func(f *broker.Features) { f.MaxDelay = time.Minute }), opts: []framework.HandlerOption{framework.Breaker(middleware.BreakerConfig{OpenFor: time.Hour})}, rule: framework.RuleDelay},
		"redeliveries that nobody counts":      {configure: on(func(f *broker.Features) { f.DeliveryCount = false }), opts: []framework.HandlerOption{framework.Redeliver(time.Second)}, rule: framework.RuleUncounted},
		"no margin for restarts that count": {
			configure: on(func(f *broker.Features) { f.CountsReleases = true }),
			opts:      []framework.HandlerOption{framework.MaxDeliveries(4)}, rule: middleware.RuleRedeliveries,
		},
		"redeliveries above the delivery limit": {
			opts: []framework.HandlerOption{framework.Redeliver(time.Second, time.Second, time.Second), framework.MaxDeliveries(3)}, rule: middleware.RuleRedeliveries,
		},
		"events above the largest message": {
			configure: func(c *framework.Config) {
				c.MaxEventBytes = 255 << 10
				on(func(f *broker.Features) { f.MaxMessageBytes = 256 << 10 })(c)
			},
			rule: framework.RulePayload, handler: "-",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var configures []configure
			if c.configure != nil {
				configures = append(configures, c.configure)
			}
			f := setup(t, configures...)
			framework.Handle(f.app, made, "one", plain, c.opts...)
			if c.more != nil {
				c.more(f.app)
			}
			want := map[string]string{"": "one", "-": ""}
			if c.handler != "" && c.handler != "-" {
				want[c.handler] = c.handler
			}
			err := f.app.Validate()
			rules := map[middleware.Rule]string{}
			for _, finding := range framework.FindingsOf(err) {
				require.NotEmpty(t, finding.Found)
				require.NotEmpty(t, finding.Danger)
				require.NotEmpty(t, finding.Fix)
				rules[finding.Rule] = finding.Handler
			}
			require.Contains(t, rules, c.rule, "%v", err)
			require.Equal(t, want[c.handler], rules[c.rule])
			require.EqualError(t, f.app.Run(t.Context()), err.Error(), "Run refuses the same")
		})
	}
}

// What is only near one of those is taken.
func TestSafeSetUpsStart(t *testing.T) {
	t.Parallel()
	f := setup(t, func(c *framework.Config) {
		features := c.Broker.Features()
		features.MaxDelay, features.MaxMessageBytes, features.MaxMetadataEntries = time.Hour, 256<<10, 40
		c.Broker = featured{Broker: c.Broker, features: features}
		c.MaxEventBytes = 250 << 10
		c.Middleware = []message.HandlerMiddleware{stock.Recoverer, func(next message.HandlerFunc) message.HandlerFunc { return next }}
	})
	framework.Handle(f.app, made, "one", plain, framework.Redeliver(time.Minute, 50*time.Minute), framework.OrderByKey(),
		framework.Breaker(middleware.BreakerConfig{}), framework.RateLimit(1000, 10), framework.Timeout(time.Hour))
	framework.HandleTx(f.app, made, "two", write)
	require.NoError(t, f.app.Validate())
	f.start()
}

// blindBroker does not let the service look at its dead letters.
type blindBroker struct{ broker.Broker }

func (b blindBroker) Admin() broker.Admin { return blindAdmin{b.Broker.Admin()} }

type blindAdmin struct{ broker.Admin }

func (a blindAdmin) Depth(context.Context, string) (int64, error) { return 0, errBroken }

// Dead letters that can't be reached are found at the start, not with the first
// message that fails.
func TestUnreachableDeadLettersStopTheStart(t *testing.T) {
	t.Parallel()
	s := frameworktest.New(t)
	f := setupOn(t, s, func(c *framework.Config) { c.Broker = blindBroker{c.Broker} })
	framework.Handle(f.app, made, "one", plain)
	err := f.app.Run(t.Context())
	require.ErrorIs(t, err, errBroken)
	findings := framework.FindingsOf(err)
	require.Len(t, findings, 1)
	require.Equal(t, framework.RuleDeadLetters, findings[0].Rule)
	require.Contains(t, findings[0].Found, "things.one.dlq")
}
