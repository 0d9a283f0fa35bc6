// Package testenv gives tests the servers they need, and says plainly when one
// is not there: the test is skipped with the server's name, or fails where
// HEADRACE_TEST_REQUIRE=all asks for every part to run.
package testenv

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver that Postgres opens
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver that SQLite opens
)

// Variables that point the tests at servers.
const (
	EnvPostgres = "HEADRACE_TEST_POSTGRES"
	EnvRequire  = "HEADRACE_TEST_REQUIRE"

	defaultPostgres = "postgres://postgres@127.0.0.1:5432/postgres?sslmode=disable"
)

// missing skips the test, or fails it where every part must run.
func missing(t testing.TB, server string, err error) {
	t.Helper()
	if os.Getenv(EnvRequire) == "all" {
		t.Fatalf("%s is required (%s=all) and not there: %v", server, EnvRequire, err)
	}
	t.Skipf("did not run: no %s: %v", server, err)
}

// PostgresDSN creates a database of the test's own and returns its DSN. The
// database is dropped when the test ends.
func PostgresDSN(t testing.TB) string {
	t.Helper()
	dsn := os.Getenv(EnvPostgres)
	if dsn == "" {
		dsn = defaultPostgres
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	admin, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatalf("%s=%q: %v", EnvPostgres, dsn, err)
	}
	if err := admin.PingContext(ctx); err != nil {
		admin.Close()
		missing(t, "Postgres", err)
	}
	name := "headrace_test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	if _, err := admin.ExecContext(ctx, "CREATE DATABASE "+name); err != nil {
		admin.Close()
		t.Fatalf("create the test's database: %v", err)
	}
	t.Cleanup(func() {
		defer admin.Close()
		if _, err := admin.ExecContext(context.Background(), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatalf("%s=%q: %v", EnvPostgres, dsn, err)
	}
	u.Path = "/" + name
	return u.String()
}

// Postgres opens PostgresDSN. The pool is closed when the test ends.
func Postgres(t testing.TB) *sql.DB {
	t.Helper()
	return Open(t, "pgx", PostgresDSN(t))
}

// SQLiteDSN returns the DSN of a new file in the test's own folder, in WAL mode
// with immediate write transactions and a busy timeout of 10 s.
func SQLiteDSN(t testing.TB) string {
	t.Helper()
	return "file:" + filepath.Join(t.TempDir(), "test.db") +
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)"
}

// SQLite opens SQLiteDSN. The pool is closed when the test ends.
func SQLite(t testing.TB) *sql.DB {
	t.Helper()
	return Open(t, "sqlite", SQLiteDSN(t))
}

// Open opens a DSN of PostgresDSN ("pgx") or SQLiteDSN ("sqlite") once more. The
// pool is closed when the test ends.
func Open(t testing.TB, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatalf("open %s: %v", driver, err)
	}
	t.Cleanup(func() { db.Close() })
	// First opens that switch a new SQLite file to WAL at the same time meet
	// SQLITE_BUSY despite the timeout: one connection goes first.
	if err := db.Ping(); err != nil {
		t.Fatalf("open %s: %v", driver, err)
	}
	return db
}

// RedisServer is a redis-server of the test's own, which it may flush, stop and
// start again.
type RedisServer struct {
	t    testing.TB
	dir  string
	port string
	cmd  *exec.Cmd
}

// Redis starts a redis-server of the test's own. It is stopped when the test
// ends.
func Redis(t testing.TB) *RedisServer {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		missing(t, "redis-server on PATH", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	s := &RedisServer{t: t, dir: t.TempDir(), port: port}
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// URL returns the server's address as go-redis parses it.
func (s *RedisServer) URL() string { return "redis://127.0.0.1:" + s.port + "/0" }

// Client returns a new client, closed when the test ends.
func (s *RedisServer) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + s.port})
	s.t.Cleanup(func() { c.Close() })
	return c
}

// Start starts the server and returns once it answers. The append-only file
// keeps what it held before a Stop.
func (s *RedisServer) Start() {
	s.t.Helper()
	s.cmd = exec.Command("redis-server", "--port", s.port, "--bind", "127.0.0.1", "--dir", s.dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--loglevel", "warning")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("start redis-server: %v", err)
	}
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + s.port})
	defer c.Close()
	deadline := time.Now().Add(10 * time.Second)
	for {
		err := c.Ping(context.Background()).Err()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("redis-server on port %s does not answer: %v", s.port, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Stop kills the server with SIGKILL and waits for its end. It may be started
// again.
func (s *RedisServer) Stop() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

// String names the server for messages.
func (s *RedisServer) String() string { return fmt.Sprintf("redis-server 127.0.0.1:%s", s.port) }
