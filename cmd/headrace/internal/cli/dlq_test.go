package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/framework/deadletter"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/middleware"
)

const workspace = "../../../.." // this repository

// run runs the command line as a process without a terminal would.
func run(args ...string) (out, errs string, code int) {
	var o, e bytes.Buffer
	code = Main(context.Background(), args, &o, &e)
	return o.String(), e.String(), code
}

// deadRedis is a Redis that holds dead letters of two groups.
func deadRedis(t *testing.T) (url string) {
	t.Helper()
	url = testenv.Redis(t).URL()
	b, err := redisstream.Open(context.Background(), redisstream.Config{URL: url, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	for i, group := range []string{"payments.charge-order", "payments.charge-order", "orders.confirm-order"} {
		m := message.NewMessage(fmt.Sprint("m", i), []byte("secret"))
		m.Metadata = message.Metadata{
			middleware.DeadLetterReason: middleware.ReasonExhausted, middleware.DeadLetterError: "down\x1b[31m",
			middleware.DeadLetterRedriveCount: fmt.Sprint(3 * i),
		}
		require.NoError(t, b.Publisher().Publish(broker.DeadLetterTopic(group), m))
	}
	return url
}

// The broker is that of the running dev, of a profile, or of the flags.
func TestDLQFindsTheBroker(t *testing.T) {
	url := deadRedis(t)
	for _, kv := range os.Environ() {
		if k, _, _ := strings.Cut(kv, "="); strings.HasPrefix(k, "HEADRACE_") {
			t.Setenv(k, "") // Setenv brings it back at the end
			os.Unsetenv(k)
		}
	}
	state := t.TempDir()
	flags := []string{"--dir", workspace, "--state", state}

	_, errs, code := run(append([]string{"dlq", "list"}, flags...)...)
	require.Equal(t, exitError, code)
	require.Contains(t, errs, "headrace dev")
	require.Contains(t, errs, "--broker and --url")

	b, err := json.Marshal(map[string]any{"pid": os.Getpid(), "env": "local", "broker_url": url})
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(state, ".headrace"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(state, ".headrace", "dev.json"), b, 0o600))
	out, errs, code := run(append([]string{"dlq", "list"}, flags...)...)
	require.Equal(t, exitOK, code, errs)
	require.Contains(t, out, "payments.charge-order")
	require.Contains(t, out, "orders.confirm-order")

	t.Setenv("HEADRACE_BROKER_URL", url)
	t.Setenv("HEADRACE_PAYMENTS_GATEWAY_KIND", "http") // a service's own section is not in the way
	named, errs, code := run("dlq", "list", "--dir", workspace, "--env", "local")
	require.Equal(t, exitOK, code, errs)
	require.Equal(t, out, named)
	_, errs, code = run("dlq", "list", "--dir", workspace, "--env", "test")
	require.Equal(t, exitError, code)
	require.Contains(t, errs, "memory, which other processes can't reach")
	os.Unsetenv("HEADRACE_BROKER_URL")

	flagged, errs, code := run("dlq", "list", "--broker", "redisstream", "--url", url)
	require.Equal(t, exitOK, code, errs)
	require.Equal(t, out, flagged)
	_, errs, code = run("dlq", "list", "--url", "redis://:hunter2@127.0.0.1:1/0")
	require.Equal(t, exitUsage, code)
	require.NotContains(t, errs, "hunter2")
}

func TestDLQExitCodesAndRefusals(t *testing.T) {
	t.Parallel()
	url, files := deadRedis(t), t.TempDir()
	dlq := func(args ...string) (string, string, int) {
		return run(append(append([]string{"dlq"}, args...), "--broker", "redisstream", "--url", url, "--files", files)...)
	}
	for _, args := range [][]string{
		{"replay", "payments.charge-order"},
		{"discard", "payments.charge-order"},
		{"edit", "payments.charge-order", "m0", "--payload", "dlq_test.go", "--force"},
		{"import", "payments.charge-order", "dlq_test.go"},
	} {
		_, errs, code := dlq(args...)
		require.Equal(t, exitUsage, code, "%v: %s", args, errs)
		require.Contains(t, errs, "confirm with --yes")
	}
	for _, args := range [][]string{
		{"replay"}, {"show", "payments.charge-order"}, {"replay", "g", "--reason", "lost"}, {"list", "--since", "yesterday"},
		{"replay", "g", "--limit", "-1"}, {"replay", "g", "--canary=0"}, {"edit", "g", "m"}, {"show", "g", "m", "--raw", "--json"}, {"nonsense"},
	} {
		_, errs, code := dlq(args...)
		require.Equal(t, exitUsage, code, "%v: %s", args, errs)
	}
	_, errs, code := dlq("show", "payments.charge-order", "nobody")
	require.Equal(t, exitError, code)
	require.Contains(t, errs, "no such dead letter")

	out, _, code := dlq("show", "payments.charge-order", "m0")
	require.Equal(t, exitOK, code)
	require.NotContains(t, out, "\x1b", "a letter can't steer the terminal")
	require.NotContains(t, out, "secret")
	out, _, _ = dlq("show", "payments.charge-order", "m0", "--raw")
	require.Equal(t, "secret", out)

	// m1 was replayed three times: a part is done.
	out, errs, code = dlq("replay", "payments.charge-order", "--yes")
	require.Equal(t, exitPartial, code, errs)
	require.Contains(t, out, "replayed 1 of 2 dead letters to payments.charge-order.redrive")
	require.Contains(t, out, "m1 -: it was replayed 3 times already")
	_, _, code = dlq("replay", "payments.charge-order", "--yes")
	require.Equal(t, exitError, code, "nothing is done")
	out, _, code = dlq("replay", "payments.charge-order", "--yes", "--force", "--json")
	require.Equal(t, exitOK, code)
	var report struct{ Matched, Replayed int }
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.Equal(t, []int{1, 1}, []int{report.Matched, report.Replayed})
	out, _, code = dlq("replay", "payments.charge-order", "--yes")
	require.Equal(t, exitOK, code)
	require.Equal(t, "no dead letters of payments.charge-order match\n", out)

	audit, err := os.ReadFile(filepath.Join(files, "audit.jsonl"))
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(audit), `"action":"replay"`))
	info, err := os.Stat(filepath.Join(files, "audit.jsonl"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

// A broker that can't tell its topics: the services' metrics name the groups.
func TestDLQAsksTheServices(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "/metrics", r.URL.Path)
		fmt.Fprint(w, "# TYPE headrace_dlq_depth gauge\nheadrace_dlq_depth{group=\"b.y\",handler=\"y\",service=\"b\"} 2\nheadrace_dlq_depth{group=\"a.x\",handler=\"x\",service=\"a\"} 0\nheadrace_consumer_lag{group=\"c\"} 1\n")
	}))
	t.Cleanup(srv.Close)
	p := &place{admin: []string{srv.URL + "/", srv.URL}}
	groups, err := p.askServices(context.Background(), deadletter.ErrCannotList)
	require.NoError(t, err)
	require.Equal(t, []string{"a.x", "b.y"}, groups)
	_, err = (&place{}).askServices(context.Background(), deadletter.ErrCannotList)
	require.ErrorIs(t, err, deadletter.ErrCannotList)
	require.ErrorContains(t, err, "--admin")
}

// What is parked shows: the reason in list and groups, behind whom in show, and
// what a discard set free.
func TestDLQShowsWhatIsParked(t *testing.T) {
	t.Parallel()
	url, files := testenv.Redis(t).URL(), t.TempDir()
	b, err := redisstream.Open(context.Background(), redisstream.Config{URL: url, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	for i, reason := range []string{middleware.ReasonParked, middleware.ReasonExhausted} { // the first failed again
		m := message.NewMessage(fmt.Sprint("m", 2-i), []byte("{}"))
		m.Metadata = message.Metadata{
			"ordering_key": "k", middleware.DeadLetterReason: reason, middleware.DeadLetterError: "parked behind m1, which failed and has the same key",
			middleware.DeadLetterParksKey: "1", middleware.DeadLetterParkSeq: fmt.Sprint(8 - i),
		}
		if reason == middleware.ReasonParked {
			m.Metadata[middleware.DeadLetterParkedBehind] = "m1"
			m.Metadata[middleware.DeadLetterRedriveCount], m.Metadata[middleware.DeadLetterRedrivesParked] = "3", "2"
		}
		require.NoError(t, b.Publisher().Publish(broker.DeadLetterTopic("payments.charge-order"), m))
	}
	dlq := func(args ...string) string {
		out, errs, code := run(append(append([]string{"dlq"}, args...), "--broker", "redisstream", "--url", url, "--files", files)...)
		require.Equal(t, exitOK, code, errs)
		return out
	}
	require.Contains(t, dlq("list"), "exhausted 1, parked 1")
	require.Contains(t, dlq("groups"), "parked behind m1")
	out := dlq("show", "payments.charge-order", "m2")
	for _, want := range []string{"reason         parked", "redrives       3, 2 of them parked again", "holds up       the later messages of its key, at place 8", "parked behind  m1"} {
		require.Contains(t, out, want)
	}
	require.Contains(t, dlq("show", "payments.charge-order", "m2", "--json"), `"parked_behind": "m1"`)
	out = dlq("discard", "payments.charge-order", "--id", "m1", "--yes")
	require.Contains(t, out, "1 of them held up their keys: the group was told")
	require.Contains(t, dlq("replay", "payments.charge-order", "--yes"), "replayed 1 of 1")
}
