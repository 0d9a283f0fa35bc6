package service

import (
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/frameworktest/apitest"
	"github.com/headrace-go/headrace/framework/frameworktest/programtest"
	"github.com/headrace-go/headrace/framework/testenv"
)

// A SIGKILL among requests with keys: whatever had an answer, or not, sending
// each again gives one order a key.
func TestIdempotencyKeysSurviveSIGKILL(t *testing.T) {
	t.Parallel()
	dsns := map[string]func(testing.TB) []string{
		"sqlite": func(t testing.TB) []string {
			return []string{"HEADRACE_DATABASE_DSN=" + filepath.Join(t.TempDir(), "orders.db")}
		},
		"postgres": func(t testing.TB) []string {
			return []string{"HEADRACE_DATABASE_DRIVER=postgres", "HEADRACE_DATABASE_DSN=" + testenv.PostgresDSN(t)}
		},
	}
	for name, environ := range dsns {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := environ(t)
			first := programtest.Spawn(t, env...)
			api := client(t, first.URL)
			const n, killAfter = 60, 20
			send := func(i int) (apitest.Response, error) {
				return api.Try(http.MethodPost, "/v1/orders", orderBody, apitest.With("Idempotency-Key", fmt.Sprint("key-", i)))
			}
			answered := make(chan struct{}, n)
			answers := make([]apitest.Response, n)
			var wg sync.WaitGroup
			slots := make(chan struct{}, 4)
			for i := range n {
				wg.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					if r, err := send(i); err == nil {
						answers[i] = r
						answered <- struct{}{}
					}
				})
			}
			for range killAfter {
				select {
				case <-answered:
				case <-time.After(frameworktest.Timeout):
					t.Fatal("no answers")
				}
			}
			first.Kill()
			wg.Wait()

			second := programtest.Spawn(t, env...)
			api = api.At(second.URL)
			ids := map[string]bool{}
			lost := 0
			for i := range n {
				r, err := send(i)
				require.NoError(t, err)
				require.Equal(t, http.StatusCreated, r.Status, "%s", r.Body)
				if answers[i].Status != 0 {
					require.Equal(t, string(answers[i].Body), string(r.Body), "the answer changed")
				} else {
					lost++
				}
				ids[r.Object(t)["id"].(string)] = true
			}
			require.NotZero(t, lost, "the kill came after the last request")
			require.Len(t, ids, n)
			page := api.Call(http.MethodGet, "/v1/orders?limit=100", "").Object(t)
			require.Len(t, page["orders"], n, "one order a key")

			require.NoError(t, second.Terminate(), "SIGTERM drains and exits 0")
		})
	}
}
