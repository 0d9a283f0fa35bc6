package middleware_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/middleware"
	"github.com/stretchr/testify/require"
)

// A message that is just small enough for the broker can still be dead-lettered:
// its story gets shorter until the copy fits, its bytes stay whole.
func TestDeadLetterFitsTheBroker(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	for _, spare := range []int{middleware.DeadLetterReserve, 4 << 10, 40 << 10} {
		t.Run(fmt.Sprint(spare), func(t *testing.T) {
			t.Parallel()
			dlq := newSink()
			handle := middleware.Chain(
				must(t)(middleware.Poison(middleware.PoisonConfig{Publisher: dlq, Topic: "dlq", Handler: "h", MaxBytes: limit, Logger: quiet})),
				middleware.Recover(middleware.RecoverConfig{}),
			)(func(*message.Message) ([]*message.Message, error) {
				panic(errors.New(strings.Repeat("a long text ", 1000)))
			})
			msg := newMessage("1")
			msg.Payload = bytes.Repeat([]byte("x"), limit-spare)
			msg.Metadata[middleware.DeadLetterStack] = strings.Repeat("the stack of the last time\n", 100)
			_, err := handle(msg)
			require.NoError(t, err)
			dead := dlq.only(t)
			require.LessOrEqual(t, sizeOf(dead), limit)
			require.Equal(t, msg.Payload, dead.Payload)
			require.Equal(t, "1", dead.Metadata["event_id"])
			require.Equal(t, middleware.ReasonPanic, dead.Metadata[middleware.DeadLetterReason])
			require.Contains(t, dead.Metadata[middleware.DeadLetterError], "a long text")
			require.NotEmpty(t, dead.Metadata[middleware.DeadLetterFingerprint])
			require.Equal(t, spare == 40<<10, dead.Metadata[middleware.DeadLetterStack] != "", "the stack stays where there is room")
		})
	}
}

func sizeOf(m *message.Message) int {
	n := len(m.UUID) + len(m.Payload)
	for k, v := range m.Metadata {
		n += len(k) + len(v)
	}
	return n
}
