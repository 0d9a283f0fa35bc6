package config_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
)

func explain(t *testing.T, environ ...string) (*config.Explanation, map[string]config.Setting) {
	t.Helper()
	var s settings
	x, err := config.Explain(&s, config.Options{FS: fstest.MapFS{"config/local.yaml": {Data: []byte(localYAML)}}, Environ: environ})
	require.NoError(t, err)
	byKey := map[string]config.Setting{}
	for _, setting := range x.Settings {
		byKey[setting.Key] = setting
	}
	return x, byKey
}

func TestExplainTellsValueAndSource(t *testing.T) {
	t.Parallel()
	x, got := explain(t, "HEADRACE_GATEWAY_SANDBOX=false", "HEADRACE_GATEWAY_KEY=s3cret", "HEADRACE_GATEWAY_TIMEOUT=90s")
	require.NoError(t, x.Faults)
	require.Equal(t, "local", x.Env)
	require.Equal(t, "config/local.yaml", x.File)
	var s settings
	keys, err := config.Keys(&s)
	require.NoError(t, err)
	require.Len(t, x.Settings, len(keys), "no key is left out")
	for key, want := range map[string]config.Setting{
		"http.addr":                {Env: "HEADRACE_HTTP_ADDR", Type: "string", Value: "127.0.0.1:8082", Source: config.FromFile},
		"gateway.sandbox":          {Env: "HEADRACE_GATEWAY_SANDBOX", Type: "bool", Value: false, Source: config.FromEnvironment},
		"gateway.timeout":          {Env: "HEADRACE_GATEWAY_TIMEOUT", Type: "duration", Value: "1m30s", Source: config.FromEnvironment},
		"gateway.key":              {Env: "HEADRACE_GATEWAY_KEY", Type: "secret", Value: config.Redacted, Source: config.FromEnvironment},
		"gateway.regions":          {Env: "HEADRACE_GATEWAY_REGIONS", Type: "list", Value: []string{"eu", "us"}, Source: config.FromFile},
		"delivery.max_attempts":    {Env: "HEADRACE_DELIVERY_MAX_ATTEMPTS", Type: "integer", Value: 5, Source: config.FromDefault},
		"database.busy_timeout":    {Env: "HEADRACE_DATABASE_BUSY_TIMEOUT", Type: "duration", Value: "5s", Source: config.FromDefault},
		"delivery.handler_timeout": {Env: "HEADRACE_DELIVERY_HANDLER_TIMEOUT", Type: "duration", Value: "10s", Source: config.FromFile},
	} {
		want.Key = key
		require.Equal(t, want, got[key])
	}
	raw, err := json.Marshal(x.Settings)
	require.NoError(t, err)
	require.NotContains(t, string(raw), "s3cret")
}

// A profile that Load refuses is explained all the same.
func TestExplainOfAProfileThatCannotWork(t *testing.T) {
	t.Parallel()
	x, got := explain(t, "HEADRACE_GATEWAY_RETRIES=10", "HEADRACE_GATEWAY_TIMEOUT=30", "HEADRACE_GATEWAI=1", "HEADRACE_DATABASE_DRIVER=postgres", "HEADRACE_DATABASE_DSN=")
	for _, named := range []string{"gateway.retries is 10", "gateway.timeout", "HEADRACE_GATEWAI", "database.dsn"} {
		require.ErrorContains(t, x.Faults, named)
	}
	require.Equal(t, 10, got["gateway.retries"].Value)
	require.Equal(t, config.FromDefault, got["gateway.timeout"].Source, "what can't be read has no effect")

	x, _ = explain(t, "HEADRACE_ENV=nowhere", "HEADRACE_GATEWAI=1")
	require.Empty(t, x.File)
	require.Equal(t, &config.UnknownProfileError{Env: "nowhere", Place: "the embedded profiles", Known: []string{"local"}}, x.Faults)

	_, err := config.Explain(7, config.Options{})
	require.Error(t, err)
}

func ExampleExplain() {
	var s struct {
		config.Profile `koanf:",squash"`
		Gateway        struct {
			URL string        `koanf:"url"`
			Key config.Secret `koanf:"key"`
		} `koanf:"gateway"`
	}
	x, err := config.Explain(&s, config.Options{
		FS:      fstest.MapFS{"config/local.yaml": {Data: []byte("gateway: {url: https://pay.example}")}},
		Environ: []string{"HEADRACE_GATEWAY_KEY=s3cret"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range x.Settings {
		if s.Key == "gateway.key" || s.Key == "gateway.url" || s.Key == "log.level" {
			fmt.Println(s.Key, s.Env, s.Value, s.Source)
		}
	}
	// Output:
	// gateway.key HEADRACE_GATEWAY_KEY [redacted] environment
	// gateway.url HEADRACE_GATEWAY_URL https://pay.example file
	// log.level HEADRACE_LOG_LEVEL info default
}
