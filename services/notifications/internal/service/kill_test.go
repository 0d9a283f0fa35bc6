//go:build unix

package service

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/frameworktest/programtest"
	"github.com/headrace-go/headrace/framework/localredis"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/notifications/internal/outbound/smtptest"
)

// The real program, killed between the send and the commit: SMTP can't be asked
// twice, so the customer gets one mail and a person is told; the folder knows
// the key, so the customer gets one mail and all is well.
func TestKillBetweenSendAndCommit(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "notifications")
	build := exec.Command("go", "build", "-tags=failpoint", "-o", program, "./cmd/notifications")
	build.Dir = filepath.Join("..", "..")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	t.Run("smtp", func(t *testing.T) {
		t.Parallel()
		server := smtptest.Start(t)
		k := newKill(t, program,
			"HEADRACE_NOTIFICATIONS_EMAIL_TRANSPORT=smtp", "HEADRACE_NOTIFICATIONS_EMAIL_SMTP_HOST="+server.Host,
			"HEADRACE_NOTIFICATIONS_EMAIL_SMTP_PORT="+strconv.Itoa(server.Port), "HEADRACE_NOTIFICATIONS_EMAIL_SMTP_TLS=none")
		k.killed()
		require.Len(t, server.Mails(), 1, "it died after the send")
		n := k.restarted("unknown")
		require.Equal(t, "outcome_unknown", n["reason"])
		require.Len(t, server.Mails(), 1)
	})
	t.Run("folder", func(t *testing.T) {
		t.Parallel()
		k := newKill(t, program)
		k.killed()
		n := k.restarted("sent")
		require.EqualValues(t, 2, n["attempts"])
		files, err := filepath.Glob(filepath.Join(k.dir, ".headrace", "mail", "*"))
		require.NoError(t, err)
		require.Len(t, files, 1)
	})
}

type kill struct {
	t       *testing.T
	program string
	dir     string
	http    string
	environ []string
	event   events.Envelope
}

// newKill has one confirmed order waiting in a Redis of the test's own.
func newKill(t *testing.T, program string, environ ...string) *kill {
	t.Helper()
	k := &kill{t: t, program: program, dir: t.TempDir(), http: freeAddr(t)}
	redis, err := localredis.Start(t.Context(), localredis.Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, redis.Close()) })
	k.environ = append([]string{
		"HEADRACE_ENV=local", "HEADRACE_BROKER_URL=" + redis.URL(), "HEADRACE_DELIVERY_LEASE=1s",
		"HEADRACE_HTTP_ADDR=" + k.http, "HEADRACE_ADMIN_ADDR=127.0.0.1:0",
	}, environ...)

	b, err := redisstream.Open(t.Context(), redisstream.Config{URL: redis.URL()})
	require.NoError(t, err)
	k.event = seal(t, confirmed("o-1"))
	payload, err := k.event.Encode()
	require.NoError(t, err)
	m := message.NewMessage(k.event.ID, payload)
	for name, value := range k.event.Headers() {
		m.Metadata.Set(name, value)
	}
	require.NoError(t, b.Publisher().Publish("order.confirmed", m))
	require.NoError(t, b.Close())
	return k
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func (k *kill) start(environ ...string) (*exec.Cmd, *programtest.Log) {
	k.t.Helper()
	log := &programtest.Log{}
	cmd := exec.Command(k.program)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = k.dir, append(environ, k.environ...), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(k.t, cmd.Start())
	return cmd, log
}

// wait awaits the program's end, which it brings about when it takes too long.
func (k *kill) wait(cmd *exec.Cmd, log *programtest.Log) {
	k.t.Helper()
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(frameworktest.Timeout):
		_ = cmd.Process.Kill()
		<-ended
		k.t.Fatalf("the program did not end:\n%s", log)
	}
}

// killed runs the program until it kills itself after the call.
func (k *kill) killed() {
	k.t.Helper()
	cmd, log := k.start("HEADRACE_FAILPOINT=handler.called.order-confirmed-email")
	k.wait(cmd, log)
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(k.t, ok && status.Signaled() && status.Signal() == syscall.SIGKILL, "ended with %s:\n%s", cmd.ProcessState, log)
}

// restarted runs the program again until the notification is in the state.
func (k *kill) restarted(state string) map[string]any {
	k.t.Helper()
	cmd, log := k.start()
	ctx, cancel := context.WithTimeout(k.t.Context(), frameworktest.Timeout)
	defer cancel()
	var page struct {
		Notifications []map[string]any `json:"notifications"`
	}
	for len(page.Notifications) == 0 {
		if err := k.get(ctx, "/v1/notifications?state="+state, &page); err != nil && ctx.Err() != nil {
			_ = cmd.Process.Kill()
			k.t.Fatalf("no notification is %s: %v\n%s", state, err, log)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	require.NoError(k.t, cmd.Process.Signal(os.Interrupt))
	k.wait(cmd, log)
	require.True(k.t, cmd.ProcessState.Success(), "ended with %s:\n%s", cmd.ProcessState, log)
	require.Len(k.t, page.Notifications, 1)
	require.Equal(k.t, k.event.ID, page.Notifications[0]["event_id"])
	return page.Notifications[0]
}

func (k *kill) get(ctx context.Context, path string, target any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+k.http+path, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s", res.Status)
	}
	return json.NewDecoder(res.Body).Decode(target)
}
