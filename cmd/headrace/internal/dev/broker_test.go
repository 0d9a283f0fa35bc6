package dev

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
)

func workspace(t *testing.T, env string) *Workspace {
	t.Helper()
	w, err := Find(filepath.Join("..", "..", "..", ".."), env)
	require.NoError(t, err)
	require.Len(t, w.Services, 3)
	return w
}

// What is missing is told of all services at once, and each fault once.
func TestProfilesTellWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := workspace(t, "mariadb").profiles(Options{Env: "mariadb"})
	require.Error(t, err)
	for _, said := range []string{`profile "mariadb" of notifications, orders, payments`, "HEADRACE_BROKER_URL", "mysql://", "HEADRACE_DATABASE_DSN", "{service}"} {
		require.ErrorContains(t, err, said)
	}
	require.Equal(t, 1, strings.Count(err.Error(), "broker.url"))

	_, err = workspace(t, "test").profiles(Options{Env: "test"})
	require.ErrorContains(t, err, "memory")

	_, err = workspace(t, "local").profiles(Options{Env: "local", Environ: []string{"HEADRACE_BROKER_KIND=redisstreams"}})
	require.ErrorContains(t, err, `did you mean redisstream`)
}

// One variable names a database for each service, and a service's own variables
// are no other's.
func TestServiceInVariables(t *testing.T) {
	t.Parallel()
	all, err := workspace(t, "staging").profiles(Options{Env: "staging", Environ: []string{
		"HEADRACE_BROKER_URL=postgres://db/broker", "HEADRACE_DATABASE_DSN=postgres://db/{service}", "HEADRACE_ORDERS_MAX_LINES=3",
	}})
	require.NoError(t, err)
	require.Len(t, all, 3)
	for name, p := range all {
		require.Equal(t, "postgres://db/"+name, p.Database.DSN.Reveal())
		require.Equal(t, "postgres://db/broker", p.Broker.URL.Reveal())
	}
	w := workspace(t, "local")
	require.Equal(t, []string{"HEADRACE_ORDERS_MAX_LINES=3", "OTHER={service}"}, w.environFor("orders", []string{"HEADRACE_ORDERS_MAX_LINES=3", "OTHER={service}"}))
	require.Empty(t, w.environFor("payments", []string{"HEADRACE_ORDERS_MAX_LINES=3"}))
}

// Every profile that needs nothing but this machine is complete as it is.
func TestProfilesOfOneLaptop(t *testing.T) {
	t.Parallel()
	for _, env := range []string{"local", "sqlite", "aws-local"} {
		_, err := workspace(t, env).profiles(Options{Env: env})
		require.NoError(t, err, env)
	}
}

func TestInFolder(t *testing.T) {
	t.Parallel()
	p := config.Default()
	p.Broker.Kind, p.Broker.URL = "sql", "sqlite:.headrace/broker.db"
	p.Database.Driver, p.Database.DSN = "sqlite", ".headrace/orders.db"
	got := InFolder(p, "/srv/shop")
	require.Equal(t, "sqlite:/srv/shop/.headrace/broker.db", got.Broker.URL.Reveal())
	require.Equal(t, "/srv/shop/.headrace/orders.db", got.Database.DSN.Reveal())
	p.Broker.Kind, p.Broker.URL, p.Broker.AWS.ClaimCheckURL = "sns", "", ".headrace/payloads"
	p.Database.DSN = "/var/orders.db"
	got = InFolder(p, "/srv/shop")
	require.Equal(t, []string{"", "/srv/shop/.headrace/payloads", "/var/orders.db"},
		[]string{got.Broker.URL.Reveal(), got.Broker.AWS.ClaimCheckURL.Reveal(), got.Database.DSN.Reveal()})
	p.Broker.AWS.ClaimCheckURL, p.Database.Driver, p.Database.DSN = "s3://bucket", "postgres", "postgres://db/orders"
	got = InFolder(p, "/srv/shop")
	require.Equal(t, []string{"s3://bucket", "postgres://db/orders"}, []string{got.Broker.AWS.ClaimCheckURL.Reveal(), got.Database.DSN.Reveal()})
}

// Other commands find the broker of the services that run.
func TestStateEnviron(t *testing.T) {
	t.Parallel()
	s := State{BrokerURL: "redis://127.0.0.1:1/0", Broker: brokerSettings([]string{"HEADRACE_BROKER_PREFIX=shop", "HEADRACE_ENV=local", "PATH=/bin"})}
	require.ElementsMatch(t, []string{"HEADRACE_BROKER_URL=redis://127.0.0.1:1/0", "HEADRACE_BROKER_PREFIX=shop", "PATH=/bin"},
		s.Environ([]string{"PATH=/bin", "HEADRACE_BROKER_URL=redis://elsewhere/0"}))
}

// A server that is not there is named before anything is built.
func TestReachNamesTheServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := l.Addr().String()
	require.NoError(t, l.Close())
	for env, variable := range map[string]string{
		"local": "HEADRACE_BROKER_URL=redis://" + nobody + "/0", "aws-local": "HEADRACE_BROKER_AWS_ENDPOINT=http://" + nobody,
	} {
		w := workspace(t, env)
		all, err := w.profiles(Options{Env: env, Environ: []string{variable}})
		require.NoError(t, err)
		err = reach(t.Context(), all)
		require.ErrorContains(t, err, nobody)
		require.Equal(t, 1, strings.Count(err.Error(), "needs a broker"), "one broker is asked once: %v", err)
		key, _, _ := strings.Cut(variable, "=")
		require.ErrorContains(t, err, key)
	}
	all, err := workspace(t, "sqlite").profiles(Options{Env: "sqlite"})
	require.NoError(t, err)
	require.NoError(t, reach(t.Context(), all), "files need no server")
}
