package framework_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// B19: what is no event goes to the dead letters as it came, at once, and the
// good message after it is handled.
func TestUndecodablePayloadsAreDeadLetteredRaw_B19(t *testing.T) {
	t.Parallel()
	payloads := map[string]string{
		"empty":      "",
		"null":       "null",
		"array":      "[]",
		"truncated":  `{"id":"x","type":"thing.made","sour`,
		"no id":      `{"type":"thing.made","source":"s","timestamp":"2026-01-02T03:04:05Z","version":"1.0","data":{"name":"a"}}`,
		"not json":   "\x00\x01hello",
		"wrong data": `{"id":"x","type":"thing.made","source":"s","timestamp":"2026-01-02T03:04:05Z","version":"1.0","data":{"name":7}}`,
	}
	for _, kind := range []string{"plain", "tx", "call"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			var handled atomic.Int32
			count := func(context.Context, events.Event[thing]) error { handled.Add(1); return nil }
			switch kind {
			case "plain":
				framework.Handle(f.app, made, "strict", count)
			case "tx":
				framework.HandleTx(f.app, made, "strict", write)
			case "call":
				framework.HandleCall(f.app, made, "strict", call{call: func(ctx context.Context, e events.Event[thing]) (string, error) {
					return "", count(ctx, e)
				}, commit: func(context.Context, *sql.Tx, events.Event[thing], string) error { return nil }})
			}
			f.start()
			for name, payload := range payloads {
				m := message.NewMessage("uuid-"+name, []byte(payload))
				m.Metadata.Set("origin", name)
				f.SendRaw(made.Topic(), m)
			}
			f.Publish(made.New("k", thing{Name: "good"}))
			f.Idle()
			dead := f.DeadLetters("things.strict")
			require.Len(t, dead, len(payloads))
			for _, d := range dead {
				name := d.Message.Metadata.Get("origin")
				require.Equal(t, middleware.ReasonDecode, d.Reason, name)
				require.Equal(t, payloads[name], string(d.Message.Payload), name)
				require.Equal(t, "uuid-"+name, d.Message.UUID)
				require.NotEmpty(t, d.Error, name)
				require.NotContains(t, d.Error, "hello", "an error repeats no payload")
			}
			if kind == "tx" {
				require.Equal(t, 1, f.effects())
			} else {
				require.EqualValues(t, 1, handled.Load())
			}
		})
	}
}

func envelope(fields string) []byte {
	return fmt.Appendf(nil, `{"id":"%s","source":"elsewhere",%s}`, events.NewID(), fields)
}

// B45: additive is accepted, incompatible is dead-lettered with a reason, and
// only the message itself is affected.
func TestSchemaChanges_B45(t *testing.T) {
	t.Parallel()
	const base = `"type":"thing.made","version":"1.0","timestamp":"2026-01-02T03:04:05Z","data":{"name":"a"}`
	cases := map[string]struct {
		fields  string
		refused string
		time    string
	}{
		"as it is":                 {fields: base, time: "2026-01-02T03:04:05Z"},
		"extra fields":             {fields: strings.Replace(base, `{"name"`, `{"colour":"red","name"`, 1) + `,"future":true`, time: "2026-01-02T03:04:05Z"},
		"a newer minor version":    {fields: strings.Replace(base, `"1.0"`, `"1.7"`, 1), time: "2026-01-02T03:04:05Z"},
		"fractions of a second":    {fields: strings.Replace(base, "05Z", "06.8Z", 1), time: "2026-01-02T03:04:06.8Z"},
		"an offset":                {fields: strings.Replace(base, "05Z", "05+05:30", 1), time: "2026-01-01T21:34:05Z"},
		"a missing required field": {fields: strings.Replace(base, `"name":"a"`, ``, 1), refused: "name"},
		"another major version":    {fields: strings.Replace(base, `"1.0"`, `"2.0"`, 1), refused: "version"},
		"a version that is none":   {fields: strings.Replace(base, `"1.0"`, `"latest"`, 1), refused: "version"},
		"an unknown type":          {fields: strings.Replace(base, "thing.made", "thing.melted", 1), refused: "thing.melted"},
		"a time that is none":      {fields: strings.Replace(base, "2026-01-02T03:04:05Z", "yesterday", 1), refused: "yesterday"},
		"a time as seconds":        {fields: strings.Replace(base, `"2026-01-02T03:04:05Z"`, "1767323045", 1), refused: "timestamp"},
	}
	f := setup(t)
	got := make(chan events.Event[thing], len(cases))
	framework.Handle(f.app, made, "read", func(_ context.Context, e events.Event[thing]) error {
		got <- e
		return nil
	})
	f.start()
	wantTimes := map[string]int{}
	refused := map[string]string{}
	for name, c := range cases {
		m := message.NewMessage("u-"+name, envelope(c.fields))
		m.Metadata.Set("case", name)
		f.SendRaw(made.Topic(), m)
		if c.refused == "" {
			wantTimes[c.time]++
		} else {
			refused[name] = c.refused
		}
	}
	f.Idle()
	close(got)
	times := map[string]int{}
	for e := range got {
		times[e.Timestamp.Format(time.RFC3339Nano)]++
		require.Equal(t, "a", e.Data.Name)
	}
	require.Equal(t, wantTimes, times)
	dead := f.DeadLetters("things.read")
	require.Len(t, dead, len(refused))
	for _, d := range dead {
		name := d.Message.Metadata.Get("case")
		require.Equal(t, middleware.ReasonDecode, d.Reason, name)
		require.Contains(t, d.Error, refused[name], name)
	}
}

// Several types on one topic: each handler takes its own, the others of the
// service are acked and counted, and what nobody knows is dead-lettered (B45).
func TestTypesThatShareATopic_B45(t *testing.T) {
	t.Parallel()
	one := events.Define[thing]("box.opened", "1.0", events.Topic("boxes"))
	two := events.Define[thing]("box.closed", "1.0", events.Topic("boxes"))
	newer := events.Define[thing]("box.opened", "2.0", events.Topic("boxes"))
	stranger := events.Define[thing]("box.burned", "1.0", events.Topic("boxes"))
	f := setup(t)
	var ones, twos, newers atomic.Int32
	counter := func(n *atomic.Int32) func(context.Context, events.Event[thing]) error {
		return func(context.Context, events.Event[thing]) error { n.Add(1); return nil }
	}
	framework.Handle(f.app, one, "one", counter(&ones))
	framework.Handle(f.app, two, "two", counter(&twos))
	framework.Handle(f.app, newer, "newer", counter(&newers))
	f.start()
	f.Publish(one.New("k", thing{Name: "a"}), two.New("k", thing{Name: "a"}), two.New("k", thing{Name: "b"}), newer.New("k", thing{Name: "a"}), stranger.New("k", thing{Name: "a"}))
	f.Idle()
	require.EqualValues(t, 1, ones.Load())
	require.EqualValues(t, 2, twos.Load())
	require.EqualValues(t, 1, newers.Load())
	for _, handler := range []string{"one", "two", "newer"} {
		dead := f.DeadLetters("things." + handler)
		require.Len(t, dead, 1, handler)
		require.Contains(t, dead[0].Error, "box.burned")
	}
	require.InDelta(t, 3, f.metric("headrace_skipped_total", map[string]string{"handler": "one", "reason": "filtered"}), 0)
}

// A known type on a topic that is not its own was published to the wrong place:
// it is kept, not skipped (B45).
func TestAKnownTypeOnTheWrongTopic_B45(t *testing.T) {
	t.Parallel()
	melted := events.Define[thing]("thing.melted", "1.0")
	boxed := events.Define[thing]("thing.boxed", "1.0", events.Topic("boxes"))
	f := setup(t)
	handled := make(chan string, 4)
	note := func(_ context.Context, e events.Event[thing]) error { handled <- e.Type; return nil }
	framework.Handle(f.app, made, "make", note)
	framework.Handle(f.app, melted, "melt", note)
	framework.Handle(f.app, boxed, "box", note)
	f.start()
	const rest = `"version":"1.0","timestamp":"2026-01-02T03:04:05Z","data":{"name":"a"}`
	f.SendRaw(made.Topic(), message.NewMessage("u1", envelope(`"type":"thing.melted",`+rest)))
	f.SendRaw(boxed.Topic(), message.NewMessage("u2", envelope(`"type":"thing.made",`+rest)))
	f.Publish(boxed.New("k", thing{Name: "a"}))
	f.Idle()
	require.Equal(t, "thing.boxed", await(t, handled, "the one in its place"))
	require.Empty(t, handled)
	for group, names := range map[string][]string{
		"things.make": {"thing.melted 1.0", `"thing.made"`, `belongs on topic "thing.melted"`},
		"things.box":  {"thing.made 1.0", `"boxes"`, `belongs on topic "thing.made"`},
	} {
		dead := f.DeadLetters(group)
		require.Len(t, dead, 1, group)
		require.Equal(t, middleware.ReasonDecode, dead[0].Reason, group)
		for _, name := range names {
			require.Contains(t, dead[0].Error, name, group)
		}
	}
	_, skipped := f.series("headrace_skipped_total", map[string]string{"reason": "filtered"})
	require.False(t, skipped)
}

// Another major version on the type's own topic is skipped by the handlers of the
// first only where the service has a handler that takes it (B45).
func TestAnotherMajorVersionOnTheTypesOwnTopic_B45(t *testing.T) {
	t.Parallel()
	newer := events.Define[thing]("thing.made", "2.0")
	for name, taken := range map[string]bool{"known": false, "taken": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			var ones, twos atomic.Int32
			framework.Handle(f.app, made, "one", func(context.Context, events.Event[thing]) error { ones.Add(1); return nil })
			if taken {
				framework.Handle(f.app, newer, "two", func(context.Context, events.Event[thing]) error { twos.Add(1); return nil })
			} else {
				f.app.Emits(newer.Descriptor())
			}
			f.start()
			f.Publish(newer.New("k", thing{Name: "a"}))
			f.Idle()
			require.Zero(t, ones.Load())
			dead := f.DeadLetters("things.one")
			if taken {
				require.EqualValues(t, 1, twos.Load())
				require.Empty(t, dead)
				require.InDelta(t, 1, f.metric("headrace_skipped_total", map[string]string{"handler": "one", "reason": "filtered"}), 0)
				return
			}
			require.Len(t, dead, 1)
			require.Equal(t, middleware.ReasonDecode, dead[0].Reason)
			require.Contains(t, dead[0].Error, `thing.made 2.0 on topic "thing.made"`)
		})
	}
}

func TestStaleEventsAreSkippedAndCounted(t *testing.T) {
	t.Parallel()
	f := setup(t)
	got := make(chan string, 4)
	framework.Handle(f.app, made, "fresh-only", func(_ context.Context, e events.Event[thing]) error {
		got <- e.Data.Name
		return nil
	}, framework.MaxAge(time.Hour))
	f.start()
	f.Publish(
		made.New("k", thing{Name: "old"}, events.At(time.Now().Add(-2*time.Hour))),
		made.New("k", thing{Name: "new"}, events.At(time.Now().Add(-time.Minute))),
	)
	f.Idle()
	require.Equal(t, "new", await(t, got, "the fresh event"))
	require.Empty(t, got)
	require.Empty(t, f.DeadLetters("things.fresh-only"))
	require.InDelta(t, 1, f.metric("headrace_skipped_total", map[string]string{"reason": "stale"}), 0)
}

// A broker entry that is no message at all goes to the dead letters in the same
// record (B19).
func TestMalformedEntriesKeepTheRecord_B19(t *testing.T) {
	t.Parallel()
	s := frameworktest.New(t)
	b := &malformedBroker{Broker: s.Broker(), handed: make(chan func(context.Context, *message.Message, error) error, 2)}
	f := setupOn(t, s, func(c *framework.Config) { c.Broker = b })
	framework.HandleTx(f.app, made, "count", write)
	f.start()
	onMalformed := await(t, b.handed, "the subscriber")
	raw := message.NewMessage("1-0", []byte("\xff\x00raw"))
	require.NoError(t, onMalformed(t.Context(), raw, errBroken))
	dead := f.AwaitDeadLetter("things.count", nil)
	require.Equal(t, middleware.ReasonMalformed, dead.Reason)
	require.Equal(t, "\xff\x00raw", string(dead.Message.Payload))
	require.Contains(t, dead.Error, "broken")
	for _, key := range []string{middleware.DeadLetterHandler, middleware.DeadLetterGroup, middleware.DeadLetterService, middleware.DeadLetterFirstFailedAt, middleware.DeadLetterFingerprint} {
		require.NotEmpty(t, dead.Message.Metadata.Get(key), key)
	}
	require.InDelta(t, 1, f.metric("headrace_malformed_total", map[string]string{"handler": "count"}), 0)
}

// malformedBroker hands the test what a subscriber would call.
type malformedBroker struct {
	broker.Broker
	handed chan func(context.Context, *message.Message, error) error
}

func (b *malformedBroker) Subscriber(cfg broker.SubscriberConfig) (message.Subscriber, error) {
	b.handed <- cfg.OnMalformed
	return b.Broker.Subscriber(cfg)
}

// metric returns the sum of a counter's or gauge's series with those labels.
func (f *fixture) metric(name string, labels map[string]string) float64 {
	f.t.Helper()
	sum, found := f.series(name, labels)
	require.True(f.t, found, "no series of %s with %v", name, labels)
	return sum
}

// series is metric for a series that need not be there yet.
func (f *fixture) series(name string, labels map[string]string) (sum float64, found bool) {
	families, err := f.app.Metrics().Gather()
	if err != nil {
		f.t.Errorf("gather: %v", err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
	series:
		for _, m := range family.GetMetric() {
			for want, value := range labels {
				has := false
				for _, l := range m.GetLabel() {
					has = has || l.GetName() == want && l.GetValue() == value
				}
				if !has {
					continue series
				}
			}
			found = true
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum, found
}

// B49: invented types and ids make no new series.
func TestSeriesDoNotGrowWithTheInput_B49(t *testing.T) {
	t.Parallel()
	f := setup(t)
	framework.Handle(f.app, made, "read", func(_ context.Context, e events.Event[thing]) error {
		return framework.Permanent(fmt.Errorf("text %s", e.ID))
	})
	f.start()
	send := func(from, to int) {
		for i := from; i < to; i++ {
			f.Publish(made.New(fmt.Sprint(i), thing{Name: "a"}))
			f.SendRaw(made.Topic(), message.NewMessage(fmt.Sprint(i), envelope(fmt.Sprintf(`"type":"invented.t%d_made","version":"1.0","timestamp":"2026-01-02T03:04:05Z","data":{}`, i))))
		}
		f.Idle()
	}
	send(0, 5)
	before, err := testutil.GatherAndCount(f.app.Metrics())
	require.NoError(t, err)
	send(5, 200)
	after, err := testutil.GatherAndCount(f.app.Metrics())
	require.NoError(t, err)
	require.Equal(t, before, after)
}
