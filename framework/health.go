package framework

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// readyTimeout bounds each check of /readyz.
const readyTimeout = 2 * time.Second

// Health is what /readyz tells.
type Health struct {
	// Ready tells whether the service takes work.
	Ready bool `json:"ready"`
	// State is "new", "starting", "ready", "degraded" (it runs, and a check
	// fails), "draining" or "closed".
	State string `json:"state"`
	// Checks holds "ok" or what is wrong, by the name of the check.
	Checks map[string]string `json:"checks"`
}

// Health checks the database, the broker, the subscriptions and the outbox now.
// It takes 2 s at most.
func (a *App) Health(ctx context.Context) Health {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	a.mu.Lock()
	h := Health{State: a.state.String(), Checks: map[string]string{}}
	accepting := a.state == stateReady
	h.Checks["subscriptions"] = a.subscriptionsLocked()
	a.mu.Unlock()

	checks := map[string]func(context.Context) error{"broker": a.cfg.Broker.Ping}
	if a.cfg.DB != nil {
		checks["database"] = a.cfg.DB.PingContext
		checks["outbox"] = func(context.Context) error { return a.relay.Health() }
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for name, check := range checks {
		wg.Go(func() {
			text := "ok"
			if err := check(ctx); err != nil {
				text = err.Error()
			}
			mu.Lock()
			h.Checks[name] = text
			mu.Unlock()
		})
	}
	wg.Wait()

	h.Ready = accepting
	for _, text := range h.Checks {
		h.Ready = h.Ready && text == "ok"
	}
	if accepting && !h.Ready {
		h.State = "degraded"
	}
	return h
}

func (a *App) subscriptionsLocked() string {
	var down []string
	for name, why := range a.subs {
		if why != "" {
			down = append(down, name+": "+why)
		}
	}
	if len(down) == 0 {
		return "ok"
	}
	sort.Strings(down)
	return strings.Join(down, "; ")
}

func (a *App) setSubscription(handler, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.subs[handler] = why
}

func (s state) String() string {
	switch s {
	case stateStarting:
		return "starting"
	case stateReady:
		return "ready"
	case stateDraining:
		return "draining"
	case stateClosed:
		return "closed"
	default:
		return "new"
	}
}

// adminRoutes serves /healthz (the process lives), /readyz (it takes work) and
// /metrics.
func (a *App) adminRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		h := a.Health(r.Context())
		status := http.StatusOK
		if !h.Ready {
			status = http.StatusServiceUnavailable
		}
		body, err := json.Marshal(h)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_, _ = w.Write(append(body, '\n'))
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.cfg.Metrics, promhttp.HandlerOpts{
		Registry: a.cfg.Metrics, Timeout: 10 * time.Second, EnableOpenMetrics: true,
		ErrorLog: promLogger{a}, ErrorHandling: promhttp.ContinueOnError,
	}))
	return mux
}

type promLogger struct{ a *App }

func (l promLogger) Println(v ...any) {
	l.a.logger.Warn("metrics not gathered", "error", strings.TrimSpace(fmt.Sprintln(v...)))
}
