package framework_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/pkg/events"
)

// featured is a broker that can do only what it says.
type featured struct {
	broker.Broker
	features broker.Features
}

func (b featured) Features() broker.Features { return b.features }

func plain(context.Context, events.Event[thing]) error { return nil }

// Each refusal names the handler, the rule, the danger and the remedy, and all
// of them come at once.
func TestStartUpChecks(t *testing.T) {
	t.Parallel()
	handle := func(name string, opts ...framework.HandlerOption) func(*framework.App) {
		return func(a *framework.App) { framework.Handle(a, made, name, plain, opts...) }
	}
	cases := map[string]struct {
		configure configure
		register  func(*framework.App)
		want      []string
	}{
		"two handlers of one name": {
			register: func(a *framework.App) { handle("one")(a); handle("one")(a) },
			want:     []string{`handler "one"`, "more than once", "half of the messages", "a name of its own"},
		},
		"two handlers of one group": {
			register: func(a *framework.App) { handle("one")(a); handle("two", framework.Group("things.one"))(a) },
			want:     []string{`handler "two"`, `"things.one"`, `handler "one"`, "share the messages"},
		},
		"a name that can't be a group": {
			register: handle("Charge Order"),
			want:     []string{`handler "Charge Order"`, "lower case", "rename it"},
		},
		"a transaction without a database": {
			configure: withoutDB,
			register:  func(a *framework.App) { framework.HandleTx(a, made, "count", write) },
			want:      []string{`handler "count"`, "no database", "commit together", "Config.DB"},
		},
		"a call without a database": {
			configure: withoutDB,
			register:  func(a *framework.App) { framework.HandleCall(a, made, "count", call{}) },
			want:      []string{`handler "count"`, "no database"},
		},
		"NoDedup in a transaction": {
			register: func(a *framework.App) { framework.HandleTx(a, made, "count", write, framework.NoDedup()) },
			want:     []string{`handler "count"`, "NoDedup", "leave NoDedup out"},
		},
		"order on a broker without it": {
			configure: func(c *framework.Config) { c.Broker = featured{Broker: c.Broker} },
			register:  handle("one", framework.OrderByKey()),
			want:      []string{`handler "one"`, "OrderByKey", `broker "memory"`, "overtake", "leave OrderByKey out"},
		},
		"handling longer than a lease that can't be renewed": {
			configure: func(c *framework.Config) {
				c.Broker = featured{Broker: c.Broker, features: broker.Features{FixedLease: true}}
			},
			register: handle("one", framework.Timeout(10*time.Second), framework.MaxAttempts(5)),
			want:     []string{`handler "one"`, "all attempts may take 50.", "the lease is 30s", "another consumer", "raise the lease"},
		},
		"keys forgotten before the last redelivery": {
			register: handle("one", framework.Timeout(24*time.Hour), framework.MaxDeliveries(100)),
			want:     []string{`handler "one"`, "dedup.retention is 720h", "handled again", "raise dedup.retention"},
		},
		"no timeout": {
			register: handle("one", framework.Timeout(0)),
			want:     []string{`handler "one"`, "timeout is 0s", "run for ever", "delivery.handler_timeout"},
		},
		"no attempts": {
			register: handle("one", framework.MaxAttempts(0)),
			want:     []string{`handler "one"`, "0 attempts", "never run"},
		},
		"a negative age": {
			register: handle("one", framework.MaxAge(-time.Hour)),
			want:     []string{`handler "one"`, "MaxAge is -1h", "stale"},
		},
		"a backoff that shrinks": {
			register: handle("one", framework.Backoff(time.Second, time.Millisecond)),
			want:     []string{`handler "one"`, "ackoff"},
		},
		"no function": {
			register: func(a *framework.App) { framework.Handle(a, made, "one", nil) },
			want:     []string{`handler "one"`, "nil"},
		},
		"a type that is no past-tense fact": {
			register: func(a *framework.App) {
				framework.Handle(a, events.Define[thing]("MakeThing", "1.0"), "one", plain)
			},
			want: []string{`handler "one"`, "MakeThing"},
		},
		"an emitted type that is none": {
			register: func(a *framework.App) { a.Emits(events.Define[thing]("thing.made", "one").Descriptor()) },
			want:     []string{"thing.made", `"one"`},
		},
		"two HTTP handlers": {
			register: func(a *framework.App) { a.HTTP(http.NotFoundHandler()); a.HTTP(http.NotFoundHandler()) },
			want:     []string{"App.HTTP", "twice"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var configures []configure
			if c.configure != nil {
				configures = append(configures, c.configure)
			}
			f := setup(t, configures...)
			c.register(f.app)
			f.app.Emits(events.Descriptor{Name: "Bad"})
			err := f.app.Validate()
			for _, want := range append(c.want, "Bad") {
				require.ErrorContains(t, err, want)
			}
			require.EqualError(t, f.app.Run(t.Context()), err.Error(), "Run tells the same and starts nothing")
		})
	}
}

func TestAGoodWiringIsSilent(t *testing.T) {
	t.Parallel()
	f := setup(t)
	framework.HandleTx(f.app, made, "count", write, framework.OrderByKey(), framework.MaxAge(time.Hour))
	framework.Handle(f.app, made, "plain", plain, framework.RateLimit(100, 10), framework.Concurrency(3))
	require.NoError(t, f.app.Validate())

	pipeline := f.app.Pipeline()
	require.Len(t, pipeline, 2)
	require.Equal(t, "things.count", pipeline[0].Group)
	require.Equal(t, "things.count.dlq", pipeline[0].DeadLetterTopic)
	require.True(t, pipeline[0].Ordered)
	names := func(i int) (all []string) {
		for _, l := range pipeline[i].Layers {
			all = append(all, l.Name)
		}
		return all
	}
	require.Subset(t, names(1), []string{"recover", "correlation", "metrics", "poison", "retry", "timeout", "dedup"})
	require.NotContains(t, names(0), "dedup", "the inbox row does it")
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := framework.New(framework.Config{Service: "My Service", Profile: config.Profile{Log: config.Log{Level: "loud"}}})
	require.ErrorContains(t, err, `Config.Service is "My Service"`)
	require.ErrorContains(t, err, "Config.Broker is nil")
	require.ErrorContains(t, err, `log.level is "loud"`)

	f := setup(t)
	_, err = framework.New(framework.Config{Service: "things", Broker: f.Broker(), DB: f.conn.DB})
	require.ErrorContains(t, err, "Config.Dialect")
}
