package service

import (
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/frameworktest/programtest"
	"github.com/headrace-go/headrace/services/payments"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/httpgateway"
)

func TestProgramServesAndDrains(t *testing.T) {
	t.Parallel()
	environ := []string{"HEADRACE_ENV=test", "HEADRACE_DATABASE_DSN=" + filepath.Join(t.TempDir(), "state", "payments.db")}
	running := programtest.Start(t, Program(), environ...)
	a := running.App
	for _, path := range []string{"/v1/payments?order_id=none", "/v1/sandbox/charges"} {
		res, err := http.Get("http://" + a.HTTPAddr() + path)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusOK, res.StatusCode, path)
	}
	res, err := http.Get("http://" + a.AdminAddr() + "/metrics")
	require.NoError(t, err)
	metrics, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Contains(t, string(metrics), `route="/v1/payments"`, "requests are counted by route")
	require.Contains(t, string(metrics), `route="/v1/sandbox/charges"`)
	healthcheck := func() error {
		_, err := programtest.Command(t, Program(), append(environ, "HEADRACE_ADMIN_ADDR="+a.AdminAddr()), "healthcheck")
		return err
	}
	require.NoError(t, healthcheck())
	require.NoError(t, running.Stop())
	require.Error(t, healthcheck())
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
	"compose": {"HEADRACE_BROKER_URL=redis://:s3cret@redis:6379/0", "HEADRACE_DATABASE_DSN=postgres://payments:s3cret@db/payments"},
	"staging": {"HEADRACE_BROKER_URL=postgres://:s3cret@db/broker", "HEADRACE_DATABASE_DSN=postgres://payments:s3cret@db/payments"},
	"mariadb": {"HEADRACE_BROKER_URL=mysql://:s3cret@db/broker", "HEADRACE_DATABASE_DSN=mysql://payments:s3cret@db/payments"},
	"production": {"HEADRACE_DATABASE_DSN=postgres://payments:s3cret@db/payments",
		"HEADRACE_PAYMENTS_GATEWAY_HTTP_BASE_URL=https://pay.example.com", "HEADRACE_PAYMENTS_GATEWAY_HTTP_API_KEY=s3cret"},
}

func TestEveryProfileLoads(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(payments.Files, "config/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, len(profiles))
	for env, environ := range profiles {
		var s Settings
		require.NoError(t, config.Load(&s, config.Options{FS: payments.Files, Env: env, Environ: append([]string{}, environ...)}), env)
		require.Equal(t, env, s.Env)
		require.Equal(t, env == "production", s.Payments.Gateway.Kind == GatewayHTTP, env)
	}
}

func TestTheHTTPGatewayIsOpenedFromTheProfile(t *testing.T) {
	t.Parallel()
	var s Settings
	require.NoError(t, config.Load(&s, config.Options{FS: payments.Files, Env: "production", Environ: []string{
		"HEADRACE_DATABASE_DSN=postgres://db/payments",
		"HEADRACE_PAYMENTS_GATEWAY_HTTP_BASE_URL=https://pay.example.com", "HEADRACE_PAYMENTS_GATEWAY_HTTP_API_KEY=s3cret",
	}}))
	g, err := OpenGateway(t.Context(), s.Payments.Gateway, nil, "", nil)
	require.NoError(t, err)
	require.IsType(t, &httpgateway.Gateway{}, g)
	_, err = OpenGateway(t.Context(), Gateway{Kind: "cash"}, nil, "", nil)
	require.ErrorContains(t, err, `"cash"`)
}

// B43, the service's own section.
func TestSettingsThatCannotWorkAreNamed(t *testing.T) {
	t.Parallel()
	production := []string{"HEADRACE_DATABASE_DSN=postgres://db/payments"}
	cases := map[string]struct {
		env, named string
		variables  []string
	}{
		"misspelt":               {"test", "HEADRACE_PAYMENTS_MAX_ORDER_AG", []string{"HEADRACE_PAYMENTS_MAX_ORDER_AG=1h"}},
		"duration":               {"test", "max_order_age", []string{"HEADRACE_PAYMENTS_MAX_ORDER_AGE=30"}},
		"negative age":           {"test", "payments.max_order_age", []string{"HEADRACE_PAYMENTS_MAX_ORDER_AGE=-1h"}},
		"no timeout":             {"test", "payments.gateway.timeout", []string{"HEADRACE_PAYMENTS_GATEWAY_TIMEOUT=0s"}},
		"unknown gateway":        {"test", "payments.gateway.kind", []string{"HEADRACE_PAYMENTS_GATEWAY_KIND=cash"}},
		"no provider":            {"test", "payments.gateway.http.base_url", []string{"HEADRACE_PAYMENTS_GATEWAY_KIND=http"}},
		"no key":                 {"production", "payments.gateway.http.api_key", append([]string{"HEADRACE_PAYMENTS_GATEWAY_HTTP_BASE_URL=https://x"}, production...)},
		"no money in production": {"production", "moves no money", append([]string{"HEADRACE_PAYMENTS_GATEWAY_KIND=sandbox"}, production...)},
		"negative slow":          {"test", "payments.gateway.sandbox.slow", []string{"HEADRACE_PAYMENTS_GATEWAY_SANDBOX_SLOW=-1s"}},
		"negative wait":          {"test", "payments.gateway.sandbox.retry_after", []string{"HEADRACE_PAYMENTS_GATEWAY_SANDBOX_RETRY_AFTER=-1s"}},
		"no database":            {"test", "database.driver", []string{"HEADRACE_DATABASE_DRIVER="}},
		"no shared broker":       {"staging", "broker.url", production},
		"unknown profile":        {"live", "live", nil},
		"unknown arguments":      {"test", "serv", nil},
		"a wrong address": {"production", "BaseURL", append([]string{
			"HEADRACE_PAYMENTS_GATEWAY_HTTP_BASE_URL=pay.example.com", "HEADRACE_PAYMENTS_GATEWAY_HTTP_API_KEY=s3cret",
		}, production...)},
		"a negative breaker": {"production", "BreakerOpen", append([]string{
			"HEADRACE_PAYMENTS_GATEWAY_HTTP_BASE_URL=https://x", "HEADRACE_PAYMENTS_GATEWAY_HTTP_API_KEY=s3cret",
			"HEADRACE_PAYMENTS_GATEWAY_HTTP_BREAKER_OPEN=-1s",
		}, production...)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command := "healthcheck"
			if name == "unknown arguments" {
				command = "serv"
			}
			_, err := programtest.Command(t, Program(), append([]string{"HEADRACE_ENV=" + c.env}, c.variables...), command)
			require.ErrorContains(t, err, c.named)
			require.NotContains(t, err.Error(), "s3cret")
		})
	}
}
