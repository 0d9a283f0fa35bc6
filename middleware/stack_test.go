package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

// stackOver is the whole order around one handler, with short delays.
func stackOver(t testing.TB, dlq message.Publisher, change func(*middleware.StackConfig)) *middleware.Stack {
	t.Helper()
	cfg := middleware.StackConfig{
		Handler: "charge-order", Group: "payments.charge-order", Service: "payments", Logger: quiet,
		Poison: middleware.PoisonConfig{
			Publisher: dlq, Topic: "dlq",
			NackDelay: middleware.Backoff{Base: 20 * time.Millisecond, Cap: 40 * time.Millisecond},
		},
		Retry:   middleware.RetryConfig{MaxAttempts: 3, Backoff: middleware.Backoff{Base: time.Millisecond, Cap: 2 * time.Millisecond}},
		Timeout: time.Minute,
		Dedup:   &middleware.DedupConfig{Store: middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})},
	}
	if change != nil {
		change(&cfg)
	}
	stack, err := middleware.NewStack(cfg)
	require.NoError(t, err)
	return stack
}

// deliveries decorates a stock subscriber so that its messages carry a Delivery
// and what became of them can be awaited.
type deliveries struct {
	message.Subscriber
	draining chan struct{}
	mu       sync.Mutex
	settled  map[string][]string // uuid → "ack" or "nack"
	each     chan string
	dropAcks int
}

func newDeliveries(sub message.Subscriber) *deliveries {
	return &deliveries{
		Subscriber: sub, draining: make(chan struct{}), settled: map[string][]string{},
		each: make(chan string, 1000),
	}
}

func (d *deliveries) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := d.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		counts := map[string]int{}
		for msg := range in {
			counts[msg.UUID]++
			d.hand(ctx, out, msg, counts[msg.UUID])
		}
	}()
	return out, nil
}

// hand gives one message out with a context that outlives the subscription, and
// settles it as its handler did.
func (d *deliveries) hand(ctx context.Context, out chan<- *message.Message, msg *message.Message, count int) {
	handed := msg.Copy()
	delivery := middleware.NewDelivery("payments.charge-order", count, d.draining)
	handed.SetContext(middleware.WithDelivery(context.WithoutCancel(ctx), delivery))
	select {
	case out <- handed:
	case <-ctx.Done():
		msg.Nack()
		return
	}
	go func() {
		select {
		case <-handed.Acked():
			d.note(msg.UUID, "ack")
			if d.lose() {
				msg.Nack()
				return
			}
			msg.Ack()
		case <-handed.Nacked():
			d.note(msg.UUID, "nack")
			if delay, set := delivery.NackDelay(); set && delay > 0 {
				select {
				case <-time.After(delay):
				case <-ctx.Done():
				}
			}
			msg.Nack()
		}
	}()
}

func (d *deliveries) lose() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropAcks--
	return d.dropAcks >= 0
}

func (d *deliveries) note(uuid, how string) {
	d.mu.Lock()
	d.settled[uuid] = append(d.settled[uuid], how)
	d.mu.Unlock()
	d.each <- uuid + " " + how
}

func (d *deliveries) of(uuid string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.settled[uuid]...)
}

func (d *deliveries) await(t testing.TB, want string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case got := <-d.each:
			if got == want {
				return
			}
		case <-deadline:
			require.FailNow(t, "timed out waiting for "+want)
		}
	}
}

func stackRouter(t testing.TB, d *deliveries, stack *middleware.Stack, h message.HandlerFunc) bench {
	t.Helper()
	return startRouter(t, d, nil, h, stack.Middleware)
}

func gochannelDeliveries(t testing.TB) (*deliveries, func(msgs ...*message.Message)) {
	t.Helper()
	pubsub := newGoChannel()
	t.Cleanup(func() { _ = pubsub.Close() })
	return newDeliveries(pubsub), func(msgs ...*message.Message) {
		require.NoError(t, pubsub.Publish("in", msgs...))
	}
}

func TestStackRetryThenPoison(t *testing.T) {
	t.Parallel()
	dlq, calls := newSink(), newCounter()
	d, publish := gochannelDeliveries(t)
	var inside middleware.Correlation
	stackRouter(t, d, stackOver(t, dlq, nil), func(msg *message.Message) ([]*message.Message, error) {
		inside = middleware.CorrelationFrom(msg.Context())
		if n := calls.note(msg.UUID); msg.UUID == "uuid-flaky" && n == 3 {
			return nil, nil
		}
		return nil, fmt.Errorf("attempt %d: %w", middleware.AttemptFrom(msg.Context()), errBoom)
	})
	publish(newMessage("flaky"))
	d.await(t, "uuid-flaky ack")
	require.Equal(t, 3, calls.of("uuid-flaky"))
	require.Empty(t, dlq.messages())
	require.Equal(t, "flaky", inside.EventID)

	publish(newMessage("bad"))
	d.await(t, "uuid-bad ack")
	require.Equal(t, 3, calls.of("uuid-bad"))
	require.Equal(t, []string{"ack"}, d.of("uuid-bad"))
	md := dlq.only(t).Metadata
	require.Equal(t, "attempt 3: boom", md[middleware.DeadLetterError])
	require.Equal(t, "3", md[middleware.DeadLetterAttempts])
	require.Equal(t, "1", md[middleware.DeadLetterDeliveries])
	require.Equal(t, "in", md[middleware.DeadLetterTopic])
	require.Equal(t, "bad", md[events.KeyCorrelation])
}

// B14, the middleware's half: a shutdown in the middle of a backoff gives the
// message back at once; it is neither acked nor dead-lettered.
func TestB14ShutdownDuringBackoff(t *testing.T) {
	t.Parallel()
	dlq, calls := newSink(), newCounter()
	d, publish := gochannelDeliveries(t)
	stackRouter(t, d, stackOver(t, dlq, func(c *middleware.StackConfig) {
		c.Poison.MaxDeliveries = -1 // the stock subscriber redelivers at once and counts
	}), func(msg *message.Message) ([]*message.Message, error) {
		calls.note(msg.UUID)
		return nil, middleware.RetryAfter(errBoom, time.Hour)
	})
	publish(newMessage("1"))
	<-calls.calls
	start := time.Now()
	close(d.draining)
	d.await(t, "uuid-1 nack")
	require.Less(t, time.Since(start), patience)
	require.Empty(t, dlq.tries())
	require.NotContains(t, d.of("uuid-1"), "ack")
}

// B14: the same on a stock subscriber, whose context is cancelled by the
// router's close.
func TestB14ShutdownOnStockRouter(t *testing.T) {
	t.Parallel()
	dlq, calls := newSink(), newCounter()
	b := startRouter(t, nil, nil, func(msg *message.Message) ([]*message.Message, error) {
		calls.note(msg.UUID)
		return nil, middleware.RetryAfter(errBoom, time.Hour)
	}, stackOver(t, dlq, nil).Middleware)
	b.publish(t, newMessage("1"))
	<-calls.calls
	start := time.Now()
	require.NoError(t, b.router.Close())
	require.Less(t, time.Since(start), time.Second)
	require.Empty(t, dlq.tries())
}

// B06 over the whole stack, on Headrace's deliveries and on a stock subscriber:
// no ack before the dead letter is confirmed, spaced attempts, one copy.
func TestB06StackDeadLettersBack(t *testing.T) {
	t.Parallel()
	for _, stock := range []bool{false, true} {
		t.Run(fmt.Sprintf("stock %v", stock), func(t *testing.T) {
			t.Parallel()
			dlq := newSink()
			dlq.set(errors.New("connection refused"))
			d, publish := gochannelDeliveries(t)
			var sub message.Subscriber = d
			if stock {
				sub = d.Subscriber
			}
			startRouter(t, sub, nil, fail(errBoom), stackOver(t, dlq, nil).Middleware)
			publish(newMessage("1"))
			require.Eventually(t, func() bool { return len(dlq.tries()) >= 5 }, patience, time.Millisecond)
			require.NotContains(t, d.of("uuid-1"), "ack")
			dlq.set(nil)
			await(t, "the dead letter", dlq.arrived)
			tries := dlq.tries()
			for i := 1; i < len(tries); i++ {
				require.GreaterOrEqual(t, tries[i].Sub(tries[i-1]), 10*time.Millisecond)
			}
			if !stock {
				d.await(t, "uuid-1 ack")
				settled := d.of("uuid-1")
				require.NotContains(t, settled[:len(settled)-1], "ack")
				require.Equal(t, "ack", settled[len(settled)-1])
			}
			dlq.only(t)
		})
	}
}

// B13 over the whole stack: a failed attempt each, then the dead letters.
func TestB13Stack(t *testing.T) {
	t.Parallel()
	dlq, calls := newSink(), newCounter()
	d, publish := gochannelDeliveries(t)
	stackRouter(t, d, stackOver(t, dlq, nil), func(msg *message.Message) ([]*message.Message, error) {
		calls.note(msg.UUID)
		switch msg.UUID {
		case "uuid-panic":
			panic("x")
		case "uuid-goexit":
			runtime.Goexit()
		}
		return nil, nil
	})
	for _, id := range []string{"panic", "goexit"} {
		publish(newMessage(id))
		d.await(t, "uuid-"+id+" ack")
		require.Equal(t, 3, calls.of("uuid-"+id))
		dead := dlq.messages()[len(dlq.messages())-1]
		require.Equal(t, "uuid-"+id, dead.UUID)
		require.Equal(t, middleware.ReasonPanic, dead.Metadata[middleware.DeadLetterReason])
		require.Contains(t, dead.Metadata[middleware.DeadLetterStack], "stack_test.go")
	}
	publish(newMessage("good"))
	d.await(t, "uuid-good ack")
	require.Equal(t, 1, calls.of("uuid-good"))
}

// B02 over the whole stack: the ack is lost after a success, so the message
// comes again; it is acked without running.
func TestB02StackLostAck(t *testing.T) {
	t.Parallel()
	dlq, calls := newSink(), newCounter()
	d, publish := gochannelDeliveries(t)
	d.dropAcks = 2
	stackRouter(t, d, stackOver(t, dlq, nil), func(msg *message.Message) ([]*message.Message, error) {
		calls.note(msg.UUID)
		return nil, nil
	})
	publish(newMessage("1"))
	for range 3 {
		d.await(t, "uuid-1 ack")
	}
	require.Equal(t, 1, calls.of("uuid-1"))
	require.Empty(t, dlq.messages())
}

// B19, the middleware's half: what can't be decoded is dead-lettered as raw
// bytes, marked as a decode failure, after one attempt; the good message is
// handled.
func TestB19DecodeFailures(t *testing.T) {
	t.Parallel()
	dlq, calls := newSink(), newCounter()
	d, publish := gochannelDeliveries(t)
	stackRouter(t, d, stackOver(t, dlq, nil), func(msg *message.Message) ([]*message.Message, error) {
		calls.note(msg.UUID)
		if _, err := events.Decode(msg.Payload); err != nil {
			return nil, middleware.Permanent(err)
		}
		return nil, nil
	})
	good := `{"id":"0199c5a0-0000-7000-8000-000000000001","source":"orders","type":"order.placed",` +
		`"timestamp":"2026-01-02T03:04:05Z","version":"1.0","data":{},"metadata":{}}`
	bad := []string{"", "null", "[]", good[:40], strings.Replace(good, `"id"`, `"di"`, 1)}
	for i, payload := range bad {
		id := fmt.Sprint("bad-", i)
		publish(message.NewMessage(id, []byte(payload)))
		d.await(t, id+" ack")
		require.Equal(t, 1, calls.of(id))
		dead := dlq.messages()[i]
		require.Equal(t, payload, string(dead.Payload))
		require.Equal(t, id, dead.UUID)
		require.Equal(t, middleware.ReasonDecode, dead.Metadata[middleware.DeadLetterReason])
	}
	publish(message.NewMessage("good", []byte(good)))
	d.await(t, "good ack")
	require.Len(t, dlq.messages(), len(bad))
}

func TestStackLayers(t *testing.T) {
	t.Parallel()
	stack := stackOver(t, newSink(), func(c *middleware.StackConfig) {
		c.Metrics = newMetrics(t, nil)
		c.Breaker = &middleware.BreakerConfig{Name: "gateway"}
		c.RateLimit = &middleware.RateLimitConfig{Limiter: rate.NewLimiter(5, 2)}
		c.User = []message.HandlerMiddleware{nil, middleware.Chain()}
		c.Retry.MaxElapsed = time.Hour
	})
	var got []string
	for _, l := range stack.Layers() {
		got = append(got, strings.TrimSpace(l.Name+" "+l.Detail))
	}
	require.Equal(t, []string{
		"recover",
		"correlation",
		"metrics",
		"poison to dlq, at most 10 deliveries",
		"retry 3 attempts, backoff 1ms to 2ms, none begins after 1h0m0s",
		"recover each attempt",
		"rate limit 5 a second, burst 2",
		"timeout 1m0s",
		"breaker gateway: opens for 30s after 5 failures in a row",
		"user",
		"dedup lease 1m0s, keys kept 168h0m0s",
	}, got)
	_, err := stack.Middleware(succeed)(newMessage("1"))
	require.NoError(t, err)
}

func TestStackReportsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := middleware.NewStack(middleware.StackConfig{
		Timeout:   -1,
		Retry:     middleware.RetryConfig{MaxAttempts: -1},
		Breaker:   &middleware.BreakerConfig{Failures: -1},
		RateLimit: &middleware.RateLimitConfig{},
		Dedup:     &middleware.DedupConfig{},
	})
	for _, want := range []string{
		"Stack.Handler is empty", "Stack.Timeout is -1", "Poison.Publisher is nil", "Poison.Topic is empty",
		"Retry.MaxAttempts is -1", "Breaker.Failures is -1", "RateLimit.Limiter is nil", "Dedup.Store is nil",
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestChain(t *testing.T) {
	t.Parallel()
	var got []string
	layer := func(name string) message.HandlerMiddleware {
		return func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				got = append(got, name)
				return next(msg)
			}
		}
	}
	_, err := middleware.Chain(layer("a"), nil, layer("b"))(succeed)(newMessage("1"))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, got)
}

func ExampleNewStack() {
	stack, err := middleware.NewStack(middleware.StackConfig{
		Handler: "charge-order",
		Poison:  middleware.PoisonConfig{Publisher: newSink(), Topic: "payments.charge-order.dlq"},
		Timeout: 10 * time.Second,
		Dedup:   &middleware.DedupConfig{Store: middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, layer := range stack.Layers() {
		fmt.Println(layer.Name)
	}
	// router.AddConsumerHandler(...).AddMiddleware(stack.Middleware)

	// Output:
	// recover
	// correlation
	// poison
	// retry
	// recover
	// timeout
	// dedup
}

func ExampleChain() {
	h := middleware.Chain(
		middleware.Recover(middleware.RecoverConfig{}),
		middleware.Correlate(middleware.CorrelationConfig{}),
	)(func(msg *message.Message) ([]*message.Message, error) {
		fmt.Println(middleware.CorrelationFrom(msg.Context()).CorrelationID)
		return nil, nil
	})
	_, _ = h(message.NewMessage("event-1", nil))
	// Output: event-1
}
