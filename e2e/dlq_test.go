package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/pkg/events"
)

const chargeOrder = "payments.charge-order"

// armedCLI is the command line with failpoints, built once a run.
var armedCLI = sync.OnceValues(func() (string, error) {
	dir, err := binaries()
	if err != nil {
		return "", err
	}
	root, err := filepath.Abs("..")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "headrace-armed")
	return path, goBuild(root, path, "./cmd/headrace", "-tags=failpoint")
})

// dlqFlags tell the command line where the system's broker is: in the profile
// that payments runs with, as an operator would. The services tell their groups
// where the broker can't.
func (s *system) dlqFlags() []string {
	root, err := filepath.Abs("..")
	require.NoError(s.t, err)
	flags := []string{"--dir", root, "--env", string(s.kind), "--state", s.dir, "--service", "payments"}
	for _, p := range s.procs {
		flags = append(flags, "--admin", "http://"+p.admin)
	}
	return flags
}

// dlqCommand is a `headrace dlq` that is not started yet.
func (s *system) dlqCommand(bin string, args ...string) *exec.Cmd {
	cmd := exec.Command(bin, append(append([]string{"dlq"}, args...), s.dlqFlags()...)...)
	cmd.Dir, cmd.Env = s.dir, append(environ(), s.addresses["payments"]...)
	return cmd
}

// dlq runs `headrace dlq` with the arguments to its end.
func (s *system) dlq(args ...string) (out string, code int) {
	s.t.Helper()
	return s.run(bin(s.t, "headrace"), nil, args...)
}

func (s *system) run(bin string, env []string, args ...string) (out string, code int) {
	s.t.Helper()
	cmd := s.dlqCommand(bin, args...)
	cmd.Env = append(cmd.Env, env...)
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

// must runs it and expects the exit code 0.
func (s *system) must(args ...string) string {
	s.t.Helper()
	out, code := s.dlq(args...)
	require.Zero(s.t, code, "headrace dlq %s: %s", strings.Join(args, " "), out)
	return out
}

// depth is how many dead letters a group has.
func (s *system) depth(group string) int {
	s.t.Helper()
	var all []struct{ Depth int }
	out := s.must("list", group, "--json")
	require.NoError(s.t, json.Unmarshal([]byte(out), &all), out)
	require.Len(s.t, all, 1)
	return all[0].Depth
}

func (s *system) awaitDepth(group string, n int) {
	s.t.Helper()
	eventually(s.t, time.Minute, func() error {
		if d := s.depth(group); d != n {
			return fmt.Errorf("%d of %d dead letters of %s", d, n, group)
		}
		return nil
	})
}

// brokenProvider is a payment provider that answers every request with 503, and
// counts them.
func brokenProvider(t *testing.T) (env []string, requests *atomic.Int64) {
	t.Helper()
	requests = &atomic.Int64{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(srv.Close)
	return []string{
		"HEADRACE_PAYMENTS_GATEWAY_KIND=http",
		"HEADRACE_PAYMENTS_GATEWAY_HTTP_BASE_URL=" + srv.URL,
		"HEADRACE_PAYMENTS_GATEWAY_HTTP_API_KEY=key",
		"HEADRACE_PAYMENTS_GATEWAY_HTTP_BREAKER_FAILURES=100000",
		"HEADRACE_DELIVERY_MAX_ATTEMPTS=3",
		"HEADRACE_DELIVERY_BACKOFF_BASE=10ms",
		"HEADRACE_DELIVERY_BACKOFF_CAP=50ms",
	}, requests
}

// breakPayments starts the system with a provider that fails, and places n
// orders, whose payments end in the dead letters.
func (s *system) breakPayments(box *mailbox, n int) (requests *atomic.Int64) {
	s.t.Helper()
	env, requests := brokenProvider(s.t)
	s.start(box.env(), "orders", "notifications")
	s.start(env, "payments")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(s.t, s.placeMany(ctx, 0, n))
	s.awaitDepth(chargeOrder, n)
	return requests
}

// mendPayments starts payments again with a provider that works.
func (s *system) mendPayments(box *mailbox) {
	s.t.Helper()
	s.procs["payments"].stop()
	s.start(box.env(), "payments")
}

// requireOneMail waits for the mails of n orders and checks that each has one.
func (s *system) requireOneMail(box *mailbox, n int) {
	s.t.Helper()
	eventually(s.t, 30*time.Second, func() error {
		if got := len(box.ids()); got < n {
			return fmt.Errorf("%d of %d mails", got, n)
		}
		return nil
	})
	for _, name := range names {
		s.procs[name].stop()
	}
	ids := box.ids()
	require.Len(s.t, ids, n, "no mail was sent twice")
	slices.Sort(ids)
	require.Len(s.t, slices.Compact(ids), n, "each order has one mail")
}

// TestDeadLetters breaks the payment provider, sees the retries and the dead
// letter with its whole story, mends it, replays, and sees each order take
// effect exactly once (B19, B21, B23). What the commands print is what the
// documents show.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(string(k), func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, k)
			box := newMailbox(t)
			const orders = 3
			requests := s.breakPayments(box, orders)
			require.EqualValues(t, 3*orders, requests.Load(), "each order was tried three times")

			session := &strings.Builder{}
			shell := func(args ...string) string {
				out := s.must(args...)
				fmt.Fprintf(session, "$ headrace dlq %s\n%s", strings.Join(args, " "), out)
				return out
			}
			shell("list")
			var found []struct{ Sample, Fingerprint string }
			require.NoError(t, json.Unmarshal([]byte(s.must("groups", "--json")), &found))
			require.Len(t, found, 1, "alike failures have one fingerprint")
			s.requireStory(found[0].Sample)
			told := shell("show", chargeOrder, found[0].Sample)
			require.NotContains(t, told, "ada@example.com", "the payload is printed only on request")
			require.Contains(t, s.must("show", chargeOrder, found[0].Sample, "--payload"), "ada@example.com")

			out, code := s.dlq("replay", chargeOrder)
			require.Equal(t, 2, code, "without a terminal it wants --yes: %s", out)
			require.Contains(t, s.must("replay", chargeOrder, "--dry-run"), "would replay 3 of 3 dead letters")
			require.Equal(t, orders, s.depth(chargeOrder))

			// Replayed too early, they come back, counted; the canary stops at the first.
			out, code = s.dlq("replay", chargeOrder, "--canary", "--yes")
			require.Equal(t, 3, code, out)
			require.Contains(t, out, "1 dead-lettered again")
			s.awaitDepth(chargeOrder, orders)

			s.mendPayments(box)
			shell("replay", chargeOrder, "--canary", "--yes")
			require.Equal(t, "no dead letters\n", shell("list"))
			s.requireExactlyOnce(orders)
			s.requireOneMail(box, orders)
			if k == embedded || k == servers {
				requireShown(t, session.String())
			}
		})
	}
}

// requireStory checks all that a dead letter tells.
func (s *system) requireStory(id string) {
	s.t.Helper()
	var letters []struct {
		ID            string `json:"id"`
		EventType     string `json:"event_type"`
		Key           string `json:"ordering_key"`
		CorrelationID string `json:"correlation_id"`
		Reason, Error string
		ErrorChain    []struct{ Type, Message string } `json:"error_chain"`
		Service       string
		Handler       string
		Topic         string
		Group         string
		Attempts      int
		Deliveries    int
		Redrives      int
		FirstFailedAt time.Time         `json:"first_failed_at"`
		LastFailedAt  time.Time         `json:"last_failed_at"`
		Metadata      map[string]string `json:"metadata"`
		Payload       string            `json:"payload"`
	}
	out := s.must("show", chargeOrder, id, "--json", "--payload")
	require.NoError(s.t, json.Unmarshal([]byte(out), &letters), out)
	require.Len(s.t, letters, 1)
	l := letters[0]
	require.Equal(s.t, []any{"exhausted", "payments", "charge-order", "order.placed", chargeOrder, 3, 0},
		[]any{l.Reason, l.Service, l.Handler, l.Topic, l.Group, l.Attempts, l.Redrives})
	require.Positive(s.t, l.Deliveries)
	require.Contains(s.t, l.Error, "provider answered /v1/charges with 503")
	require.Equal(s.t, "*httpgateway.StatusError", l.ErrorChain[len(l.ErrorChain)-1].Type)
	require.False(s.t, l.FirstFailedAt.IsZero())
	require.False(s.t, l.LastFailedAt.Before(l.FirstFailedAt))
	env, err := events.Decode([]byte(l.Payload))
	require.NoError(s.t, err)
	require.Equal(s.t, []string{env.ID, env.Type, env.Metadata.CorrelationID, env.Metadata.OrderingKey}, []string{l.ID, l.EventType, l.CorrelationID, l.Key})
	require.NotEmpty(s.t, env.Metadata.CorrelationID)
	require.Equal(s.t, env.Metadata.CorrelationID, l.Metadata[events.KeyCorrelation])
	for k := range l.Metadata {
		require.False(s.t, strings.HasPrefix(k, "dead_letter_"), k)
	}
}

// requireShown holds a session against the documents that show one behind
// <!-- dlq -->.
func requireShown(t *testing.T, session string) {
	t.Helper()
	shown := 0
	for _, file := range []string{"../README.md", "../docs/runbooks/dead-letters.md"} {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		_, rest, found := strings.Cut(string(b), "<!-- dlq -->\n```\n")
		if !found {
			continue
		}
		shown++
		block, _, found := strings.Cut(rest, "\n```")
		require.True(t, found, file)
		require.Equal(t, sessionShape(session), sessionShape(block), "%s shows something else than:\n%s", file, session)
	}
	require.Positive(t, shown, "no document shows a session behind <!-- dlq -->")
}

var (
	anyMoment   = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	anyPosition = regexp.MustCompile(`\d{13}-\d+`)
	anyHex      = regexp.MustCompile(`\b[0-9a-f]{16,}\b`)
	anyTrace    = regexp.MustCompile(`00-[0-9a-f]{32}-[0-9a-f]{16}-\d\d`)
	anyWhile    = regexp.MustCompile(`\b\d+(\.\d+)?(µs|ms|s)\b`)
	anySize     = regexp.MustCompile(`\d+ bytes`)
)

// sessionShape is a session without what differs from run to run.
func sessionShape(session string) []string {
	var lines []string
	for line := range strings.Lines(session) {
		for _, r := range []struct {
			re *regexp.Regexp
			by string
		}{{anyTrace, "TRACE"}, {anyID, "ID"}, {anyMoment, "TIME"}, {anyPosition, "POSITION"}, {anyHex, "HEX"}, {anySize, "SIZE"}, {anyWhile, "WHILE"}, {spaces, " "}} {
			line = r.re.ReplaceAllString(line, r.by)
		}
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestReplayKilled kills a replay with SIGKILL in every window between its steps,
// resumes it, and sees that no order is lost and none takes effect twice (B23).
func TestReplayKilled(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{servers, postgres, aws} {
		t.Run(string(k), func(t *testing.T) {
			t.Parallel()
			testReplayKilled(t, k)
		})
	}
}

func testReplayKilled(t *testing.T, k kind) {
	armed, err := armedCLI()
	require.NoError(t, err)
	s := newSystem(t, k)
	box := newMailbox(t)
	const orders = 40
	s.breakPayments(box, orders)
	s.mendPayments(box)
	for _, step := range []struct {
		point       string
		least, most int // dead letters afterwards; SQS has no order, so there it varies
	}{
		{"redrive.published@2", 30, 30}, // with a rate of 100 a batch is ten: the second is published, nothing says so
		{"redrive.journaled", 30, 30},   // ten are published, perhaps again, and on record
		{"redrive.deleted", 10, 20},     // what is on record is deleted unpublished, and ten more are done
	} {
		out, code := s.run(armed, []string{"HEADRACE_FAILPOINT=" + step.point}, "replay", chargeOrder, "--yes", "--rate", "100")
		require.Equal(t, -1, code, "%s: not killed: %s", step.point, out)
		// On SQS what the killed one was looking at is out of sight for 30 s.
		eventually(t, 2*time.Minute, func() error {
			if d := s.depth(chargeOrder); d < step.least || d > step.most {
				return fmt.Errorf("%s: %d dead letters", step.point, d)
			}
			return nil
		})
	}
	if k != aws {
		s.killAndInterrupt()
	}
	// On SQS one replay may not see all.
	eventually(t, 2*time.Minute, func() error {
		s.must("replay", chargeOrder, "--yes")
		if left := s.count("orders", "/v1/orders?state=placed", "orders", 1); left > 0 {
			return errors.New("orders are not charged yet")
		}
		return nil
	})
	require.Zero(t, s.depth(chargeOrder))
	s.requireExactlyOnce(orders)
	s.requireOneMail(box, orders)
}

// killAndInterrupt kills a replay at no moment in particular, and ends another by
// Ctrl-C.
func (s *system) killAndInterrupt() {
	s.t.Helper()
	until := func(reached func(depth int) bool) {
		eventually(s.t, time.Minute, func() error {
			if d := s.depth(chargeOrder); !reached(d) {
				return fmt.Errorf("%d dead letters are left", d)
			}
			return nil
		})
	}
	cmd := s.dlqCommand(bin(s.t, "headrace"), "replay", chargeOrder, "--yes", "--rate", "3")
	require.NoError(s.t, cmd.Start())
	until(func(depth int) bool { return depth <= 6 })
	require.NoError(s.t, cmd.Process.Kill())
	_ = cmd.Wait()

	var out bytes.Buffer
	cmd = s.dlqCommand(bin(s.t, "headrace"), "replay", chargeOrder, "--yes", "--rate", "1")
	cmd.Stdout, cmd.Stderr = &out, &out
	before := s.depth(chargeOrder)
	require.NoError(s.t, cmd.Start())
	until(func(depth int) bool { return depth < before })
	require.NoError(s.t, cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait()
	require.Equal(s.t, 3, cmd.ProcessState.ExitCode(), "a part was done: %s", out.String())
	require.Contains(s.t, out.String(), "interrupted")
	require.NotZero(s.t, s.depth(chargeOrder))
}

// TestDiscardAndImport takes dead letters out and puts them back, byte for byte,
// and discards what nobody can read (B19).
func TestDiscardAndImport(t *testing.T) {
	t.Parallel()
	s := newSystem(t, embedded)
	box := newMailbox(t)
	const orders = 4
	s.breakPayments(box, orders)
	b, err := redisstream.Open(context.Background(), redisstream.Config{URL: s.redisURL, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	require.NoError(t, b.Publisher().Publish("order.placed", message.NewMessage("foreign", []byte("[]"))))
	s.awaitDepth(chargeOrder, orders+1)

	out := s.must("groups", chargeOrder, "--reason", "decode")
	require.Contains(t, out, "foreign")
	junk := filepath.Join(s.dir, "junk.jsonl")
	require.Contains(t, s.must("discard", chargeOrder, "--reason", "decode", "--archive", junk, "--yes"), "discarded 1 of 1 dead letter")
	require.FileExists(t, junk)
	require.Equal(t, orders, s.depth(chargeOrder))

	exported := s.must("export", chargeOrder)
	archive := filepath.Join(s.dir, "all.jsonl")
	_, code := s.dlq("discard", chargeOrder, "--archive", archive)
	require.Equal(t, 2, code, "without a terminal it wants --yes")
	s.must("discard", chargeOrder, "--archive", archive, "--yes")
	require.Zero(t, s.depth(chargeOrder))
	written, err := os.ReadFile(archive)
	require.NoError(t, err)
	require.Equal(t, exported, string(written))
	out, code = s.dlq("discard", chargeOrder, "--archive", archive, "--yes")
	require.Zero(t, code, "nothing is left to discard, so nothing is overwritten: %s", out)

	require.Contains(t, s.must("import", chargeOrder, archive, "--yes"), "imported 4 of 4 dead letters")
	require.Contains(t, s.must("import", chargeOrder, archive, "--yes"), "imported 0 of 4 dead letters")
	require.Equal(t, records(t, exported), records(t, s.must("export", chargeOrder)))
	audit, err := os.ReadFile(filepath.Join(s.dir, ".headrace", "dlq", "audit.jsonl"))
	require.NoError(t, err)
	require.Equal(t, 1+orders+orders, strings.Count(string(audit), "\n"))
	require.NotContains(t, string(audit), "ada@example.com", "the audit holds no payload")

	// An edit of the customer's address reaches the mail.
	first, _, _ := strings.Cut(exported, "\n")
	var rec struct{ ID, Payload string }
	require.NoError(t, json.Unmarshal([]byte(first), &rec))
	edited := filepath.Join(s.dir, "edited.json")
	require.NoError(t, os.WriteFile(edited, []byte(strings.ReplaceAll(s.must("show", chargeOrder, rec.ID, "--raw"), `"payment_token":"tok_ok"`, `"payment_token":"tok_declined"`)), 0o600))
	s.must("edit", chargeOrder, rec.ID, "--payload", edited, "--yes")
	require.Equal(t, orders, s.depth(chargeOrder))

	s.mendPayments(box)
	// Tried before the replay, the preparation works and the charge isn't made.
	require.Equal(t, []string{"cant_tell", "cant_tell", "cant_tell", "cant_tell"}, s.trial(1))
	require.Zero(t, s.count("orders", "/v1/orders?state=confirmed", "orders", 1))
	require.Equal(t, orders, s.depth(chargeOrder))

	s.must("replay", chargeOrder, "--yes")
	eventually(t, time.Minute, func() error {
		if n := s.count("orders", "/v1/orders?state=cancelled", "orders", 2); n != 1 {
			return fmt.Errorf("%d orders cancelled: the edited one is not declined yet", n)
		}
		return nil
	})
	eventually(t, time.Minute, func() error {
		if n := s.count("orders", "/v1/orders?state=confirmed", "orders", orders); n != orders-1 {
			return fmt.Errorf("%d orders confirmed", n)
		}
		return nil
	})

	// What comes back from the archive is known as handled, and has no effect.
	s.must("import", chargeOrder, archive, "--yes")
	require.Equal(t, []string{"already_done", "already_done", "already_done", "already_done"}, s.trial(0))
	require.Contains(t, s.must("replay", chargeOrder, "--yes", "--wait"), "none came back")
	require.Equal(t, orders-1, s.count("orders", "/v1/orders?state=confirmed", "orders", orders+1))
	var ledger struct{ Summary struct{ Captured int } }
	s.get("payments", "/v1/sandbox/charges?limit=0", &ledger)
	require.Equal(t, orders-1, ledger.Summary.Captured)
}

// trial tries payments' dead letters on the SQLite file that payments has, and
// returns the verdicts.
func (s *system) trial(code int) (verdicts []string) {
	s.t.Helper()
	out, got := s.run(bin(s.t, "headrace"), nil, "trial", chargeOrder, "--json", "--binary", bin(s.t, "payments"))
	var all []struct{ Verdict string }
	require.NoError(s.t, json.NewDecoder(strings.NewReader(out)).Decode(&all), out) // the error's line follows
	require.Equal(s.t, code, got, out)
	for _, v := range all {
		verdicts = append(verdicts, v.Verdict)
	}
	return verdicts
}

// records are an export's lines without what differs after an import.
func records(t *testing.T, export string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(export) {
		var r map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		delete(r, "position")
		delete(r, "dead_lettered_at")
		all = append(all, r)
	}
	return all
}
