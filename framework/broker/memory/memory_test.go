package memory_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/brokertest"
	"github.com/headrace-go/headrace/framework/broker/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, brokertest.Harness{
		Latency: 500 * time.Millisecond,
		Start: func(t *testing.T) *brokertest.Storage {
			b := memory.New(memory.Config{})
			t.Cleanup(func() { _ = b.Close() })
			return &brokertest.Storage{Open: func(testing.TB) broker.Broker { return b }}
		},
	})
}
