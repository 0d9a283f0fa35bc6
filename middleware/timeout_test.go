package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/headrace-go/headrace/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func timeout(t testing.TB, d time.Duration, m *middleware.Metrics) message.HandlerMiddleware {
	return must(t)(middleware.Timeout(middleware.TimeoutConfig{Timeout: d, Handler: "charge-order", Metrics: m, Logger: quiet}))
}

// B04 and Watermill fault 6: each attempt has a fresh deadline.
func TestB04FreshDeadlinePerAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		h := middleware.Chain(retry(t, middleware.RetryConfig{MaxAttempts: 3}), timeout(t, time.Second, nil))(
			func(msg *message.Message) ([]*message.Message, error) {
				calls++
				if calls == 1 {
					<-msg.Context().Done()
					return nil, msg.Context().Err()
				}
				left, ok := msg.Context().Deadline()
				require.True(t, ok)
				require.Equal(t, time.Second, time.Until(left))
				return nil, msg.Context().Err()
			})
		_, err := h(newMessage("1"))
		require.NoError(t, err)
		require.Equal(t, 2, calls)
	})
}

// Watermill fault 6: what stands around Timeout gets its own context back.
func TestFault6TimeoutRestoresTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		msg := newMessage("1")
		ctx := context.WithValue(t.Context(), ctxKey{}, "mine")
		msg.SetContext(ctx)
		_, err := timeout(t, time.Second, nil)(func(msg *message.Message) ([]*message.Message, error) {
			require.Equal(t, "mine", msg.Context().Value(ctxKey{}))
			<-msg.Context().Done()
			return nil, msg.Context().Err()
		})(msg)
		require.ErrorIs(t, err, middleware.ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, ctx, msg.Context())
		require.NoError(t, msg.Context().Err())
	})
	synctest.Test(t, func(t *testing.T) { // also when the handler panics
		msg := newMessage("1")
		before := msg.Context()
		_, err := middleware.Chain(middleware.Recover(middleware.RecoverConfig{}), timeout(t, time.Second, nil))(
			func(*message.Message) ([]*message.Message, error) { panic("x") })(msg)
		require.Error(t, err)
		require.Equal(t, before, msg.Context())
	})
}

type ctxKey struct{}

// B04: a handler that ignores its context for 30 s is waited for, counted and
// shown as stuck; attempts of one message never overlap.
func TestB04StuckHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		m := newMetrics(t, reg)
		var running, overlaps, calls atomic.Int32
		h := middleware.Chain(retry(t, middleware.RetryConfig{MaxAttempts: 3}), timeout(t, time.Second, m))(
			func(*message.Message) ([]*message.Message, error) {
				calls.Add(1)
				if running.Add(1) > 1 {
					overlaps.Add(1)
				}
				defer running.Add(-1)
				time.Sleep(30 * time.Second)
				return nil, errBoom
			})
		done := make(chan error, 1)
		go func() {
			_, err := h(newMessage("1"))
			done <- err
		}()
		time.Sleep(900 * time.Millisecond)
		require.Zero(t, value(t, reg, "headrace_handlers_stuck"))
		time.Sleep(time.Second)
		require.Equal(t, 1.0, value(t, reg, "headrace_handlers_stuck"))
		require.Equal(t, 1.0, value(t, reg, "headrace_handler_overruns_total"))
		err := <-done
		require.ErrorIs(t, err, middleware.ErrTimeout)
		require.Equal(t, int32(3), calls.Load())
		require.Zero(t, overlaps.Load())
		require.Zero(t, value(t, reg, "headrace_handlers_stuck"))
		require.Equal(t, 3.0, value(t, reg, "headrace_handler_overruns_total"))
	})
}

// B04: shutdown ends at its bound although a handler is stuck.
func TestB04ShutdownEndsAtItsBound(t *testing.T) {
	t.Parallel()
	pubsub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 200 * time.Millisecond}, watermill.NopLogger{})
	require.NoError(t, err)
	started, release := make(chan struct{}), make(chan struct{})
	router.AddConsumerHandler("stuck", "in", pubsub, func(*message.Message) error {
		close(started)
		<-release
		return nil
	}).AddMiddleware(retry(t, middleware.RetryConfig{}), middleware.Recover(middleware.RecoverConfig{}),
		timeout(t, 10*time.Millisecond, nil))
	ran := make(chan struct{})
	go func() { defer close(ran); _ = router.Run(t.Context()) }()
	await(t, "the router", router.Running())
	require.NoError(t, pubsub.Publish("in", newMessage("1")))
	await(t, "the handler", started)
	start := time.Now()
	require.Error(t, router.Close(), "the router says that it did not wait for the end")
	require.Less(t, time.Since(start), 2*time.Second)
	close(release)
	require.NoError(t, pubsub.Close())
	await(t, "the router's end", ran)
}

func TestTimeoutLateSuccessIsSuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		_, err := timeout(t, time.Second, newMetrics(t, reg))(func(*message.Message) ([]*message.Message, error) {
			time.Sleep(2 * time.Second)
			return nil, nil
		})(newMessage("1"))
		require.NoError(t, err)
		require.Equal(t, 1.0, value(t, reg, "headrace_handler_overruns_total"))
		require.Zero(t, value(t, reg, "headrace_handlers_stuck"))
	})
	_, err := middleware.Timeout(middleware.TimeoutConfig{})
	require.ErrorContains(t, err, "Timeout is 0s")
}

func ExampleTimeout() {
	timeout, err := middleware.Timeout(middleware.TimeoutConfig{Timeout: time.Millisecond, Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	msg := message.NewMessage("1", nil)
	_, err = timeout(func(msg *message.Message) ([]*message.Message, error) {
		<-msg.Context().Done()
		return nil, msg.Context().Err()
	})(msg)
	fmt.Println(err)
	fmt.Println(errors.Is(err, middleware.ErrTimeout), msg.Context().Err())
	// Output:
	// handler timed out after 1ms: context deadline exceeded
	// true <nil>
}
