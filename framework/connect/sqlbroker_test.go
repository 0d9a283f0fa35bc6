package connect_test

import (
	"net/url"
	"path/filepath"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/testenv"
)

// The broker kind "sql" on each database.
func TestSQLBroker(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*testing.T, *config.Profile){
		"postgres": func(t *testing.T, p *config.Profile) { p.Broker.URL = config.Secret(testenv.PostgresDSN(t)) },
		"mysql": func(t *testing.T, p *config.Profile) {
			cfg, err := mysql.ParseDSN(testenv.MySQLDSN(t))
			require.NoError(t, err)
			u := url.URL{Scheme: "mysql", User: url.UserPassword(cfg.User, cfg.Passwd), Host: cfg.Addr, Path: "/" + cfg.DBName}
			p.Broker.URL = config.Secret(u.String())
		},
		"sqlite": func(t *testing.T, p *config.Profile) {
			p.Broker.URL = config.Secret("sqlite:" + filepath.Join(t.TempDir(), "broker.db"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := profile()
			p.Broker.Kind = "sql"
			set(t, &p)
			c := open(t, p)
			require.Equal(t, "sql", c.Broker.Name())
			require.NoError(t, c.Broker.Publisher().Publish("t", message.NewMessage("1", nil)))
			n, err := c.Broker.Admin().Depth(t.Context(), "t")
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			require.Nil(t, c.DB, "the pool is the broker's own")
		})
	}
}

func TestSQLBrokerFaults(t *testing.T) {
	t.Parallel()
	for want, set := range map[string]func(*config.Profile){
		"it is empty":           func(*config.Profile) {},
		"it is no such address": func(p *config.Profile) { p.Broker.URL = "redis://bob:hunter2@r:6379/0" },
		"broker.url (HEADRACE_BROKER_URL) is \"postgres://bob@127.0.0.1:1/x\"": func(p *config.Profile) {
			p.Broker.URL = "postgres://bob:hunter2@127.0.0.1:1/x?sslmode=disable"
			p.Database.ConnectTimeout = 1
		},
	} {
		p := profile()
		p.Broker.Kind = "sql"
		set(&p)
		_, err := connect.Open(t.Context(), p, quiet)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "hunter2")
	}
}
