package e2e

import (
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/testenv"
)

// kind is where a system's messages and rows live: the profile that its services
// run with. HEADRACE_ENV is all that differs between two kinds, beside the
// addresses of the test's servers and the secrets that a profile has not.
type kind string

const (
	// embedded is the local profile as shipped: a Redis of its own, SQLite files.
	embedded kind = "local"
	// servers is a real Redis and a real Postgres, as docker-compose.yml has them.
	servers kind = "compose"
	// postgres is SQL pub/sub on Postgres.
	postgres kind = "staging"
	// mariadb is SQL pub/sub on MariaDB.
	mariadb kind = "mariadb"
	// sqlite is SQL pub/sub on one SQLite file, with no server at all.
	sqlite kind = "sqlite"
	// aws is SNS and SQS, on the emulator, with SQLite files.
	aws kind = "aws-local"
)

var kinds = []kind{embedded, servers, postgres, mariadb, sqlite, aws}

// serve starts or finds the servers of the kind and keeps their addresses.
func (s *system) serve() {
	s.t.Helper()
	all := func(kv string) {
		for _, n := range names {
			s.addresses[n] = append(s.addresses[n], kv)
		}
	}
	each := func(kv func(name string) string) {
		for _, n := range names {
			s.addresses[n] = append(s.addresses[n], kv(n))
		}
	}
	switch s.kind {
	case embedded, servers:
		s.redisURL = testenv.Redis(s.t).URL()
		all("HEADRACE_BROKER_URL=" + s.redisURL)
	case postgres:
		all("HEADRACE_BROKER_URL=" + testenv.PostgresDSN(s.t))
		s.addresses["notifications"] = append(s.addresses["notifications"],
			"HEADRACE_NOTIFICATIONS_CODES_SECRET="+strings.Repeat("s", 32),
			"HEADRACE_NOTIFICATIONS_EMAIL_TRANSPORT=folder", "HEADRACE_NOTIFICATIONS_FOLDER="+filepath.Join(".headrace", "mail"))
	case mariadb:
		all("HEADRACE_BROKER_URL=" + mysqlURL(s.t))
	case aws:
		all("HEADRACE_BROKER_AWS_ENDPOINT=" + testenv.AWS(s.t).Endpoint())
		all("HEADRACE_BROKER_AWS_WAIT_TIME=1s")
	}
	switch s.kind {
	case servers, postgres:
		each(func(string) string { return "HEADRACE_DATABASE_DSN=" + testenv.PostgresDSN(s.t) })
	case mariadb:
		each(func(string) string { return "HEADRACE_DATABASE_DSN=" + mysqlURL(s.t) })
	}
}

// mysqlURL is a database of the test's own, as a URL.
func mysqlURL(t *testing.T) string {
	t.Helper()
	cfg, err := mysql.ParseDSN(testenv.MySQLDSN(t))
	require.NoError(t, err)
	u := url.URL{Scheme: "mysql", User: url.User(cfg.User), Host: cfg.Addr, Path: "/" + cfg.DBName}
	if cfg.Passwd != "" {
		u.User = url.UserPassword(cfg.User, cfg.Passwd)
	}
	return u.String()
}
