package dev

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
)

func TestARedisThatDiesIsStartedAgainInItsPlace(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("HEADRACE_TEST_REQUIRE") == "all" {
			t.Fatal("redis-server on PATH is required")
		}
		t.Skip("did not run: no redis-server on PATH")
	}
	said := make(chan string, 20)
	await := func(want string) {
		t.Helper()
		for {
			select {
			case line := <-said:
				if line == want {
					return
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("never said: %s", want)
			}
		}
	}
	k, err := keepRedis(t.Context(), t.TempDir(), func(format string, args ...any) { said <- fmt.Sprintf(format, args...) })
	require.NoError(t, err)
	await("redis-server at " + k.url)
	opts, err := redis.ParseURL(k.url)
	require.NoError(t, err)
	c := redis.NewClient(opts)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.ConfigSet(t.Context(), "appendfsync", "always").Err())
	require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
	_, pid, _ := strings.Cut(c.Info(t.Context(), "server").Val(), "process_id:")
	pid, _, _ = strings.Cut(pid, "\r")
	id, err := strconv.Atoi(pid)
	require.NoError(t, err)
	p, err := os.FindProcess(id)
	require.NoError(t, err)
	require.NoError(t, p.Kill())
	await("redis-server ended (signal: killed); starting it again")
	await("redis-server is up again")
	require.Equal(t, "v", c.Get(t.Context(), "k").Val())
	require.NoError(t, k.Close())
	require.NoError(t, k.Close(), "twice")
}

func TestTheRedisNamedByHandIsChecked(t *testing.T) {
	t.Parallel()
	streams := map[string]config.Profile{"orders": {Broker: config.Broker{Kind: "redisstream"}}}
	require.NoError(t, checkRedis(t.Context(), "", "local", streams))
	err := checkRedis(t.Context(), "postgres://me:hunter2@host", "local", streams)
	require.ErrorContains(t, err, "--redis is no address of a Redis")
	require.NotContains(t, err.Error(), "hunter2")
	require.ErrorContains(t, checkRedis(t.Context(), "redis://127.0.0.1:1/0", "local", streams), "no Redis answers at 127.0.0.1:1")
	require.ErrorContains(t, checkRedis(t.Context(), "redis://127.0.0.1:1/0", "sql", map[string]config.Profile{
		"orders": {Broker: config.Broker{Kind: "sql"}},
	}), "no service of profile \"sql\"")
}
