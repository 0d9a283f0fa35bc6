package redisstream_test

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/brokertest"
	"github.com/headrace-go/headrace/framework/broker/redisstream"
)

// TestEmbedded runs the suite on the server that the local profile falls back
// to.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, brokertest.Harness{Backlog: 5_000, Start: func(t *testing.T) *brokertest.Storage {
		server := miniredis.RunT(t)
		url := "redis://" + server.Addr() + "/0"
		return &brokertest.Storage{
			Addr: url,
			Open: func(t testing.TB) broker.Broker {
				// It does not know CLIENT UNBLOCK: reads end by themselves.
				return open(t, redisstream.Config{URL: url, BlockTime: 50 * time.Millisecond, ClaimInterval: 100 * time.Millisecond})
			},
			PutMalformed: func(t testing.TB, topic string, raw []byte) {
				c := client(t, url)
				require.NoError(t, c.XAdd(context.Background(), &redis.XAddArgs{Stream: topic, Values: []any{"payload", raw}}).Err())
			},
		}
	}})
}
