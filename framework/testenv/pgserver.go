package testenv

import (
	"context"
	"database/sql"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// PostgresServer is a Postgres cluster of the test's own, which it may stop,
// crash and start again.
type PostgresServer struct {
	t    testing.TB
	bin  string
	dir  string
	port string
	cred *syscall.Credential
	cmd  *exec.Cmd
}

// StartPostgres makes a new cluster and starts it. It is removed when the test
// ends. Its commits don't wait for the disk, but survive Stop.
func StartPostgres(t testing.TB) *PostgresServer {
	t.Helper()
	s := &PostgresServer{t: t, bin: postgresBin(t)}
	dir, err := os.MkdirTemp("", "headrace-pg-") // not t.TempDir: the server's user must reach it
	if err != nil {
		t.Fatal(err)
	}
	s.dir = dir
	t.Cleanup(func() {
		s.Stop()
		_ = os.RemoveAll(dir)
	})
	if os.Getuid() == 0 { // the server refuses to run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			missing(t, "user postgres, as whom root runs a cluster", err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
		s.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	initdb := s.command("initdb", "-D", filepath.Join(dir, "data"), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	_, s.port, _ = net.SplitHostPort(l.Addr().String())
	l.Close()
	s.Start()
	return s
}

// postgresBin finds the server's programs, which Debian keeps off PATH.
func postgresBin(t testing.TB) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) > 0 {
		return filepath.Dir(found[len(found)-1])
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		missing(t, "Postgres's initdb", err)
	}
	return filepath.Dir(path)
}

func (s *PostgresServer) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Setpgid: true}
	return cmd
}

// DSN is the address of the cluster's database postgres.
func (s *PostgresServer) DSN() string {
	return "postgres://postgres@127.0.0.1:" + s.port + "/postgres?sslmode=disable"
}

// Dump returns the database as pg_dump writes it.
func (s *PostgresServer) Dump() []byte {
	s.t.Helper()
	out, err := s.command("pg_dump", "-h", "127.0.0.1", "-p", s.port, "-U", "postgres", "postgres").Output()
	if err != nil {
		s.t.Fatalf("pg_dump: %v", err)
	}
	return out
}

// Restore reads a dump into the database.
func (s *PostgresServer) Restore(dump []byte) {
	s.t.Helper()
	path := filepath.Join(s.dir, "dump.sql")
	if err := os.WriteFile(path, dump, 0o644); err != nil {
		s.t.Fatal(err)
	}
	psql := s.command("psql", "-h", "127.0.0.1", "-p", s.port, "-U", "postgres", "-v", "ON_ERROR_STOP=1", "-q", "-f", path, "postgres")
	if out, err := psql.CombinedOutput(); err != nil {
		s.t.Fatalf("psql: %v\n%s", err, out)
	}
}

// Start starts the server and returns once it answers.
func (s *PostgresServer) Start() {
	s.t.Helper()
	s.cmd = s.command("postgres", "-D", filepath.Join(s.dir, "data"), "-p", s.port, "-k", s.dir,
		"-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "full_page_writes=off")
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("start postgres: %v", err)
	}
	db, err := sql.Open("pgx", s.DSN())
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := db.PingContext(context.Background())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("postgres on port %s does not answer: %v", s.port, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Stop has the server drop everything at once, as a crash would, and waits for
// its end. It may be started again.
func (s *PostgresServer) Stop() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGQUIT)
	_ = s.cmd.Wait()
	s.cmd = nil
}
