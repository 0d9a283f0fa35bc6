package service

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/migrate"
	"github.com/headrace-go/headrace/services/orders"
	"github.com/headrace-go/headrace/services/orders/internal/testdb"
)

// logBuffer is a writer for many goroutines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// run runs the program and returns once it is ready; stop ends and awaits it.
func run(t *testing.T, environ ...string) (a *framework.App, stop func() error, log *logBuffer) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	started, ended := make(chan *framework.App, 1), make(chan error, 1)
	log = &logBuffer{}
	m := Main{Environ: environ, Stdout: log, Started: func(a *framework.App) { started <- a }}
	go func() { ended <- m.Run(ctx) }()
	select {
	case a = <-started:
	case err := <-ended:
		t.Fatalf("the program ended: %v\n%s", err, log)
	case <-time.After(patience):
		t.Fatalf("the program is not ready\n%s", log)
	}
	return a, func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			t.Fatalf("the program does not end\n%s", log)
			return nil
		}
	}, log
}

func TestMainServesAndDrains(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "state", "orders.db")
	environ := []string{"HEADRACE_ENV=test", "HEADRACE_LOG_LEVEL=debug", "HEADRACE_DATABASE_DSN=" + file}
	a, stop, log := run(t, environ...)
	res, err := http.Post("http://"+a.HTTPAddr()+"/v1/orders", "application/json", strings.NewReader(orderBody))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusCreated, res.StatusCode)
	where := res.Header.Get("Location")

	admin := a.AdminAddr()
	res, err = http.Get("http://" + admin + "/metrics")
	require.NoError(t, err)
	metrics, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Contains(t, string(metrics), `route="/v1/orders"`, "requests are counted by route")
	require.NoError(t, Main{Args: []string{"healthcheck"}, Environ: append(environ, "HEADRACE_ADMIN_ADDR="+admin), Stdout: log}.Run(t.Context()))
	require.NoError(t, stop())
	require.Error(t, Main{Args: []string{"healthcheck"}, Environ: append(environ, "HEADRACE_ADMIN_ADDR="+admin), Stdout: log}.Run(t.Context()))
	for _, private := range []string{"tok_ok", "ada@example.com", "+441632960961"} {
		require.NotContains(t, log.String(), private, "no payload is logged")
	}

	// The order outlives the program.
	a, stop, _ = run(t, environ...)
	res, err = http.Get("http://" + a.HTTPAddr() + where)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.NoError(t, stop())
}

// The service's part of B41: replicas that start at once on an empty database
// end with one schema, and a replica that may not migrate says what to do.
func TestReplicasStartAtOnceOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	environ := []string{"HEADRACE_ENV=test", "HEADRACE_DATABASE_DRIVER=postgres", "HEADRACE_DATABASE_DSN=" + testdb.PostgresDSN(t)}

	err := Main{Environ: append(environ, "HEADRACE_ORDERS_MIGRATE=false"), Stdout: &logBuffer{}}.Run(t.Context())
	require.ErrorIs(t, err, migrate.ErrPending)
	require.ErrorContains(t, err, "orders migrate")

	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if err := (Main{Args: []string{"migrate"}, Environ: environ, Stdout: &logBuffer{}}).Run(t.Context()); err != nil {
				t.Errorf("migrate: %v", err)
			}
		})
	}
	wg.Wait()
	_, stop, _ := run(t, append(environ, "HEADRACE_ORDERS_MIGRATE=false")...)
	require.NoError(t, stop())
}

func TestEveryProfileLoads(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(orders.Files, "config/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 4)
	for _, file := range files {
		env := strings.TrimSuffix(filepath.Base(file), ".yaml")
		var s Settings
		err := config.Load(&s, config.Options{FS: orders.Files, Env: env, Environ: []string{
			"HEADRACE_DATABASE_DSN=postgres://orders:s3cret@db/orders", "HEADRACE_BROKER_URL=redis://:s3cret@redis:6379/0",
		}})
		require.NoError(t, err, env)
		require.Equal(t, env, s.Env)
		require.NotEmpty(t, s.Orders.Currencies)
	}
}

// B43, the service's own section.
func TestSettingsThatCannotWorkAreNamed(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ env, variable, named string }{
		"misspelt":          {"test", "HEADRACE_ORDERS_MAX_LINE=3", "HEADRACE_ORDERS_MAX_LINE"},
		"duration":          {"test", "HEADRACE_ORDERS_IDEMPOTENCY_RETENTION=30", "idempotency_retention"},
		"short retention":   {"test", "HEADRACE_ORDERS_IDEMPOTENCY_RETENTION=1s", "idempotency_retention"},
		"no lines":          {"test", "HEADRACE_ORDERS_MAX_LINES=0", "orders.max_lines"},
		"currency":          {"test", "HEADRACE_ORDERS_CURRENCIES=EUR,euro", "orders.currencies"},
		"no currency":       {"test", "HEADRACE_ORDERS_CURRENCIES=", "orders.currencies"},
		"no database":       {"test", "HEADRACE_DATABASE_DRIVER=", "database.driver"},
		"no shared broker":  {"production", "HEADRACE_DATABASE_DSN=postgres://db/orders", "broker.url"},
		"unknown profile":   {"nowhere", "HEADRACE_HTTP_ADDR=:1", "nowhere"},
		"unknown arguments": {"test", "HEADRACE_HTTP_ADDR=127.0.0.1:0", "serv"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := Main{Args: []string{"serv"}, Environ: []string{"HEADRACE_ENV=" + c.env, c.variable}, Stdout: &logBuffer{}}
			require.ErrorContains(t, m.Run(t.Context()), c.named)
		})
	}
}
