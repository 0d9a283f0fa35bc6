package service

import (
	"bufio"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/httpgateway/providertest"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/sandbox"
	"github.com/headrace-go/headrace/services/payments/internal/testdb"
)

// startProgram starts the service as a process of its own and awaits that it is
// ready.
func startProgram(t *testing.T, environ ...string) *exec.Cmd {
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
		require.True(t, strings.HasPrefix(line, "ready "), "the program said %q", line)
	case <-time.After(patience):
		t.Fatal("the program is not ready")
	}
	return cmd
}

// provider is a payment provider in the test's process, with books that no crash
// of the service touches. It can let one request take effect and keep its answer
// back: the service that is killed then has moved money and does not know it.
type provider struct {
	books *sandbox.Gateway
	url   string

	mu     sync.Mutex
	silent string // the path whose next answer is kept back
	acted  chan struct{}
}

func startProvider(t *testing.T) *provider {
	t.Helper()
	db := testdb.SQLite(t)
	books, err := OpenGateway(t.Context(), settings(t).Payments.Gateway, db.DB, db.Dialect, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	p := &provider{books: books.(*sandbox.Gateway)}
	inner := providertest.Handler(p.books)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		acted := p.acted
		silent := p.silent == r.URL.Path
		if silent {
			p.silent = ""
		}
		p.mu.Unlock()
		if !silent {
			inner.ServeHTTP(w, r)
			return
		}
		inner.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithoutCancel(r.Context())))
		close(acted)
		<-r.Context().Done() // until the service is gone
	}))
	t.Cleanup(s.Close)
	p.url = s.URL
	return p
}

// keepBack keeps back the answer to the next request to path; the channel is
// closed once the request has taken effect.
func (p *provider) keepBack(path string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent, p.acted = path, make(chan struct{})
	return p.acted
}

func await(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("it did not happen")
	}
}

// TestSIGKILLBetweenTheMoneyAndTheBooks kills the real process after the provider
// has moved money and before the service could write that down. Money is moved
// once all the same, also when the order's cancellation is what comes next.
func TestSIGKILLBetweenTheMoneyAndTheBooks(t *testing.T) {
	t.Parallel()
	dsns := map[string]func(testing.TB) []string{
		"sqlite": func(t testing.TB) []string {
			return []string{"HEADRACE_DATABASE_DSN=" + filepath.Join(t.TempDir(), "payments.db")}
		},
		"postgres": func(t testing.TB) []string {
			return []string{"HEADRACE_DATABASE_DRIVER=postgres", "HEADRACE_DATABASE_DSN=" + testdb.PostgresDSN(t)}
		},
	}
	cases := map[string]struct {
		path         string
		cancelBefore bool // the kill comes in the refund
		cancelAfter  bool
		want         sandbox.Summary
		told         []string
	}{
		"charge": {
			path: "/v1/charges",
			want: sandbox.Summary{ChargeRequests: 2, Captured: 1, OrdersCharged: 1},
			told: []string{"payment.captured"},
		},
		"charge, then cancelled": {
			path: "/v1/charges", cancelAfter: true,
			want: sandbox.Summary{Captured: 1, Refunded: 1, OrdersCharged: 1},
			told: []string{"payment.captured", "payment.refunded"},
		},
		"refund": {
			path: "/v1/refunds", cancelBefore: true,
			want: sandbox.Summary{ChargeRequests: 1, Captured: 1, Refunded: 1, OrdersCharged: 1},
			told: []string{"payment.captured", "payment.refunded"},
		},
	}
	for dialect, dsn := range dsns {
		for name, c := range cases {
			t.Run(dialect+"/"+name, func(t *testing.T) {
				t.Parallel()
				p := startProvider(t)
				b, url, prefix := openRedis(t)
				h := &harness{t: t, broker: b}
				h.events = h.listen("payment.captured", "payment.failed", "payment.refunded")
				environ := append(dsn(t),
					"HEADRACE_BROKER_KIND=redisstream", "HEADRACE_BROKER_URL="+url, "HEADRACE_BROKER_PREFIX="+prefix,
					"HEADRACE_DELIVERY_LEASE=1s", "HEADRACE_PAYMENTS_GATEWAY_KIND=http", "HEADRACE_PAYMENTS_GATEWAY_HTTP_BASE_URL="+p.url,
					"HEADRACE_PAYMENTS_GATEWAY_HTTP_API_KEY="+providertest.APIKey, "HEADRACE_PAYMENTS_GATEWAY_HTTP_SIGNING_KEY="+providertest.SigningKey)
				first := startProgram(t, environ...)
				acted := p.keepBack(c.path)
				order, _ := h.place(sandbox.TokenOK)
				told := map[string]string{}
				listen := func(want int) {
					for len(told) < want {
						select {
						case e := <-h.events:
							require.Equal(t, order, e.Metadata.OrderingKey)
							told[e.ID] = e.Type // the relay may publish one twice
						case <-time.After(patience):
							t.Fatalf("only %v was told", told)
						}
					}
				}
				if c.cancelBefore {
					listen(1)
					h.cancel(order)
				}
				await(t, acted)
				require.NoError(t, first.Process.Kill())
				_ = first.Wait()
				if c.cancelAfter {
					h.cancel(order)
				}
				second := startProgram(t, environ...)
				listen(len(c.told))
				for topic, handler := range map[string]string{"order.placed": "charge-order", "order.cancelled": "refund-order"} {
					h.settled(topic, handler)
				}
				require.NoError(t, second.Process.Signal(syscall.SIGTERM))
				require.NoError(t, second.Wait(), "SIGTERM drains and exits 0")

				var types []string
				for _, typ := range told {
					types = append(types, typ)
				}
				require.ElementsMatch(t, c.told, types)
				select {
				case e := <-h.events:
					require.Contains(t, told, e.ID, "another %s", e.Type)
				default:
				}
				got, err := p.books.Summarize(t.Context(), order)
				require.NoError(t, err)
				if c.want.ChargeRequests == 0 {
					// Whether the charge or the cancellation came again first is open.
					got.ChargeRequests = 0
				}
				require.Equal(t, c.want, got)
			})
		}
	}
}

// openRedis returns a broker on the shared Redis, under a prefix of the test's
// own.
func openRedis(t *testing.T) (b broker.Broker, url, prefix string) {
	t.Helper()
	url = os.Getenv("HEADRACE_TEST_REDIS")
	if url == "" {
		url = "redis://127.0.0.1:6379/0"
	}
	prefix = "payments-test-" + events.NewID() + ":"
	opened, err := redisstream.Open(t.Context(), redisstream.Config{URL: url, Prefix: prefix})
	if err != nil {
		if os.Getenv("HEADRACE_TEST_REQUIRE") == "all" {
			t.Fatalf("Redis is required (HEADRACE_TEST_REQUIRE=all) and not there: %v", err)
		}
		t.Skipf("did not run: no Redis: %v", err)
	}
	t.Cleanup(func() {
		require.NoError(t, opened.Close())
		options, err := redis.ParseURL(url)
		require.NoError(t, err)
		client := redis.NewClient(options)
		defer client.Close()
		keys := client.Scan(context.Background(), 0, "*"+prefix+"*", 1000).Iterator()
		for keys.Next(context.Background()) {
			require.NoError(t, client.Del(context.Background(), keys.Val()).Err())
		}
		require.NoError(t, keys.Err())
	})
	return opened, url, prefix
}
