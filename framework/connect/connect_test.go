package connect_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func profile() config.Profile {
	p := config.Default()
	p.Env = "test"
	p.Database.ConnectTimeout = 5 * time.Second
	return p
}

var quiet = slog.New(slog.DiscardHandler)

func open(t *testing.T, p config.Profile) *connect.Connections {
	t.Helper()
	c, err := connect.Open(t.Context(), p, quiet)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func pragma(t *testing.T, db *sql.DB, name string) string {
	t.Helper()
	var v string
	require.NoError(t, db.QueryRowContext(t.Context(), "PRAGMA "+name).Scan(&v))
	return v
}

func TestSQLiteFile(t *testing.T) {
	t.Parallel()
	p := profile()
	path := filepath.Join(t.TempDir(), "new folder", "50% & more?.db")
	p.Database.Driver, p.Database.DSN = "sqlite", config.Secret(path)
	p.Database.BusyTimeout = 1234 * time.Millisecond
	c := open(t, p)
	require.Equal(t, sqltx.SQLite, c.Dialect)
	require.FileExists(t, path, "the path is taken as it is")
	require.Equal(t, "wal", pragma(t, c.DB, "journal_mode"))
	require.Equal(t, "1234", pragma(t, c.DB, "busy_timeout"))
	require.Equal(t, "1", pragma(t, c.DB, "foreign_keys"))
	require.Equal(t, "2", pragma(t, c.DB, "synchronous"), "FULL: an acked message's effect outlives a power cut")
	var n int
	require.NoError(t, c.DB.QueryRowContext(t.Context(), "SELECT count(*) FROM headrace_inbox").Scan(&n), "Headrace's tables are there")

	// A transaction holds the write lock from its start, so a second one waits
	// instead of failing where it can't wait any more.
	tx, err := c.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = c.DB.BeginTx(ctx, nil)
	require.Error(t, err)
	require.NoError(t, tx.Rollback())
}

func TestSQLiteOpenedByManyAtOnce(t *testing.T) {
	t.Parallel()
	p := profile()
	p.Database.Driver, p.Database.DSN = "sqlite", config.Secret(filepath.Join(t.TempDir(), "x.db"))
	var wg sync.WaitGroup
	errs := make(chan error, 5)
	for range 5 {
		wg.Go(func() {
			c, err := connect.Open(t.Context(), p, quiet)
			if err == nil {
				err = c.Close()
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
}

func TestSQLiteMemoryIsOneDatabaseAndGoesWithTheProcess(t *testing.T) {
	t.Parallel()
	p := profile()
	p.Database.Driver, p.Database.DSN = "sqlite", ":memory:"
	c, err := connect.Open(t.Context(), p, quiet)
	require.NoError(t, err)
	other := open(t, p)
	_, err = c.DB.ExecContext(t.Context(), "CREATE TABLE mine (x INTEGER)")
	require.NoError(t, err)
	var file string
	require.NoError(t, c.DB.QueryRowContext(t.Context(), "SELECT file FROM pragma_database_list").Scan(&file))
	a, err := c.DB.Conn(t.Context())
	require.NoError(t, err)
	_, err = c.DB.ExecContext(t.Context(), "INSERT INTO mine VALUES (1)")
	require.NoError(t, err, "a second connection sees the same database")
	require.NoError(t, a.Close())
	_, err = other.DB.ExecContext(t.Context(), "INSERT INTO mine VALUES (1)")
	require.Error(t, err, "another Open has another database")
	require.NoError(t, c.Close())
	_, err = os.Stat(file)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestSQLiteURIKeepsItsOwnSettings(t *testing.T) {
	t.Parallel()
	p := profile()
	path := filepath.Join(t.TempDir(), "x.db")
	p.Database.Driver, p.Database.DSN = "sqlite", config.Secret("file:"+path+"?_pragma=synchronous(NORMAL)")
	c := open(t, p)
	require.FileExists(t, path)
	require.Equal(t, "1", pragma(t, c.DB, "synchronous"))
	require.Equal(t, "wal", pragma(t, c.DB, "journal_mode"))
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	p := profile()
	p.Database.Driver, p.Database.DSN = "postgres", config.Secret(testenv.PostgresDSN(t))
	p.Database.MaxOpenConns = 7
	c := open(t, p)
	require.Equal(t, sqltx.Postgres, c.Dialect)
	require.Equal(t, 7, c.DB.Stats().MaxOpenConnections)
	require.NotNil(t, c.Waker)
	var n int
	require.NoError(t, c.DB.QueryRowContext(t.Context(), "SELECT count(*) FROM headrace_inbox").Scan(&n))
}

// MySQL and MariaDB are opened from a URL and from the driver's own DSN, and
// tell no password.
func TestMySQL(t *testing.T) {
	t.Parallel()
	dsn := testenv.MySQLDSN(t)
	cfg, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	asURL := (&url.URL{Scheme: "mysql", User: url.UserPassword(cfg.User, cfg.Passwd), Host: cfg.Addr, Path: "/" + cfg.DBName}).String()
	for _, dsn := range []string{dsn, asURL} {
		p := profile()
		p.Database.Driver, p.Database.DSN = "mysql", config.Secret(dsn)
		p.Database.MaxOpenConns = 7
		c := open(t, p)
		require.Equal(t, sqltx.MySQL, c.Dialect)
		require.Equal(t, 7, c.DB.Stats().MaxOpenConnections)
		require.Nil(t, c.Waker)
		var n int
		require.NoError(t, c.DB.QueryRowContext(t.Context(), "SELECT count(*) FROM headrace_inbox").Scan(&n))
	}
	for dsn, want := range map[string]string{
		"mysql://bob:hunter2@" + cfg.Addr + "/" + cfg.DBName: "mysql://bob@" + cfg.Addr,
		"mysql://bob:hunter2@" + cfg.Addr:                    "names no database",
		"bob:hunter2@x":                                      "can't be parsed",
		"mysql://bob:hunter2@[::1/x":                         "can't be parsed",
	} {
		p := profile()
		p.Database.Driver, p.Database.DSN = "mysql", config.Secret(dsn)
		p.Database.ConnectTimeout = time.Second
		_, err := connect.Open(t.Context(), p, quiet)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "HEADRACE_DATABASE_DSN")
		require.NotContains(t, err.Error(), "hunter2")
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	p := profile()
	p.Broker.Kind, p.Broker.URL = "redisstream", config.Secret(server.URL())
	c := open(t, p)
	require.Equal(t, "redisstream", c.Broker.Name())
	require.NoError(t, c.Broker.Ping(t.Context()))
	require.Nil(t, c.DB)
}

func TestAnOwnRedisWhereNoAddressIsSet(t *testing.T) {
	t.Parallel()
	p := profile()
	p.Broker.Kind, p.Broker.Dir = "redisstream", filepath.Join(t.TempDir(), "redis")
	c := open(t, p)
	require.NoError(t, c.Broker.Ping(t.Context()))
	require.NoError(t, c.Broker.EnsureTopology(t.Context(), broker.Subscription{Topic: "t", Group: "g"}))
}

// closedPort is an address that nothing listens on.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// Every error names the key, its variable, the value without its secrets and the
// remedy (B43: a secret is never printed).
func TestErrorsNameTheKeyAndNoSecret_B43(t *testing.T) {
	t.Parallel()
	const secret = "hunter2/+ x"
	dead := closedPort(t)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("no database, but long enough to look at"), 0o600))
	cases := map[string]struct {
		set  func(*config.Profile)
		want []string
	}{
		"postgres away": {func(p *config.Profile) {
			p.Database.Driver, p.Database.DSN = "postgres", config.Secret(fmt.Sprintf("postgres://bob:%s@%s/shop", "hunter2%2F%2B%20x", dead))
			p.Database.ConnectTimeout = 100 * time.Millisecond
		}, []string{"database.dsn", "HEADRACE_DATABASE_DSN", "bob@" + dead, "shop", "start the server", "100ms"}},
		"postgres DSN that is none": {func(p *config.Profile) {
			p.Database.Driver, p.Database.DSN = "postgres", "postgres://bob:hunter2/+ x@[::1/shop"
		}, []string{"database.dsn", "can't be parsed", "postgres://user:password@host"}},
		"postgres key=value": {func(p *config.Profile) {
			p.Database.Driver, p.Database.DSN = "postgres", config.Secret("user=bob password='"+secret+"' port=nope")
		}, []string{"database.dsn", "can't be parsed"}},
		"sqlite folder is a file": {func(p *config.Profile) {
			p.Database.Driver, p.Database.DSN = "sqlite", config.Secret(file+"/x.db")
		}, []string{"database.dsn", file, "folder"}},
		"sqlite file is no database": {func(p *config.Profile) {
			p.Database.Driver, p.Database.DSN = "sqlite", config.Secret(file)
		}, []string{"database.dsn", file, "SQLite database"}},
		"sqlite shared memory": {func(p *config.Profile) {
			p.Database.Driver, p.Database.DSN = "sqlite", "file:x?mode=memory&cache=shared"
		}, []string{"database.dsn", ":memory:"}},
		"redis away": {func(p *config.Profile) {
			p.Broker.Kind, p.Broker.URL = "redisstream", config.Secret("redis://bob:hunter2%2F%2B%20x@"+dead+"/0")
		}, []string{"broker.url", "HEADRACE_BROKER_URL", "bob@" + dead, "server answers"}},
		"redis URL that is none": {func(p *config.Profile) {
			p.Broker.Kind, p.Broker.URL = "redisstream", "hunter2/+ x"
		}, []string{"broker.url", "redis://"}},
		"memory where services must meet": {func(p *config.Profile) { p.Env = "production" }, []string{"broker.kind", `"memory"`, "share"}},
		"own redis where services must meet": {func(p *config.Profile) {
			p.Env, p.Broker.Kind = "staging", "redisstream"
		}, []string{"broker.url", "HEADRACE_BROKER_URL", "address", "shared"}},
		"a profile that is wrong": {func(p *config.Profile) { p.Log.Level = "loud" }, []string{"log.level"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := profile()
			c.set(&p)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err := connect.Open(ctx, p, quiet)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			for e := err; e != nil; {
				for _, form := range []string{"hunter2"} {
					require.NotContains(t, strings.ToLower(e.Error()), form)
				}
				u, ok := e.(interface{ Unwrap() error })
				if !ok {
					break
				}
				e = u.Unwrap()
			}
		})
	}
}

// A database that is still starting is waited for.
func TestPostgresIsWaitedFor(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(testenv.PostgresDSN(t))
	require.NoError(t, err)
	proxy := testenv.NewProxy(t, u.Host)
	proxy.Cut()
	u.Host = proxy.Addr()
	p := profile()
	p.Database.Driver, p.Database.DSN = "postgres", config.Secret(u.String())
	p.Database.ConnectTimeout = 10 * time.Second
	restored := make(chan struct{})
	go func() {
		defer close(restored)
		for proxy.Refused() < 3 && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		proxy.Restore()
	}()
	open(t, p)
	<-restored
	require.GreaterOrEqual(t, proxy.Refused(), int64(3))
}
