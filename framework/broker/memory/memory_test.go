package memory_test

import (
	"testing"
	"time"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/brokertest"
	"github.com/headrace-go/headrace/framework/broker/memory"
)

func TestMain(m *testing.M) { brokertest.Main(m, nil) }

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
