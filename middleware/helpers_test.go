package middleware_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errBoom = errors.New("boom")
	quiet   = slog.New(slog.NewTextHandler(io.Discard, nil))
)

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// newMessage is an event as a publisher would send it.
func newMessage(id string) *message.Message {
	msg := message.NewMessage("uuid-"+id, []byte(`{"n":1}`))
	msg.Metadata[events.KeyID] = id
	msg.Metadata[events.KeyType] = "order.placed"
	return msg
}

// delivered puts a Delivery into msg's context.
func delivered(msg *message.Message, count int, draining <-chan struct{}) (*message.Message, *middleware.Delivery) {
	d := middleware.NewDelivery("payments.charge-order", count, draining)
	msg.SetContext(middleware.WithDelivery(msg.Context(), d))
	return msg, d
}

// failing returns err for the first n calls, or for all when n is negative.
type failing struct {
	mu    sync.Mutex
	n     int
	err   error
	calls int
}

func (f *failing) handle(*message.Message) ([]*message.Message, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.n < 0 || f.calls <= f.n {
		return nil, f.err
	}
	return nil, nil
}

func (f *failing) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// sink is a publisher that keeps what it is given. While down it refuses.
type sink struct {
	mu       sync.Mutex
	down     error
	attempts []time.Time
	got      []*message.Message
	ctxErrs  []error
	arrived  chan struct{}
}

func newSink() *sink { return &sink{arrived: make(chan struct{}, 1000)} }

func (s *sink) Publish(_ string, msgs ...*message.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts = append(s.attempts, time.Now())
	for _, m := range msgs {
		s.ctxErrs = append(s.ctxErrs, m.Context().Err())
	}
	if s.down != nil {
		return s.down
	}
	for _, m := range msgs {
		s.got = append(s.got, m)
		s.arrived <- struct{}{}
	}
	return nil
}

func (s *sink) Close() error { return nil }

func (s *sink) set(down error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

func (s *sink) messages() []*message.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*message.Message(nil), s.got...)
}

func (s *sink) tries() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.attempts...)
}

// only returns the sink's single message.
func (s *sink) only(t testing.TB) *message.Message {
	t.Helper()
	got := s.messages()
	require.Len(t, got, 1)
	return got[0]
}

func await(t testing.TB, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		require.FailNow(t, "timed out waiting for "+what)
	}
}

// bench is a running bare router over an in-memory Pub/Sub.
type bench struct {
	pubsub *gochannel.GoChannel
	router *message.Router
}

// startRouter runs one handler on topic "in" of a stock router, its produced
// messages going to out (nil: none are allowed).
func startRouter(t testing.TB, sub message.Subscriber, out message.Publisher, h message.HandlerFunc, layers ...message.HandlerMiddleware) bench {
	t.Helper()
	pubsub := newGoChannel()
	if sub == nil {
		sub = pubsub
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 2 * time.Second}, watermill.NopLogger{})
	require.NoError(t, err)
	if out == nil {
		router.AddConsumerHandler("charge-order", "in", sub, func(msg *message.Message) error {
			produced, err := h(msg)
			if len(produced) > 0 {
				return errors.New("unexpected messages produced")
			}
			return err
		}).AddMiddleware(layers...)
	} else {
		router.AddHandler("charge-order", "in", sub, "out", out, h).AddMiddleware(layers...)
	}
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		_ = router.Run(context.Background())
	}()
	t.Cleanup(func() {
		_ = router.Close()
		_ = pubsub.Close()
		<-ran
	})
	await(t, "the router", router.Running())
	return bench{pubsub: pubsub, router: router}
}

func newGoChannel() *gochannel.GoChannel {
	return gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 100}, watermill.NopLogger{})
}

func (b bench) publish(t testing.TB, msgs ...*message.Message) {
	t.Helper()
	require.NoError(t, b.pubsub.Publish("in", msgs...))
}

// must unwraps a constructor's result.
func must(t testing.TB) func(message.HandlerMiddleware, error) message.HandlerMiddleware {
	return func(mw message.HandlerMiddleware, err error) message.HandlerMiddleware {
		t.Helper()
		require.NoError(t, err)
		return mw
	}
}

// counter is a handler that announces its calls.
type counter struct {
	mu    sync.Mutex
	seen  map[string]int
	calls chan string
}

func newCounter() *counter { return &counter{seen: map[string]int{}, calls: make(chan string, 1000)} }

func (c *counter) note(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[id]++
	c.calls <- id
	return c.seen[id]
}

func (c *counter) of(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[id]
}
