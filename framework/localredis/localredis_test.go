package localredis

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, opts Options) *Server {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	s, err := Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func client(t *testing.T, s *Server) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(s.URL())
	require.NoError(t, err)
	opts.MaxRetries, opts.DialerRetries = -1, 1
	c := redis.NewClient(opts)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func needServer(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("HEADRACE_TEST_REQUIRE") == "all" {
			t.Fatal("redis-server on PATH is required")
		}
		t.Skip("did not run: no redis-server on PATH")
	}
}

func TestServerKeepsItsDataBetweenRuns(t *testing.T) {
	needServer(t)
	dir := filepath.Join(t.TempDir(), "state", "redis")
	first := start(t, Options{Dir: dir})
	require.Equal(t, KindServer, first.Kind())
	require.NoError(t, client(t, first).Set(t.Context(), "k", "v", 0).Err())
	require.NoError(t, first.Close())
	require.NoError(t, first.Close(), "twice")
	require.Error(t, client(t, first).Ping(t.Context()).Err(), "the process is gone")

	second := start(t, Options{Dir: dir})
	got, err := client(t, second).Get(t.Context(), "k").Result()
	require.NoError(t, err)
	require.Equal(t, "v", got)
}

func TestTwoProgramsOnOneDirShareTheServer(t *testing.T) {
	needServer(t)
	dir := t.TempDir()
	first := start(t, Options{Dir: dir})
	second := start(t, Options{Dir: dir})
	require.Equal(t, KindShared, second.Kind())
	require.Equal(t, first.URL(), second.URL())
	require.NoError(t, second.Close())
	require.NoError(t, client(t, first).Ping(t.Context()).Err(), "the owner's server goes on")
}

func TestServerOfADeadOwnerIsAdoptedAndStopped(t *testing.T) {
	needServer(t)
	dir := t.TempDir()
	orphan := start(t, Options{Dir: dir})
	dead := exec.Command("true")
	require.NoError(t, dead.Run())
	raw, err := os.ReadFile(filepath.Join(dir, recordName))
	require.NoError(t, err)
	var r record
	require.NoError(t, json.Unmarshal(raw, &r))
	require.Equal(t, os.Getpid(), r.Owner)
	require.NoError(t, writeRecord(dir, record{Port: r.Port, Owner: dead.Process.Pid}))

	adopted := start(t, Options{Dir: dir})
	require.Equal(t, KindServer, adopted.Kind())
	require.Equal(t, orphan.URL(), adopted.URL())
	require.NoError(t, adopted.Close())
	require.Error(t, client(t, adopted).Ping(t.Context()).Err())
}

func TestWithoutDirNothingIsKept(t *testing.T) {
	needServer(t)
	s := start(t, Options{})
	dir, err := client(t, s).ConfigGet(t.Context(), "dir").Result()
	require.NoError(t, err)
	require.DirExists(t, dir["dir"])
	require.NoError(t, s.Close())
	require.NoDirExists(t, dir["dir"])
}

func TestEmbeddedServerExpiresKeys(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Binary: BinaryNone})
	require.Equal(t, KindEmbedded, s.Kind())
	c := client(t, s)
	require.NoError(t, c.Set(t.Context(), "k", "v", time.Second).Err())
	require.Eventually(t, func() bool { return c.Exists(t.Context(), "k").Val() == 0 }, 5*time.Second, 20*time.Millisecond)
}

func TestABinaryThatFailsIsAnError(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Options{Binary: "false", Logger: slog.New(slog.DiscardHandler)})
	require.ErrorContains(t, err, "false")
}

func TestStartObeysItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Start(ctx, Options{Binary: "sleep", Logger: slog.New(slog.DiscardHandler)})
	require.Error(t, err)
}

func TestTheEndOfAServerIsNoticed(t *testing.T) {
	needServer(t)
	dir := t.TempDir()
	first := start(t, Options{Dir: dir})
	c := client(t, first)
	require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
	require.NoError(t, c.ConfigSet(t.Context(), "appendfsync", "always").Err())
	pid := 0
	for _, line := range strings.Split(c.Info(t.Context(), "server").Val(), "\r\n") {
		if v, ok := strings.CutPrefix(line, "process_id:"); ok {
			pid, _ = strconv.Atoi(v)
		}
	}
	require.NoError(t, first.Err())
	p, err := os.FindProcess(pid)
	require.NoError(t, err)
	require.NoError(t, p.Kill())
	select {
	case <-first.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("not noticed")
	}
	require.EqualError(t, first.Err(), "signal: killed")

	u, err := url.Parse(first.URL())
	require.NoError(t, err)
	port, err := strconv.Atoi(u.Port())
	require.NoError(t, err)
	again := start(t, Options{Dir: dir, Port: port})
	require.Equal(t, first.URL(), again.URL())
	require.Equal(t, "v", client(t, again).Get(t.Context(), "k").Val())
	require.NoError(t, again.Close())
	<-again.Done()
	require.NoError(t, again.Err(), "it was asked to")
}
