package middleware_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
)

func poison(t testing.TB, cfg middleware.PoisonConfig) message.HandlerMiddleware {
	if cfg.Topic == "" {
		cfg.Topic = "dlq"
	}
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	return must(t)(middleware.Poison(cfg))
}

func fail(err error) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) { return nil, err }
}

// Watermill fault 7: the story is whole, the message itself is left alone and
// nothing that it carried is overwritten.
func TestFault7DeadLetterTellsTheStory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dlq := newSink()
		msg, _ := delivered(newMessage("1"), 3, nil)
		msg.Metadata["tenant"] = "acme"
		msg.Metadata[events.KeyCorrelation] = "c1"
		msg.Metadata[middleware.DeadLetterReason] = "an older reason"
		msg.Metadata[middleware.DeadLetterStack] = "an older panic"
		msg.Metadata[middleware.DeadLetterPreviousPrefix+"reason"] = "the oldest reason"
		msg.Metadata[middleware.DeadLetterPreviousPrefix+"handler"] = "old-handler"
		msg.Metadata[middleware.DeadLetterRedriveCount] = "2"
		before := maps.Clone(msg.Metadata)
		ctx := msg.Context()
		start := time.Now()

		cause := errors.Join(errors.New("gateway said 500"), errBoom)
		layers := middleware.Chain(
			poison(t, middleware.PoisonConfig{Publisher: dlq, Handler: "charge-order", Service: "payments"}),
			retry(t, middleware.RetryConfig{MaxAttempts: 3}),
		)
		_, err := layers(func(*message.Message) ([]*message.Message, error) {
			time.Sleep(time.Second)
			return nil, fmt.Errorf("charge: %w", cause)
		})(msg)
		require.NoError(t, err)

		dead := dlq.only(t)
		require.NotSame(t, msg, dead)
		require.Equal(t, before, msg.Metadata)
		require.Equal(t, ctx, msg.Context())
		require.Equal(t, msg.UUID, dead.UUID)
		require.Equal(t, msg.Payload, dead.Payload)
		md := dead.Metadata
		require.Equal(t, "acme", md["tenant"])
		require.Equal(t, "1", md[events.KeyID])
		require.Equal(t, "order.placed", md[events.KeyType])
		require.Equal(t, "c1", md[events.KeyCorrelation])
		require.Equal(t, "an older reason", md[middleware.DeadLetterPreviousPrefix+"reason"])
		require.Equal(t, "old-handler", md[middleware.DeadLetterPreviousPrefix+"handler"])
		require.Equal(t, "2", md[middleware.DeadLetterRedriveCount])
		require.Equal(t, middleware.ReasonExhausted, md[middleware.DeadLetterReason])
		require.Equal(t, "charge: gateway said 500\nboom", md[middleware.DeadLetterError])
		require.Equal(t, "charge-order", md[middleware.DeadLetterHandler])
		require.Equal(t, "payments.charge-order", md[middleware.DeadLetterGroup])
		require.Equal(t, "payments", md[middleware.DeadLetterService])
		require.Equal(t, "3", md[middleware.DeadLetterAttempts])
		require.Equal(t, "3", md[middleware.DeadLetterDeliveries])
		require.NotContains(t, md, middleware.DeadLetterStack, "the story is not mixed with an older one")
		require.Equal(t, "an older panic", md[middleware.DeadLetterPreviousPrefix+"stack"])
		first, err := time.Parse(time.RFC3339Nano, md[middleware.DeadLetterFirstFailedAt])
		require.NoError(t, err)
		last, err := time.Parse(time.RFC3339Nano, md[middleware.DeadLetterLastFailedAt])
		require.NoError(t, err)
		require.Equal(t, start.Add(time.Second).UTC(), first)
		require.WithinDuration(t, time.Now(), last, 0)
		require.GreaterOrEqual(t, last.Sub(first), 2*time.Second)
		for k, v := range md {
			require.NotEmpty(t, v, k)
		}
		var chain []struct{ Type, Message string }
		require.NoError(t, json.Unmarshal([]byte(md[middleware.DeadLetterErrorChain]), &chain))
		require.Equal(t, "*middleware.ExhaustedError", chain[0].Type)
		var texts []string
		for _, link := range chain {
			texts = append(texts, link.Message)
		}
		require.Subset(t, texts, []string{"gateway said 500", "boom"})
	})
}

func TestPoisonReasons(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		middleware.ReasonDecode:    fmt.Errorf("x: %w", middleware.Permanent(&events.DecodeError{Field: "id"})),
		middleware.ReasonPermanent: middleware.Permanent(middleware.Permanent(errBoom)),
		middleware.ReasonPanic:     &middleware.PanicError{Value: "x", Stack: "s"},
		middleware.ReasonTimeout:   fmt.Errorf("%w: late", middleware.ErrTimeout),
		middleware.ReasonExhausted: errBoom,
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			dlq := newSink()
			_, got := poison(t, middleware.PoisonConfig{Publisher: dlq})(fail(err))(newMessage("1"))
			require.NoError(t, got)
			dead := dlq.only(t)
			require.Equal(t, want, dead.Metadata[middleware.DeadLetterReason])
			require.Equal(t, "1", dead.Metadata[middleware.DeadLetterAttempts])
			require.NotContains(t, dead.Metadata, middleware.DeadLetterDeliveries)
		})
	}
}

// What a failure adds is bounded and fit for any broker.
func TestDeadLetterTextIsBounded(t *testing.T) {
	t.Parallel()
	err := errors.New(strings.Repeat("ä\x00\x07\xff", 100_000))
	for i := range 100 {
		err = fmt.Errorf("layer %d: %w", i, err)
	}
	dlq := newSink()
	_, got := poison(t, middleware.PoisonConfig{Publisher: dlq})(fail(err))(newMessage("1"))
	require.NoError(t, got)
	size := 0
	for k, v := range dlq.only(t).Metadata {
		size += len(v)
		require.True(t, strings.ToValidUTF8(v, "?") == v, k)
		require.Equal(t, -1, strings.IndexFunc(v, func(r rune) bool { return r < 0x20 && r != '\n' && r != '\t' }), k)
	}
	require.Less(t, size, 8<<10)
	require.True(t, json.Valid([]byte(dlq.only(t).Metadata[middleware.DeadLetterErrorChain])))
}

func TestDeadLetterFingerprint(t *testing.T) {
	t.Parallel()
	print := func(handler, text string) string {
		dlq := newSink()
		_, err := poison(t, middleware.PoisonConfig{Publisher: dlq, Handler: handler})(fail(errors.New(text)))(newMessage("1"))
		require.NoError(t, err)
		return dlq.only(t).Metadata[middleware.DeadLetterFingerprint]
	}
	same := print("h", "order 0199c5a0-aaaa refused after 12ms")
	require.Equal(t, same, print("h", "order 0199c5b1-ffff refused after 7ms"))
	require.NotEqual(t, same, print("h", "order 0199c5a0-aaaa accepted after 12ms"))
	require.NotEqual(t, same, print("other", "order 0199c5a0-aaaa refused after 12ms"))
}

// Watermill fault 7, B14: what is no failure is given back and never
// dead-lettered; a skip is acked.
func TestPoisonDispositions(t *testing.T) {
	t.Parallel()
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	lost, lose := context.WithCancelCause(context.Background())
	lose(errors.New("lease lost"))
	drained := make(chan struct{})
	close(drained)
	for name, c := range map[string]struct {
		err      error
		ctx      context.Context
		draining chan struct{}
		dead     bool
		acked    bool
		delay    time.Duration
		delaySet bool
	}{
		"plain":                       {err: errBoom, dead: true, acked: true},
		"skip":                        {err: middleware.Skip(errBoom), acked: true},
		"defer":                       {err: middleware.Defer(errBoom, time.Minute), delay: time.Minute, delaySet: true},
		"defer without a delay":       {err: middleware.Defer(errBoom, 0)},
		"shutting down":               {err: fmt.Errorf("x: %w", middleware.ErrShuttingDown), delaySet: true},
		"context cancelled":           {err: errBoom, ctx: cancelled, delaySet: true},
		"cancelled while draining":    {err: context.Canceled, draining: drained, delaySet: true},
		"cancelled by the handler":    {err: context.Canceled, dead: true, acked: true},
		"failed while draining":       {err: errBoom, draining: drained, dead: true, acked: true},
		"permanent at shutdown":       {err: middleware.Permanent(errBoom), ctx: cancelled, dead: true, acked: true},
		"permanent cancel":            {err: middleware.Permanent(context.Canceled), ctx: cancelled, delaySet: true},
		"permanent after lost lease":  {err: middleware.Permanent(errBoom), ctx: lost, delaySet: true},
		"skip at shutdown":            {err: middleware.Skip(errBoom), ctx: cancelled, acked: true},
		"retry-after, no retry layer": {err: middleware.RetryAfter(errBoom, time.Hour), dead: true, acked: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dlq := newSink()
			msg := newMessage("1")
			if c.ctx != nil {
				msg.SetContext(c.ctx)
			}
			msg, d := delivered(msg, 1, c.draining)
			_, err := poison(t, middleware.PoisonConfig{Publisher: dlq})(fail(c.err))(msg)
			require.Equal(t, c.acked, err == nil, "%v", err)
			require.Equal(t, c.dead, len(dlq.messages()) == 1)
			require.Equal(t, !c.acked, d.Released())
			delay, set := d.NackDelay()
			require.Equal(t, c.delaySet, set)
			require.Equal(t, c.delay, delay)
			if c.dead {
				require.Equal(t, []error{nil}, dlq.ctxErrs, "the copy goes out on a live context")
			}
		})
	}
}

// A stock subscriber redelivers a nacked message at once, so a deferral waits in
// process there, bounded, and not past the message's context.
func TestPoisonDeferralOnStockSubscriber(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want time.Duration
	}{
		"a delay":   {middleware.Defer(errBoom, 3*time.Second), 3 * time.Second},
		"no delay":  {middleware.Defer(errBoom, 0), time.Second},
		"bounded":   {middleware.Defer(errBoom, time.Hour), 30 * time.Second},
		"cancelled": {middleware.Defer(errBoom, time.Hour), 2 * time.Second},
		"shutdown":  {middleware.Defer(middleware.ErrShuttingDown, 0), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if name == "cancelled" {
					time.AfterFunc(c.want, cancel)
				}
				msg := newMessage("1")
				msg.SetContext(ctx)
				start := time.Now()
				_, err := poison(t, middleware.PoisonConfig{Publisher: newSink()})(fail(c.err))(msg)
				require.Error(t, err)
				require.Equal(t, c.want, time.Since(start))
			})
		})
	}
}

// A message that kills the process is dead-lettered without running again; its
// count is what the broker kept.
func TestPoisonMaxDeliveries(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := newMetrics(t, reg)
	for _, c := range []struct{ limit, count, calls int }{
		{0, middleware.DefaultMaxDeliveries, 1},
		{0, middleware.DefaultMaxDeliveries + 1, 0},
		{3, 3, 1},
		{3, 4, 0},
		{-1, 1000, 1},
		{3, 0, 1},
	} {
		dlq, h := newSink(), &failing{}
		msg, _ := delivered(newMessage("1"), c.count, nil)
		_, err := poison(t, middleware.PoisonConfig{
			Publisher: dlq, MaxDeliveries: c.limit, Metrics: m, Handler: "charge-order",
		})(h.handle)(msg)
		require.NoError(t, err)
		require.Equal(t, c.calls, h.count())
		if c.calls == 0 {
			md := dlq.only(t).Metadata
			require.Equal(t, middleware.ReasonDeliveriesExhausted, md[middleware.DeadLetterReason])
			require.Equal(t, fmt.Sprint(c.count), md[middleware.DeadLetterDeliveries])
			require.Equal(t, "0", md[middleware.DeadLetterAttempts])
		}
	}
	require.Equal(t, 2.0, value(t, reg, "headrace_dead_letters_total", "reason", "deliveries_exhausted"))
}

// B06: no ack before a confirmed publish; the nacks are spaced by a delay that
// grows with the outage and not with the number of messages that meet it.
func TestB06DeadLettersUnreachable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		dlq := newSink()
		dlq.set(errors.New("connection refused"))
		run := poison(t, middleware.PoisonConfig{Publisher: dlq, Metrics: newMetrics(t, reg), Handler: "charge-order"})(fail(errBoom))
		again := func() time.Duration {
			msg, d := delivered(newMessage("1"), 1, nil)
			_, err := run(msg)
			require.ErrorIs(t, err, middleware.ErrDeadLetterUnpublished)
			require.ErrorContains(t, err, "connection refused")
			require.ErrorIs(t, err, errBoom)
			require.True(t, d.Released(), "the broker's outage is not the message's fault")
			delay, set := d.NackDelay()
			require.True(t, set)
			return delay
		}
		for range 20 { // all at once: still the first level
			require.LessOrEqual(t, again(), time.Second)
		}
		for level := 1; level <= 8; level++ {
			ceiling := min(time.Second<<(level-1), 30*time.Second)
			delay := again()
			require.LessOrEqual(t, delay, ceiling)
			require.GreaterOrEqual(t, delay, ceiling/2)
			time.Sleep(delay)
		}
		require.Equal(t, 28.0, value(t, reg, "headrace_dead_letter_failures_total"))
		dlq.set(nil)
		msg, _ := delivered(newMessage("1"), 1, nil)
		_, err := run(msg)
		require.NoError(t, err)
		dlq.only(t)
		require.Equal(t, 1.0, value(t, reg, "headrace_dead_letters_total"))
		dlq.set(errors.New("connection refused"))
		require.LessOrEqual(t, again(), time.Second, "the next outage begins anew")
	})
}

// publishFunc is a publisher made of one function.
type publishFunc func(topic string, msgs ...*message.Message) error

func (f publishFunc) Publish(topic string, msgs ...*message.Message) error { return f(topic, msgs...) }
func (publishFunc) Close() error                                           { return nil }

// A publisher that hangs, panics or ends its goroutine is a failed publish.
func TestPoisonBadPublishers(t *testing.T) {
	t.Parallel()
	for name, publish := range map[string]publishFunc{
		"hangs": func(_ string, msgs ...*message.Message) error {
			<-msgs[0].Context().Done()
			time.Sleep(time.Hour)
			return nil
		},
		"panics": func(string, ...*message.Message) error { panic("x") },
		"goexit": func(string, ...*message.Message) error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				msg, _ := delivered(newMessage("1"), 1, nil)
				_, err := poison(t, middleware.PoisonConfig{Publisher: publish})(fail(errBoom))(msg)
				require.ErrorIs(t, err, middleware.ErrDeadLetterUnpublished)
				require.LessOrEqual(t, time.Since(start), middleware.DefaultDeadLetterTimeout)
				time.Sleep(2 * time.Hour) // the hanging publisher's goroutine ends with it
			})
		})
	}
}

// Watermill fault 6, seen from outside: a publish around a Timeout that expired
// has a live context.
func TestFault6PoisonAroundTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dlq := newSink()
		_, err := middleware.Chain(poison(t, middleware.PoisonConfig{Publisher: dlq}), timeout(t, time.Second, nil))(
			func(msg *message.Message) ([]*message.Message, error) {
				<-msg.Context().Done()
				return nil, msg.Context().Err()
			})(newMessage("1"))
		require.NoError(t, err)
		require.Equal(t, []error{nil}, dlq.ctxErrs)
		require.Equal(t, middleware.ReasonTimeout, dlq.only(t).Metadata[middleware.DeadLetterReason])
	})
}

// B21, the middleware's half: one correlation id from the event through what its
// handler emits to the dead letter and the redrive of that; causation is the
// parent's id; the trace goes on.
func TestB21CorrelationThroughDeadLetterAndRedrive(t *testing.T) {
	t.Parallel()
	tp, spans := tracing(t)
	correlate := middleware.Correlate(middleware.CorrelationConfig{TracerProvider: tp})
	in := newMessage("e1") // as the HTTP side put it into the outbox
	in.Metadata[events.KeyCorrelation] = "request-1"
	in.Metadata[events.KeyTraceParent] = traceparent0
	emitted, err := correlate(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{newMessage("e2")}, nil
	})(in)
	require.NoError(t, err)

	dlq := newSink()
	failingChain := middleware.Chain(correlate, poison(t, middleware.PoisonConfig{Publisher: dlq, Handler: "notify"}))
	_, err = failingChain(fail(errBoom))(emitted[0])
	require.NoError(t, err)
	dead := dlq.only(t)
	for k, v := range emitted[0].Metadata {
		require.Equal(t, v, dead.Metadata[k], "%s is kept", k)
	}
	require.Equal(t, "request-1", dead.Metadata[events.KeyCorrelation])
	require.Equal(t, "e1", dead.Metadata[events.KeyCausation])
	require.Equal(t, "notify", dead.Metadata[middleware.DeadLetterHandler])

	redriven := dead.Copy()
	var c middleware.Correlation
	_, err = correlate(func(msg *message.Message) ([]*message.Message, error) {
		c = middleware.CorrelationFrom(msg.Context())
		return nil, nil
	})(redriven)
	require.NoError(t, err)
	require.Equal(t, "request-1", c.CorrelationID)
	require.Equal(t, "e2", c.CausationID)
	ended := spans.Ended()
	require.Len(t, ended, 3)
	for _, span := range ended {
		require.Equal(t, parentTrace, span.SpanContext().TraceID().String())
	}
	require.Equal(t, codes.Error, ended[1].Status().Code, "the span of a dead-lettered message shows it")

	// One that came without ids keeps the id that it was given.
	bare := message.NewMessage("u9", nil)
	_, err = failingChain(fail(errBoom))(bare)
	require.NoError(t, err)
	dead = dlq.messages()[1]
	require.Equal(t, "u9", dead.Metadata[events.KeyCorrelation])
	require.NotEmpty(t, dead.Metadata[events.KeyTraceParent])
	require.Empty(t, bare.Metadata)
}

func TestPoisonValidates(t *testing.T) {
	t.Parallel()
	_, err := middleware.Poison(middleware.PoisonConfig{PublishTimeout: -1, NackDelay: middleware.Backoff{Base: 2, Cap: 1}})
	for _, want := range []string{"Publisher is nil", "Topic is empty", "PublishTimeout is -1", "NackDelay.Cap is 1"} {
		require.ErrorContains(t, err, want)
	}
}

func ExamplePoison() {
	dlq := newSink()
	poison, err := middleware.Poison(middleware.PoisonConfig{
		Publisher: dlq, Topic: "payments.charge-order.dlq", Handler: "charge-order", Logger: quiet,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	h := poison(func(*message.Message) ([]*message.Message, error) {
		return nil, middleware.Permanent(errors.New("unknown currency XXQ"))
	})
	_, err = h(message.NewMessage("event-1", []byte(`{"currency":"XXQ"}`)))
	dead := dlq.messages()[0]
	fmt.Println("acked:", err == nil)
	fmt.Println(dead.UUID, string(dead.Payload))
	fmt.Println(dead.Metadata[middleware.DeadLetterReason], "-", dead.Metadata[middleware.DeadLetterError])
	// Output:
	// acked: true
	// event-1 {"currency":"XXQ"}
	// permanent - unknown currency XXQ
}

// A message that fails again after its replay failed first when it did the first
// time; what only claims so is not believed.
func TestAReplayThatFailsKeepsTheFirstFailure(t *testing.T) {
	t.Parallel()
	const before = "2026-01-02T03:04:05Z"
	for redrives, want := range map[string]bool{"1": true, "": false} {
		dlq := newSink()
		msg, _ := delivered(newMessage("1"), 1, nil)
		msg.Metadata[middleware.DeadLetterFirstFailedAt] = before
		if redrives != "" {
			msg.Metadata[middleware.DeadLetterRedriveCount] = redrives
		}
		_, err := poison(t, middleware.PoisonConfig{Publisher: dlq, Handler: "h"})(func(*message.Message) ([]*message.Message, error) {
			return nil, middleware.Permanent(errBoom)
		})(msg)
		require.NoError(t, err)
		md := dlq.only(t).Metadata
		require.Equal(t, want, md[middleware.DeadLetterFirstFailedAt] == before)
		require.NotEqual(t, before, md[middleware.DeadLetterLastFailedAt])
	}
}
