package cli

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/outbox"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
)

// call runs a command line and returns its exit code and what it printed.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = Main(t.Context(), args, &out, &errOut)
	return code, out.String(), errOut.String()
}

// parkedBox makes an outbox with parked rows 1 to 4 and one row that waits.
func parkedBox(t *testing.T, d sqltx.Dialect) (flags []string, db *sql.DB) {
	t.Helper()
	dsn := ""
	switch d {
	case sqltx.Postgres:
		dsn = testenv.PostgresDSN(t)
		db = testenv.Open(t, "pgx", dsn)
	case sqltx.MySQL:
		dsn = testenv.MySQLDSN(t)
		db = testenv.Open(t, "mysql", dsn)
	default:
		dsn = filepath.Join(t.TempDir(), "service.db")
		db = testenv.Open(t, "sqlite", "file:"+dsn+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	}
	require.NoError(t, schema.Ensure(t.Context(), db, d, slog.New(slog.DiscardHandler)))
	w, err := outbox.NewWriter(outbox.WriterConfig{Dialect: d})
	require.NoError(t, err)
	put := func(id, topic, key string) {
		m := message.NewMessage(id, []byte("x"))
		m.Metadata.Set("event_id", "event-"+id)
		m.Metadata.Set("ordering_key", key)
		require.NoError(t, w.Write(t.Context(), db, outbox.Message{Topic: topic, Message: m}))
	}
	put("a", "order.placed", "k1")
	put("b", "order.placed", "k2")
	put("c", "order.confirmed", "k1")
	put("d", "order.confirmed", "k2")
	_, err = db.Exec(d.Rebind(`UPDATE ` + schema.OutboxTable + ` SET state = 2, attempts = 3, parked_reason = 'too ` + "\x1b[31m" + ` large', parked_at = created_at`))
	require.NoError(t, err)
	put("e", "order.placed", "k3")
	return []string{"--driver", string(d), "--dsn", dsn}, db
}

// B11: an operator sees what is parked and why, brings rows back and gives them
// up, on every database; exit codes tell how it went.
func TestOutboxCommands(t *testing.T) {
	for _, d := range []sqltx.Dialect{sqltx.Postgres, sqltx.MySQL, sqltx.SQLite} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			where, db := parkedBox(t, d)
			run := func(args ...string) (int, string, string) {
				return call(t, append(append([]string{"outbox"}, args...), where...)...)
			}
			count := func(condition string) (n int) {
				require.NoError(t, db.QueryRow(`SELECT count(*) FROM `+schema.OutboxTable+` WHERE `+condition).Scan(&n))
				return n
			}

			code, out, _ := run("status")
			require.Zero(t, code)
			require.Regexp(t, string(d)+` +1 +0 +\S+ +4 `, out)
			code, out, _ = run("status", "--check", "--json")
			require.Equal(t, exitError, code)
			var st []boxStatus
			require.NoError(t, json.Unmarshal([]byte(out), &st))
			require.Equal(t, int64(4), st[0].Parked)
			require.Equal(t, int64(1), st[0].Backlog)

			code, out, _ = run("parked", "--topic", "order.placed", "--key", "k2")
			require.Zero(t, code)
			require.NotContains(t, out, "\x1b")
			require.Regexp(t, `(?m)^2 .*order\.placed +k2 +b +3 +too ·\[31m large$`, out)
			require.Equal(t, 2, strings.Count(out, "\n"))
			code, out, _ = run("parked", "--id", "event-c", "--json")
			require.Zero(t, code)
			var rows []outbox.ParkedRow
			require.NoError(t, json.Unmarshal([]byte(out), &rows))
			require.Len(t, rows, 1)
			require.Equal(t, int64(3), rows[0].Offset)
			_, out, _ = run("parked", "--reason", "nothing like it")
			require.Equal(t, "nothing is parked\n", out)

			for _, args := range [][]string{{"retry"}, {"retry", "--all", "--id", "a"}, {"discard"}, {"retry", "--all", "--since", "soon"}, {"parked", "--limit", "-1"}, {"parked", "x"}, {"discard", "--all"}} {
				code, _, errOut := run(args...)
				require.Equal(t, exitUsage, code, "%v: %s", args, errOut)
			}
			require.Equal(t, 4, count("state = 2"))

			code, out, _ = run("retry", "--key", "k1", "--dry-run")
			require.Zero(t, code)
			require.Equal(t, "would retry 2 parked rows\n", out)
			require.Equal(t, 4, count("state = 2"))
			code, out, _ = run("retry", "--key", "k1", "--json")
			require.Zero(t, code)
			require.JSONEq(t, `{"matched": 2, "retried": 2, "dry_run": false}`, out)
			require.Equal(t, 2, count("state = 1 AND attempts = 0 AND parked_reason IS NULL"))
			code, out, _ = run("discard", "--all", "--yes")
			require.Zero(t, code)
			require.Equal(t, "discarded 2 parked rows\n", out)
			require.Equal(t, 3, count("1=1"))
			code, _, _ = run("discard", "--all", "--yes")
			require.Zero(t, code, "nothing left to do is done")
		})
	}
}

// What can't be opened is said with the remedy, without the password, and makes
// no file.
func TestOutboxWhere(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none.db")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--driver", "sqlite", "--dsn", missing}, exitError, "no such file"},
		{[]string{"--driver", "sqlite", "--dsn", ":memory:"}, exitError, "ends with the process"},
		{[]string{"--driver", "oracle", "--dsn", "x"}, exitError, "postgres"},
		{[]string{"--driver", "postgres"}, exitUsage, "both --driver and --dsn"},
		{[]string{"--dir", t.TempDir()}, exitError, "--driver and --dsn"},
		{[]string{"--driver", "postgres", "--dsn", "postgres://bob:hunter2@127.0.0.1:1/x?connect_timeout=1"}, exitError, "postgres://bob@127.0.0.1:1"},
	} {
		if c.args[len(c.args)-1] == "postgres" && environHas("HEADRACE_DATABASE_DSN") {
			continue
		}
		code, _, errOut := call(t, append([]string{"outbox", "parked"}, c.args...)...)
		require.Equal(t, c.code, code, errOut)
		require.Contains(t, errOut, c.want)
		require.NotContains(t, errOut, "hunter2")
	}
	require.NoFileExists(t, missing)
	fresh := testenv.Open(t, "sqlite", "file:"+missing)
	require.NoError(t, fresh.Ping())
	_, err := fresh.Exec(`CREATE TABLE t (a)`)
	require.NoError(t, err)
	code, _, errOut := call(t, "outbox", "parked", "--driver", "sqlite", "--dsn", missing)
	require.Equal(t, exitError, code)
	require.Contains(t, errOut, "no outbox that this release knows")
}

func environHas(key string) bool { return lookup(environ(), key, "") != "" }

// watched is a log that a test waits on.
type watched struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *watched) find(re *regexp.Regexp) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return re.FindStringSubmatch(w.text.String())
}

// A relay of its own publishes another process's rows, is ready, shows metrics
// and ends well.
func TestRelayCommand(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	for _, d := range []sqltx.Dialect{sqltx.Postgres, sqltx.MySQL, sqltx.SQLite} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			where, db := parkedBox(t, d)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			log := &watched{}
			ended := make(chan int, 1)
			go func() {
				ended <- Main(ctx, append([]string{"relay", "--broker", "redisstream", "--url", server.URL(), "--prefix", string(d) + "."}, where...), log, log)
			}()
			var addr []string
			require.Eventually(t, func() bool {
				addr = log.find(regexp.MustCompile(`msg=ready.* admin=(\S+)`))
				return addr != nil
			}, 20*time.Second, 10*time.Millisecond, "it is ready")
			require.Eventually(t, func() bool {
				var n int
				require.NoError(t, db.QueryRow(`SELECT count(*) FROM `+schema.OutboxTable+` WHERE state <> 2`).Scan(&n))
				return n == 0
			}, 20*time.Second, 10*time.Millisecond, "the row is out")
			get := func(path string) string {
				resp, err := http.Get("http://" + addr[1] + path)
				require.NoError(t, err)
				defer resp.Body.Close()
				require.Equal(t, http.StatusOK, resp.StatusCode, path)
				body, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				return string(body)
			}
			require.Contains(t, get("/readyz"), `"outbox":"ok"`)
			require.Equal(t, "ok\n", get("/healthz"))
			require.Contains(t, get("/metrics"), "headrace_outbox_relayed_total 1")
			cancel()
			require.Equal(t, exitOK, <-ended)
		})
	}
	code, _, errOut := call(t, "relay", "--driver", "sqlite", "--dsn", "x")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errOut, "--broker and --url")
}
