package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/headrace-go/headrace/framework/config"
)

type gateway struct {
	URL      string        `koanf:"url"`
	Key      config.Secret `koanf:"key"`
	Timeout  time.Duration `koanf:"timeout"`
	Retries  int           `koanf:"retries"`
	Sandbox  bool          `koanf:"sandbox"`
	Regions  []string      `koanf:"regions"`
	Ports    []uint16      `koanf:"ports"`
	Labels   map[string]string
	Share    float64
	SMTPHost string
}

type settings struct {
	config.Profile `koanf:",squash"`
	Gateway        gateway `koanf:"gateway"`
}

func (s settings) Validate() error {
	if s.Gateway.Retries > 9 {
		return fmt.Errorf("gateway.retries is %d: it must be 9 or less", s.Gateway.Retries)
	}
	return nil
}

const localYAML = `
http:
  addr: 127.0.0.1:8082
broker:
  kind: redisstream
database:
  driver: sqlite
  dsn: .headrace/payments.db
delivery:
  handler_timeout: 10s
gateway:
  url: https://gateway.example
  sandbox: true
  retries: 3
  regions: [eu, us]
  ports: [1, 2]
  labels: {team: core}
  smtp_host: mail
`

func profiles(local string) fstest.MapFS {
	return fstest.MapFS{
		"config/local.yaml":      {Data: []byte(local)},
		"config/production.yaml": {Data: []byte("log: {level: warn}\n")},
	}
}

func load(t *testing.T, local string, environ ...string) (settings, error) {
	t.Helper()
	var s settings
	err := config.Load(&s, config.Options{FS: profiles(local), Environ: append([]string{"PATH=/bin"}, environ...)})
	return s, err
}

func TestFileOverDefaults(t *testing.T) {
	t.Parallel()
	s, err := load(t, localYAML)
	require.NoError(t, err)
	require.Equal(t, "local", s.Env)
	require.Equal(t, "127.0.0.1:8082", s.HTTP.Addr)
	require.Equal(t, "127.0.0.1:9080", s.Admin.Addr, "the default stays")
	require.Equal(t, 10*time.Second, s.Delivery.HandlerTimeout)
	require.Equal(t, 5, s.Delivery.MaxAttempts)
	require.Equal(t, gateway{
		URL: "https://gateway.example", Sandbox: true, Retries: 3, Regions: []string{"eu", "us"}, Ports: []uint16{1, 2},
		Labels: map[string]string{"team": "core"}, SMTPHost: "mail",
	}, s.Gateway)
}

func TestEnvironmentOverFile_B43(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		set  string
		got  func(settings) any
		want any
	}{
		"a nested key that the file does not name": {"HEADRACE_BROKER_URL=redis://r:6379/0", func(s settings) any { return s.Broker.URL.Reveal() }, "redis://r:6379/0"},
		"a section that the file does not name":    {"HEADRACE_DRAIN_TIMEOUT=7s", func(s settings) any { return s.Drain.Timeout }, 7 * time.Second},
		"over the file":                            {"HEADRACE_HTTP_ADDR=0.0.0.0:80", func(s settings) any { return s.HTTP.Addr }, "0.0.0.0:80"},
		"a list":                                   {"HEADRACE_GATEWAY_REGIONS=ap, sa", func(s settings) any { return s.Gateway.Regions }, []string{"ap", "sa"}},
		"a shorter list":                           {"HEADRACE_GATEWAY_REGIONS=ap", func(s settings) any { return s.Gateway.Regions }, []string{"ap"}},
		"an empty list":                            {"HEADRACE_GATEWAY_REGIONS=", func(s settings) any { return s.Gateway.Regions }, []string{}},
		"a list of numbers":                        {"HEADRACE_GATEWAY_PORTS=7,8,9", func(s settings) any { return s.Gateway.Ports }, []uint16{7, 8, 9}},
		"a map":                                    {"HEADRACE_GATEWAY_LABELS=a=1,b=2", func(s settings) any { return s.Gateway.Labels }, map[string]string{"a": "1", "b": "2"}},
		"an explicit false":                        {"HEADRACE_GATEWAY_SANDBOX=false", func(s settings) any { return s.Gateway.Sandbox }, false},
		"an explicit 0":                            {"HEADRACE_GATEWAY_RETRIES=0", func(s settings) any { return s.Gateway.Retries }, 0},
		"an explicit empty text":                   {"HEADRACE_GATEWAY_URL=", func(s settings) any { return s.Gateway.URL }, ""},
		"empty over a default":                     {"HEADRACE_ADMIN_ADDR=", func(s settings) any { return s.Admin.Addr }, ""},
		"an explicit 0 over a default":             {"HEADRACE_TRACE_RATIO=0", func(s settings) any { return s.Trace.Ratio }, 0.0},
		"a value with an equals sign":              {"HEADRACE_GATEWAY_KEY=a=b,c", func(s settings) any { return s.Gateway.Key.Reveal() }, "a=b,c"},
		"an untagged field":                        {"HEADRACE_GATEWAY_SMTP_HOST=mx", func(s settings) any { return s.Gateway.SMTPHost }, "mx"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := load(t, localYAML, c.set)
			require.NoError(t, err)
			require.Equal(t, c.want, c.got(s))
		})
	}
}

func TestWhatStopsStartUp_B43(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		yaml string
		env  string
		want []string
	}{
		"a duration without unit in the environment": {localYAML, "HEADRACE_DELIVERY_HANDLER_TIMEOUT=30", []string{"delivery.handler_timeout", `"30"`, "HEADRACE_DELIVERY_HANDLER_TIMEOUT", "write 30s"}},
		"a duration without unit in the file":        {"delivery: {handler_timeout: 30}", "", []string{"delivery.handler_timeout", "30", "config/local.yaml", "write 30s"}},
		"a quoted duration without unit":             {`delivery: {handler_timeout: "30"}`, "", []string{"delivery.handler_timeout", "config/local.yaml", "write 30s"}},
		"an empty duration":                          {localYAML, "HEADRACE_DRAIN_TIMEOUT=", []string{"drain.timeout", "HEADRACE_DRAIN_TIMEOUT", "duration such as"}},
		"a misspelt variable":                        {localYAML, "HEADRACE_BROKER_ULR=x", []string{"HEADRACE_BROKER_ULR", "did you mean HEADRACE_BROKER_URL?"}},
		"a misspelt key":                             {"brokr: {kind: memory}", "", []string{"brokr", "config/local.yaml", "did you mean broker?"}},
		"a misspelt nested key":                      {"broker: {knid: memory}", "", []string{"broker.knid", "did you mean broker.kind?"}},
		"a value where a section is":                 {"broker: memory", "", []string{"broker", "section"}},
		"a bool that is none":                        {localYAML, "HEADRACE_GATEWAY_SANDBOX=yes", []string{"gateway.sandbox", `"yes"`, "true or false"}},
		"a bool in quotes":                           {`gateway: {sandbox: "true"}`, "", []string{"gateway.sandbox", "true or false"}},
		"a number that is none":                      {localYAML, "HEADRACE_DELIVERY_MAX_ATTEMPTS=five", []string{"delivery.max_attempts", `"five"`, "whole number"}},
		"an empty number":                            {localYAML, "HEADRACE_DELIVERY_MAX_ATTEMPTS=", []string{"delivery.max_attempts", "whole number"}},
		"a fraction":                                 {"delivery: {max_attempts: 1.5}", "", []string{"delivery.max_attempts", "1.5", "whole number"}},
		"a port out of range":                        {localYAML, "HEADRACE_GATEWAY_PORTS=80,70000", []string{"gateway.ports", "entry 2", "65535"}},
		"a number where a text is":                   {"http: {addr: 8080}", "", []string{"http.addr", "8080", "quotes"}},
		"a text where a list is":                     {"gateway: {regions: eu}", "", []string{"gateway.regions", "list"}},
		"a map without pairs":                        {localYAML, "HEADRACE_GATEWAY_LABELS=x", []string{"gateway.labels", "name=value"}},
		"an unknown environment":                     {localYAML, "HEADRACE_ENV=prodution", []string{`"prodution"`, "HEADRACE_ENV", `"local", "production"`, "did you mean production?"}},
		"an address without port":                    {localYAML, "HEADRACE_HTTP_ADDR=localhost", []string{"http.addr", `"localhost"`, "host:port"}},
		"a driver without a DSN":                     {"database: {driver: sqlite}", "", []string{"database.dsn", "HEADRACE_DATABASE_DSN"}},
		"an unknown kind":                            {"broker: {kind: redisstraem}", "", []string{"broker.kind", "redisstraem", "did you mean redisstream?"}},
		"a service's own rule":                       {localYAML, "HEADRACE_GATEWAY_RETRIES=10", []string{"gateway.retries is 10"}},
		"no YAML":                                    {"broker: [", "", []string{"config/local.yaml", "YAML"}},
		"a key given twice":                          {"log: {level: info}\nlog: {level: warn}", "", []string{"config/local.yaml", "log"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var environ []string
			if c.env != "" {
				environ = append(environ, c.env)
			}
			_, err := load(t, c.yaml, environ...)
			require.Error(t, err)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestEveryFaultIsTold(t *testing.T) {
	t.Parallel()
	_, err := load(t, "brokr: {}\ndelivery: {lease: 1}", "HEADRACE_NOPE=1", "HEADRACE_DRAIN_TIMEOUT=x")
	for _, want := range []string{"brokr", "delivery.lease", "HEADRACE_NOPE", "drain.timeout"} {
		require.ErrorContains(t, err, want)
	}
}

func TestVariablesThatAreNoKeys(t *testing.T) {
	t.Parallel()
	_, err := load(t, localYAML, "HEADRACE_TEST_POSTGRES=x", "HEADRACE_FAILPOINT=y", "HEADRACE_FAILPOINT_MARKER=z", "HEADRACE_ENV=local")
	require.NoError(t, err)
}

func TestDirReplacesTheEmbeddedProfiles(t *testing.T) {
	t.Parallel()
	var s settings
	err := config.Load(&s, config.Options{FS: profiles(localYAML), Environ: []string{"HEADRACE_CONFIG_DIR=" + t.TempDir()}})
	require.ErrorContains(t, err, "no local.yaml")
}

func TestAMalformedSecretIsNotTold(t *testing.T) {
	t.Parallel()
	_, err := load(t, "gateway: {key: 12345}")
	require.ErrorContains(t, err, "gateway.key")
	require.NotContains(t, err.Error(), "12345")
}

func TestSecretsAreNeverPrinted_B43(t *testing.T) {
	t.Parallel()
	const value = "hunter2"
	s := settings{Gateway: gateway{Key: value}}
	s.Database.DSN, s.Broker.URL = value, value
	holders := map[string]any{
		"value": s, "pointer": &s, "list": []settings{s}, "map": map[string]config.Secret{"key": value}, "bare": s.Gateway.Key,
		"nested": struct{ Inner *settings }{&s},
	}
	for name, holder := range holders {
		verbs := []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"}
		if name == "nested" {
			verbs = verbs[:3] // go vet refuses the others, and fmt calls no methods then
		}
		for _, verb := range verbs {
			out := fmt.Sprintf(verb, holder)
			require.NotContains(t, out, value, "%s %s", verb, name)
			require.NotContains(t, out, "68756e74", "%s %s in hex", verb, name)
		}
		var logged bytes.Buffer
		for _, h := range []slog.Handler{slog.NewJSONHandler(&logged, nil), slog.NewTextHandler(&logged, nil)} {
			slog.New(h).Info("settings", "holder", holder)
		}
		require.NotContains(t, logged.String(), value, "slog %s", name)
		y, err := yaml.Marshal(holder)
		require.NoError(t, err)
		require.NotContains(t, string(y), value, "yaml %s", name)
		j, err := json.Marshal(holder)
		require.NoError(t, err)
		require.NotContains(t, string(j), value, "json %s", name)
	}
	require.Equal(t, "[redacted]", fmt.Sprint(s.Gateway.Key))
	require.Empty(t, config.Secret("").String())
	require.Equal(t, value, s.Gateway.Key.Reveal())
}

func TestKeysHaveOneVariableEach(t *testing.T) {
	t.Parallel()
	keys, err := config.Keys(settings{})
	require.NoError(t, err)
	byEnv := map[string]config.Key{}
	for _, k := range keys {
		require.NotContains(t, byEnv, k.Env)
		byEnv[k.Env] = k
	}
	require.Equal(t, config.Key{Path: "database.dsn", Env: "HEADRACE_DATABASE_DSN", Kind: "secret"}, byEnv["HEADRACE_DATABASE_DSN"])
	require.Equal(t, config.Key{Path: "gateway.smtp_host", Env: "HEADRACE_GATEWAY_SMTP_HOST", Kind: "string"}, byEnv["HEADRACE_GATEWAY_SMTP_HOST"])
}

func TestTargetsThatCantWork(t *testing.T) {
	t.Parallel()
	_, err := config.Keys(struct {
		A struct {
			BC string `koanf:"b_c"`
		}
		AB struct{ C string } `koanf:"a_b"`
	}{})
	require.ErrorContains(t, err, "share the environment variable HEADRACE_A_B_C")
	_, err = config.Keys(struct{ F func() }{})
	require.ErrorContains(t, err, "key f has type func()")
	_, err = config.Keys(7)
	require.ErrorContains(t, err, "pointer to a struct")
	_, err = config.Keys(struct{ Test struct{ Mode bool } }{})
	require.ErrorContains(t, err, "reserved")
}

func TestDefaultIsValid(t *testing.T) {
	t.Parallel()
	require.NoError(t, config.Default().Validate())
}

func ExampleLoad() {
	files := fstest.MapFS{"local.yaml": {Data: []byte("broker: {kind: redisstream}\n")}}
	var p config.Profile
	err := config.Load(&p, config.Options{FS: files, Environ: []string{
		"HEADRACE_BROKER_URL=redis://:secret@redis:6379/0",
		"HEADRACE_DELIVERY_MAX_ATTEMPTS=7",
	}})
	fmt.Println(err, p.Env, p.Broker.Kind, p.Broker.URL, p.Delivery.MaxAttempts)

	err = config.Load(&p, config.Options{FS: files, Environ: []string{"HEADRACE_DRAIN_TIMEOUT=30"}})
	fmt.Println(err)
	// Output:
	// <nil> local redisstream [redacted] 7
	// config: drain.timeout is "30" (environment variable HEADRACE_DRAIN_TIMEOUT): a duration needs a unit: write 30s or 30ms
}
