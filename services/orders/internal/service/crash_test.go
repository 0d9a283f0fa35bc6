package service

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/services/orders/internal/testdb"
)

// startProgram starts the service as a process of its own and returns its
// address.
func startProgram(t *testing.T, environ ...string) (*exec.Cmd, string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append([]string{asProgram + "=1", "HEADRACE_ENV=test"}, environ...)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	ready := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		ready <- line
	}()
	select {
	case line := <-ready:
		addr, ok := strings.CutPrefix(strings.TrimSpace(line), "ready ")
		require.True(t, ok, "the program said %q", line)
		return cmd, "http://" + addr
	case <-time.After(patience):
		t.Fatal("the program is not ready")
		return nil, ""
	}
}

// A SIGKILL among requests with keys: whatever had an answer, or not, sending
// each again gives one order a key.
func TestIdempotencyKeysSurviveSIGKILL(t *testing.T) {
	t.Parallel()
	dsns := map[string]func(testing.TB) []string{
		"sqlite": func(t testing.TB) []string {
			return []string{"HEADRACE_DATABASE_DSN=" + filepath.Join(t.TempDir(), "orders.db")}
		},
		"postgres": func(t testing.TB) []string {
			return []string{"HEADRACE_DATABASE_DRIVER=postgres", "HEADRACE_DATABASE_DSN=" + testdb.PostgresDSN(t)}
		},
	}
	for name, environ := range dsns {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := environ(t)
			cmd, base := startProgram(t, env...)
			const n, killAfter = 60, 20
			send := func(base string, i int) (response, error) {
				h := harness{t: t, base: base, routes: document(t)}
				return h.try(http.MethodPost, "/v1/orders", orderBody, header{"Idempotency-Key", fmt.Sprint("key-", i)})
			}
			answered := make(chan struct{}, n)
			first := make([]response, n)
			var wg sync.WaitGroup
			slots := make(chan struct{}, 4)
			for i := range n {
				wg.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					if r, err := send(base, i); err == nil {
						first[i] = r
						answered <- struct{}{}
					}
				})
			}
			for range killAfter {
				select {
				case <-answered:
				case <-time.After(patience):
					t.Fatal("no answers")
				}
			}
			require.NoError(t, cmd.Process.Kill())
			wg.Wait()

			second, base := startProgram(t, env...)
			ids := map[string]bool{}
			lost := 0
			for i := range n {
				r, err := send(base, i)
				require.NoError(t, err)
				require.Equal(t, http.StatusCreated, r.status, "%s", r.body)
				if first[i].status != 0 {
					require.Equal(t, string(first[i].body), string(r.body), "the answer changed")
				} else {
					lost++
				}
				ids[r.object(t)["id"].(string)] = true
			}
			require.NotZero(t, lost, "the kill came after the last request")
			require.Len(t, ids, n)
			h := harness{t: t, base: base, routes: document(t)}
			page := h.call(http.MethodGet, "/v1/orders?limit=100", "").object(t)
			require.Len(t, page["orders"], n, "one order a key")

			require.NoError(t, second.Process.Signal(syscall.SIGTERM))
			require.NoError(t, second.Wait(), "SIGTERM drains and exits 0")
		})
	}
}
