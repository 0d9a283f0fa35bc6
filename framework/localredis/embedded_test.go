package localredis

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/redisstream"
)

func openBroker(t *testing.T, s *Server) *redisstream.Broker {
	t.Helper()
	b, err := redisstream.Open(t.Context(), redisstream.Config{
		URL: s.URL(), Logger: slog.New(slog.DiscardHandler),
		BlockTime: 20 * time.Millisecond, ClaimInterval: 20 * time.Millisecond,
	})
	require.NoError(t, err)
	return b
}

func publish(t *testing.T, b *redisstream.Broker, ids ...string) {
	t.Helper()
	for _, id := range ids {
		require.NoError(t, b.Publisher().Publish("topic", message.NewMessage(id, []byte("payload \xff of "+id))))
	}
}

func next(t *testing.T, ch <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m := <-ch:
		require.NotNil(t, m)
		return m
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came")
		return nil
	}
}

// TestEmbeddedServerKeepsWhatIsNotAcked: a group that has acked a part of a
// topic, one that never read it, and an entry that is pending.
func TestEmbeddedServerKeepsWhatIsNotAcked(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state", "redis")
	lease := broker.SubscriberConfig{Group: "reader", Concurrency: 1, Lease: time.Second}

	first := start(t, Options{Binary: BinaryNone, Dir: dir})
	b := openBroker(t, first)
	idle, err := b.Subscriber(broker.SubscriberConfig{Group: "late"})
	require.NoError(t, err)
	_, err = idle.Subscribe(t.Context(), "topic")
	require.NoError(t, err)
	require.NoError(t, idle.Close())
	publish(t, b, "a", "b", "c", "d")
	sub, err := b.Subscriber(lease)
	require.NoError(t, err)
	ch, err := sub.Subscribe(t.Context(), "topic")
	require.NoError(t, err)
	for _, want := range []string{"a", "b"} {
		m := next(t, ch)
		require.Equal(t, want, m.UUID)
		m.Ack()
	}
	held := next(t, ch)
	require.Equal(t, "c", held.UUID)
	c := client(t, first)
	require.Eventually(t, func() bool {
		p, err := c.XPending(t.Context(), "topic", "reader").Result()
		return err == nil && p.Count >= 1 && p.Lower == c.XRange(t.Context(), "topic", "-", "+").Val()[2].ID
	}, 5*time.Second, 10*time.Millisecond, "a and b are acked, c is pending")
	require.NoError(t, first.Close(), "with c in a handler's hands")
	held.Ack() // too late
	_ = sub.Close()
	_ = b.Close()

	second := start(t, Options{Binary: BinaryNone, Dir: dir})
	b = openBroker(t, second)
	defer b.Close()
	for group, want := range map[string][]string{"reader": {"c", "d"}, "late": {"a", "b", "c", "d"}} {
		lease.Group = group
		sub, err := b.Subscriber(lease)
		require.NoError(t, err)
		ch, err := sub.Subscribe(t.Context(), "topic")
		require.NoError(t, err)
		var got []string
		for range want {
			m := next(t, ch)
			require.Equal(t, "payload \xff of "+m.UUID, string(m.Payload))
			got = append(got, m.UUID)
			m.Ack()
		}
		require.ElementsMatch(t, want, got, group)
		require.Eventually(t, func() bool {
			stats, err := b.Admin().Stats(t.Context(), broker.Subscription{Topic: "topic", Group: group})
			return err == nil && stats == broker.Stats{}
		}, 5*time.Second, 10*time.Millisecond, "%s has all", group)
		require.NoError(t, sub.Close())
	}
	publish(t, b, "e")
}

// TestEmbeddedServerSavesWhileItRuns: a process that is killed loses a second.
func TestEmbeddedServerSavesWhileItRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, Options{Binary: BinaryNone, Dir: dir})
	c, ctx := client(t, first), t.Context()
	require.NoError(t, c.Set(ctx, "text", "v\x00\xff", 0).Err())
	require.NoError(t, c.Set(ctx, "short", "v", time.Hour).Err())
	require.NoError(t, c.HSet(ctx, "hash", "f", "v").Err())
	require.NoError(t, c.SAdd(ctx, "set", "x", "y").Err())
	require.NoError(t, c.RPush(ctx, "list", "1", "2").Err())
	require.NoError(t, c.ZAdd(ctx, "scores", redis.Z{Score: 1.5, Member: "m"}).Err())
	id := c.XAdd(ctx, &redis.XAddArgs{Stream: "s", Values: []any{"k2", "v", "k1", "w"}}).Val()
	require.NoError(t, c.XGroupCreate(ctx, "s", "g", "0").Err())
	for range 3 {
		require.NoError(t, c.Do(ctx, "XREADGROUP", "GROUP", "g", "me", "STREAMS", "s", ">").Err())
		require.NoError(t, c.Do(ctx, "XCLAIM", "s", "g", "me", 0, id).Err())
		require.NoError(t, c.XAdd(ctx, &redis.XAddArgs{Stream: "s", Values: []any{"k", "v"}}).Err())
	}

	copied := t.TempDir()
	require.Eventually(t, func() bool {
		raw, err := os.ReadFile(filepath.Join(dir, snapshotName))
		if err != nil || os.WriteFile(filepath.Join(copied, snapshotName), raw, 0o600) != nil {
			return false
		}
		s, err := readSnapshot(copied)
		return err == nil && len(s.Keys) == 7 && len(s.Keys[2].Entries) == 4
	}, 10*time.Second, 50*time.Millisecond, "saved while it runs")

	second := client(t, start(t, Options{Binary: BinaryNone, Dir: copied}))
	require.Equal(t, "v\x00\xff", second.Get(ctx, "text").Val())
	require.Greater(t, second.TTL(ctx, "short").Val(), 50*time.Minute)
	require.Equal(t, map[string]string{"f": "v"}, second.HGetAll(ctx, "hash").Val())
	require.ElementsMatch(t, []string{"x", "y"}, second.SMembers(ctx, "set").Val())
	require.Equal(t, []string{"1", "2"}, second.LRange(ctx, "list", 0, -1).Val())
	require.Equal(t, []redis.Z{{Score: 1.5, Member: "m"}}, second.ZRangeWithScores(ctx, "scores", 0, -1).Val())
	require.Equal(t, fmt.Sprint(c.Do(ctx, "XRANGE", "s", "-", "+").Val()), fmt.Sprint(second.Do(ctx, "XRANGE", "s", "-", "+").Val()))
	pending := second.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: "s", Group: "g", Start: "-", End: "+", Count: 9}).Val()
	require.Len(t, pending, 3)
	require.Equal(t, id, pending[0].ID)
	require.Equal(t, "me", pending[0].Consumer)
	require.EqualValues(t, 4, pending[0].RetryCount)
}

func TestTwoProgramsOnOneDirShareTheEmbeddedServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, Options{Binary: BinaryNone, Dir: dir})
	second := start(t, Options{Binary: BinaryNone, Dir: dir})
	require.Equal(t, KindShared, second.Kind())
	require.Equal(t, first.URL(), second.URL())
	require.NoError(t, second.Close())
	require.NoError(t, client(t, first).Ping(t.Context()).Err())
}

func TestASpoiltSnapshotIsNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, snapshotName)
	require.NoError(t, os.WriteFile(path, []byte("no snapshot"), 0o600))
	_, err := Start(context.Background(), Options{Binary: BinaryNone, Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "move the file away")
}
