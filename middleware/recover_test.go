package middleware_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/middleware"
	"github.com/stretchr/testify/require"
)

// crashes are the ways for a handler to end without returning.
var crashes = map[string]struct {
	crash func()
	text  string
}{
	"panic":         {func() { panic("x") }, "panic: x"},
	"panic error":   {func() { panic(errBoom) }, "panic: boom"},
	"panic nil":     {func() { panic(nil) }, "PanicNilError"}, //nolint:govet // the case is about it
	"goexit":        {func() { runtime.Goexit() }, "runtime.Goexit"},
	"nil map write": {func() { var m map[string]int; m["a"] = 1 }, "nil map"}, //nolint:staticcheck // the case is about it
}

func TestRecoverMakesErrors(t *testing.T) {
	t.Parallel()
	for name, c := range crashes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := middleware.Recover(middleware.RecoverConfig{})(func(*message.Message) ([]*message.Message, error) {
				c.crash()
				return nil, nil
			})
			produced, err := h(newMessage("1"))
			var p *middleware.PanicError
			require.ErrorAs(t, err, &p)
			require.Nil(t, produced)
			require.Equal(t, name == "goexit", p.Goexit)
			require.Contains(t, p.Stack, "recover_test.go", "the stack shows who panicked")
			require.Contains(t, fmt.Sprintf("%v %T", err, p.Value), c.text)
		})
	}
	t.Run("returns what the handler returned", func(t *testing.T) {
		t.Parallel()
		for _, same := range []bool{false, true} {
			out := []*message.Message{newMessage("out")}
			h := middleware.Recover(middleware.RecoverConfig{SameGoroutine: same})(
				func(*message.Message) ([]*message.Message, error) { return out, errBoom })
			produced, err := h(newMessage("1"))
			require.Equal(t, out, produced)
			require.ErrorIs(t, err, errBoom)
		}
	})
}

func TestRecoverCutsTheStack(t *testing.T) {
	t.Parallel()
	var deep func(n int)
	deep = func(n int) {
		if n == 0 {
			panic("deep")
		}
		deep(n - 1)
	}
	for limit, want := range map[int]int{0: middleware.DefaultMaxStackBytes, 500: 500, -1: 0} {
		h := middleware.Recover(middleware.RecoverConfig{MaxStackBytes: limit})(
			func(*message.Message) ([]*message.Message, error) { deep(200); return nil, nil })
		_, err := h(newMessage("1"))
		var p *middleware.PanicError
		require.ErrorAs(t, err, &p)
		require.LessOrEqual(t, len(p.Stack), want)
		require.Equal(t, want > 0, p.Stack != "")
		if p.Stack != "" {
			last := p.Stack[strings.LastIndexByte(p.Stack, '\n')+1:]
			require.Regexp(t, `^(\t.*:\d+( \+0x[0-9a-f]+)?|\S.*\(.*\))$`, last, "cut at a whole line")
		}
	}
}

// A panic is a failure whatever its value says.
func TestPanicIsNeverASkip(t *testing.T) {
	t.Parallel()
	for _, value := range []error{middleware.Skip(errBoom), middleware.Defer(errBoom, 1)} {
		h := middleware.Recover(middleware.RecoverConfig{})(
			func(*message.Message) ([]*message.Message, error) { panic(value) })
		_, err := h(newMessage("1"))
		d, _ := middleware.DispositionOf(err)
		require.Equal(t, middleware.DispositionRetry, d)
		require.ErrorIs(t, err, errBoom)
	}
	d, _ := middleware.DispositionOf(middleware.Defer(&middleware.PanicError{Value: "x"}, 0))
	require.Equal(t, middleware.DispositionDefer, d, "a deferral of a panicked attempt is a deferral")
}

// B13: where nothing can stop a Goexit the message is at least nacked, so that
// it comes again; the stock router leaves it hanging.
func TestRecoverSameGoroutineNacksGoexit(t *testing.T) {
	t.Parallel()
	msg := newMessage("1")
	h := middleware.Recover(middleware.RecoverConfig{SameGoroutine: true, Logger: quiet})(
		func(*message.Message) ([]*message.Message, error) { runtime.Goexit(); return nil, nil })
	go func() { _, _ = h(msg) }()
	await(t, "the nack", msg.Nacked())
}

// B13: a panic of any kind, in a handler and in a middleware, with and without
// Retry, is a failed attempt, then a dead letter with a truncated stack; the
// process lives, and the next message is handled.
func TestB13PanicsEndInTheDeadLetters(t *testing.T) {
	t.Parallel()
	for name, c := range crashes {
		for _, where := range []string{"handler", "middleware", "middleware outside of retry"} {
			for _, attempts := range []int{0, 3} {
				t.Run(fmt.Sprintf("%s/%s/attempts %d", name, where, attempts), func(t *testing.T) {
					t.Parallel()
					dlq, calls := newSink(), newCounter()
					crashOn := func(msg *message.Message) {
						if msg.UUID == "uuid-bad" {
							calls.note("bad")
							c.crash()
						}
					}
					crashing := func(next message.HandlerFunc) message.HandlerFunc {
						return func(msg *message.Message) ([]*message.Message, error) {
							crashOn(msg)
							return next(msg)
						}
					}
					handler := func(msg *message.Message) ([]*message.Message, error) {
						if where == "handler" {
							crashOn(msg)
						}
						calls.note(msg.UUID)
						return nil, nil
					}
					layers := []message.HandlerMiddleware{
						middleware.Recover(middleware.RecoverConfig{SameGoroutine: true, Logger: quiet}),
						must(t)(middleware.Poison(middleware.PoisonConfig{Publisher: dlq, Topic: "dlq", Logger: quiet, MaxStackBytes: 1000})),
					}
					if where == "middleware outside of retry" {
						layers = append(layers, crashing)
					}
					want := 1
					if attempts > 0 {
						layers = append(layers, must(t)(middleware.Retry(middleware.RetryConfig{
							MaxAttempts: attempts, Backoff: middleware.Backoff{Base: 1, Cap: 1}, Logger: quiet,
						})), middleware.Recover(middleware.RecoverConfig{MaxStackBytes: 1000}))
						if where != "middleware outside of retry" {
							want = attempts
						}
					}
					if where == "middleware" {
						layers = append(layers, crashing)
					}
					b := startRouter(t, nil, nil, handler, layers...)
					b.publish(t, newMessage("bad"))
					await(t, "the dead letter", dlq.arrived)
					b.publish(t, newMessage("good"))
					for id := range calls.calls {
						if id == "uuid-good" {
							break
						}
					}
					dead := dlq.only(t)
					require.Equal(t, "uuid-bad", dead.UUID)
					require.Equal(t, middleware.ReasonPanic, dead.Metadata[middleware.DeadLetterReason])
					require.NotEmpty(t, dead.Metadata[middleware.DeadLetterStack])
					require.LessOrEqual(t, len(dead.Metadata[middleware.DeadLetterStack]), 1000)
					require.Equal(t, want, calls.of("bad"))
					require.Equal(t, fmt.Sprint(want), dead.Metadata[middleware.DeadLetterAttempts])
				})
			}
		}
	}
}

func ExampleRecover() {
	h := middleware.Recover(middleware.RecoverConfig{})(func(*message.Message) ([]*message.Message, error) {
		panic("division of labour by zero")
	})
	_, err := h(message.NewMessage("1", nil))
	var p *middleware.PanicError
	fmt.Println(err)
	fmt.Println(errors.As(err, &p), strings.Contains(p.Stack, "goroutine"))
	// Output:
	// panic: division of labour by zero
	// true true
}
