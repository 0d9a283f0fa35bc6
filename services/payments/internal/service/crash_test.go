package service

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/frameworktest/programtest"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/httpgateway/providertest"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/sandbox"
)

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
	db := frameworktest.SQLite(t, Program().Files)
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
	case <-time.After(frameworktest.Timeout):
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
			return []string{"HEADRACE_DATABASE_DRIVER=postgres", "HEADRACE_DATABASE_DSN=" + testenv.PostgresDSN(t)}
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
				url := testenv.Redis(t).URL()
				b, err := redisstream.Open(t.Context(), redisstream.Config{URL: url})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, b.Close()) })
				h := onSystem(t, frameworktest.On(t, b))
				environ := append(dsn(t),
					"HEADRACE_BROKER_KIND=redisstream", "HEADRACE_BROKER_URL="+url,
					"HEADRACE_DELIVERY_LEASE=1s", "HEADRACE_PAYMENTS_GATEWAY_KIND=http", "HEADRACE_PAYMENTS_GATEWAY_HTTP_BASE_URL="+p.url,
					"HEADRACE_PAYMENTS_GATEWAY_HTTP_API_KEY="+providertest.APIKey, "HEADRACE_PAYMENTS_GATEWAY_HTTP_SIGNING_KEY="+providertest.SigningKey)
				first := programtest.Spawn(t, environ...)
				acted := p.keepBack(c.path)
				order, _ := h.place(sandbox.TokenOK)
				told := map[string]string{}
				listen := func(want int) {
					for len(told) < want {
						e := h.events.Any()
						require.Equal(t, order, e.Metadata.OrderingKey)
						told[e.ID] = e.Type // the relay may publish one twice
					}
				}
				if c.cancelBefore {
					listen(1)
					h.cancel(order)
				}
				await(t, acted)
				first.Kill()
				if c.cancelAfter {
					h.cancel(order)
				}
				second := programtest.Spawn(t, environ...)
				listen(len(c.told))
				for topic, handler := range map[string]string{"order.placed": "charge-order", "order.cancelled": "refund-order"} {
					h.Settled(topic, Name+"."+handler)
				}
				require.NoError(t, second.Terminate(), "SIGTERM drains and exits 0")

				var types []string
				for _, typ := range told {
					types = append(types, typ)
				}
				require.ElementsMatch(t, c.told, types)
				for _, e := range h.events.Rest() {
					require.Contains(t, told, e.ID, "another %s", e.Type)
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
