package service

import (
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/frameworktest/programtest"
	"github.com/headrace-go/headrace/services/orders"
)

func TestProgramServesAndDrains(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "state", "orders.db")
	environ := []string{"HEADRACE_ENV=test", "HEADRACE_LOG_LEVEL=debug", "HEADRACE_DATABASE_DSN=" + file}
	running := programtest.Start(t, Program(), environ...)
	a := running.App
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
	_, err = programtest.Command(t, Program(), append(environ, "HEADRACE_ADMIN_ADDR="+admin), "healthcheck")
	require.NoError(t, err)
	require.NoError(t, running.Stop())
	_, err = programtest.Command(t, Program(), append(environ, "HEADRACE_ADMIN_ADDR="+admin), "healthcheck")
	require.Error(t, err)
	for _, private := range []string{"tok_ok", "ada@example.com", "+441632960961"} {
		require.NotContains(t, running.Log.String(), private, "no payload is logged")
	}

	// The order outlives the program.
	running = programtest.Start(t, Program(), environ...)
	a = running.App
	res, err = http.Get("http://" + a.HTTPAddr() + where)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.NoError(t, running.Stop())
}

// The service's part of B41: replicas that start at once on an empty database
// end with one schema, and a replica that may not migrate says what to do.
func TestReplicasStartAtOnceOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	programtest.Replicas(t, Program(), Name)
}

// profiles are the environments of a service and what each must be given:
// addresses and secrets, and nothing else.
var profiles = map[string][]string{
	"local": nil, "test": nil, "sqlite": nil, "aws-local": nil,
	"compose":    {"HEADRACE_BROKER_URL=redis://:s3cret@redis:6379/0", "HEADRACE_DATABASE_DSN=postgres://orders:s3cret@db/orders"},
	"staging":    {"HEADRACE_BROKER_URL=postgres://:s3cret@db/broker", "HEADRACE_DATABASE_DSN=postgres://orders:s3cret@db/orders"},
	"mariadb":    {"HEADRACE_BROKER_URL=mysql://:s3cret@db/broker", "HEADRACE_DATABASE_DSN=mysql://orders:s3cret@db/orders"},
	"production": {"HEADRACE_DATABASE_DSN=postgres://orders:s3cret@db/orders"},
}

func TestEveryProfileLoads(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(orders.Files, "config/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, len(profiles))
	for env, environ := range profiles {
		var s Settings
		require.NoError(t, config.Load(&s, config.Options{FS: orders.Files, Env: env, Environ: append([]string{}, environ...)}), env)
		require.Equal(t, env, s.Env)
		require.NotEmpty(t, s.Orders.Currencies)
	}
}

// B43, the service's own section.
func TestSettingsThatCannotWorkAreNamed(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ command, env, variable, named string }{
		"misspelt":          {"healthcheck", "test", "HEADRACE_ORDERS_MAX_LINE=3", "HEADRACE_ORDERS_MAX_LINE"},
		"duration":          {"healthcheck", "test", "HEADRACE_ORDERS_IDEMPOTENCY_RETENTION=30", "idempotency_retention"},
		"short retention":   {"healthcheck", "test", "HEADRACE_ORDERS_IDEMPOTENCY_RETENTION=1s", "idempotency_retention"},
		"no lines":          {"healthcheck", "test", "HEADRACE_ORDERS_MAX_LINES=0", "orders.max_lines"},
		"currency":          {"healthcheck", "test", "HEADRACE_ORDERS_CURRENCIES=EUR,euro", "orders.currencies"},
		"no currency":       {"healthcheck", "test", "HEADRACE_ORDERS_CURRENCIES=", "orders.currencies"},
		"no database":       {"healthcheck", "test", "HEADRACE_DATABASE_DRIVER=", "database.driver"},
		"no shared broker":  {"healthcheck", "staging", "HEADRACE_DATABASE_DSN=postgres://db/orders", "broker.url"},
		"unknown profile":   {"healthcheck", "nowhere", "HEADRACE_HTTP_ADDR=:1", "nowhere"},
		"unknown arguments": {"serv", "test", "HEADRACE_HTTP_ADDR=127.0.0.1:0", "serv"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := programtest.Command(t, Program(), []string{"HEADRACE_ENV=" + c.env, c.variable}, c.command)
			require.ErrorContains(t, err, c.named)
		})
	}
}
