package redisstream_test

import (
	"context"
	"slices"
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

// TestClusterClient: the client may be a cluster's; the read then ends by itself
// after BlockTime.
func TestClusterClient(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}})
	t.Cleanup(func() { _ = c.Close() })
	b := open(t, redisstream.Config{Client: c, BlockTime: 50 * time.Millisecond, ClaimInterval: 50 * time.Millisecond})
	publish(t, b, "topic", "a", "b", "c")
	ch, sub := subscribe(t, b, "topic", broker.SubscriberConfig{Concurrency: 1, NackDelay: -1})
	first := receive(t, ch)
	first.Nack()
	seen := []string{first.UUID}
	m := receive(t, ch)
	require.NoError(t, m.Context().Err())
	m.Ack()
	seen = append(seen, m.UUID)
	require.NoError(t, sub.Close())
	next, _ := subscribe(t, b, "topic", broker.SubscriberConfig{})
	for range 2 {
		m := receive(t, next)
		seen = append(seen, m.UUID)
		m.Ack()
	}
	slices.Sort(seen)
	require.Equal(t, []string{"a", "b", "c"}, slices.Compact(seen))
	eventually(t, func() bool {
		stats, err := b.Admin().Stats(context.Background(), broker.Subscription{Topic: "topic", Group: "g"})
		return err == nil && stats == broker.Stats{}
	}, "settled")
	require.NoError(t, c.Ping(context.Background()).Err())
}

// TestEmbeddedTrims: a group that has read nothing yet holds everything back,
// and is no fault of the upkeep.
func TestEmbeddedTrims(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	url := "redis://" + server.Addr() + "/0"
	var told logs
	b := open(t, redisstream.Config{
		URL: url, Retention: time.Millisecond, MaintainEvery: 20 * time.Millisecond, BlockTime: 20 * time.Millisecond, Logger: told.logger(),
	})
	c := client(t, url)
	publish(t, b, "topic", "a", "b")
	require.NoError(t, b.EnsureTopology(ctx, broker.Subscription{Topic: "topic", Group: "slow"}))
	fast, _ := subscribe(t, b, "topic", broker.SubscriberConfig{Group: "fast"})
	for range 2 {
		receive(t, fast).Ack()
	}
	eventually(t, func() bool { return c.XPending(ctx, "topic", "fast").Val().Count == 0 }, "fast is done")
	<-time.After(100 * time.Millisecond) // a few rounds of maintenance
	require.EqualValues(t, 2, c.XLen(ctx, "topic").Val(), "slow has read nothing")
	slow, _ := subscribe(t, b, "topic", broker.SubscriberConfig{Group: "slow"})
	for range 2 {
		receive(t, slow).Ack()
	}
	eventually(t, func() bool { return c.XLen(ctx, "topic").Val() == 0 }, "everything is acked and old")
	require.False(t, told.has("trimming failed"), "it is no fault")
}
