package rabbitmq_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// binaries are where rabbitmq-server is looked for: Debian's script on PATH runs it
// as a user of its own, in folders of its own.
var binaries = []string{"/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"}

const startPatience = 90 * time.Second

// server is a RabbitMQ of the tests' own.
type server struct {
	dir    string
	binary string
	port   int
	dist   int
	cmd    *exec.Cmd
}

// shared is one server for all tests that only use names of their own: it takes
// seconds to start.
var shared struct {
	mu    sync.Mutex
	users int
	*server
}

// sharedServer starts the shared server with its first user and stops it with the
// last.
func sharedServer(t testing.TB) *server {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.users == 0 {
		s := newServer(t)
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		shared.server = s
	}
	shared.users++
	t.Cleanup(func() {
		shared.mu.Lock()
		defer shared.mu.Unlock()
		if shared.users--; shared.users == 0 {
			shared.remove()
		}
	})
	return shared.server
}

// ownServer starts a server that the test may stop.
func ownServer(t testing.TB) *server {
	t.Helper()
	s := newServer(t)
	t.Cleanup(s.remove)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	return s
}

func newServer(t testing.TB) *server {
	t.Helper()
	s := &server{}
	for _, b := range binaries {
		if path, err := exec.LookPath(b); err == nil {
			s.binary = path
			break
		}
	}
	if s.binary == "" {
		if os.Getenv("HEADRACE_TEST_REQUIRE") == "all" {
			t.Fatal("rabbitmq-server is required (HEADRACE_TEST_REQUIRE=all) and not on PATH")
		}
		t.Skip("did not run: no rabbitmq-server on PATH")
	}
	var err error
	if s.dir, err = os.MkdirTemp("", "headrace-rabbitmq-"); err != nil {
		t.Fatal(err)
	}
	s.port, s.dist = freePort(t), freePort(t)
	return s
}

// freePort is one below the range of the ports that clients get: a client that
// waits for the server could otherwise be given its port, and keep it away.
func freePort(t testing.TB) int {
	t.Helper()
	for range 200 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := 10_000 + l.Addr().(*net.TCPAddr).Port%20_000
		l.Close()
		if l, err = net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

func (s *server) url() string { return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", s.port) }

// start starts the server, with what it held before, and waits until it answers.
func (s *server) start() error {
	for name, content := range map[string]string{"plugins": "[].\n", "rabbitmq.conf": ""} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	log, err := os.Create(filepath.Join(s.dir, "start.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command(s.binary, "-noinput")
	s.cmd.Stdout, s.cmd.Stderr = log, log
	// The script becomes the server itself, and ends with the test.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	s.cmd.Env = append(os.Environ(),
		"HOME="+s.dir,
		"RABBITMQ_ALLOW_INPUT=1",
		fmt.Sprintf("RABBITMQ_NODENAME=headrace%d@localhost", s.port),
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		fmt.Sprintf("RABBITMQ_NODE_PORT=%d", s.port),
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", s.dist),
		"RABBITMQ_MNESIA_BASE="+s.dir,
		"RABBITMQ_LOG_BASE="+s.dir,
		"RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(s.dir, "plugins"),
		"RABBITMQ_CONFIG_FILE="+filepath.Join(s.dir, "rabbitmq.conf"),
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
	)
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start rabbitmq-server: %w", err)
	}
	ended := make(chan error, 1)
	cmd := s.cmd
	go func() { ended <- cmd.Wait() }()
	for until := time.Now().Add(startPatience); ; {
		c, err := amqp.Dial(s.url())
		if err == nil {
			return c.Close()
		}
		if time.Now().After(until) {
			s.kill()
			return fmt.Errorf("rabbitmq-server on port %d does not answer: %w", s.port, err)
		}
		select {
		case err := <-ended:
			said, _ := os.ReadFile(filepath.Join(s.dir, "start.log"))
			return errors.Join(fmt.Errorf("rabbitmq-server ended: %s", said), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// kill ends the server as a crash does.
func (s *server) kill() {
	if s.cmd == nil {
		return
	}
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until) && syscall.Kill(s.cmd.Process.Pid, 0) == nil; {
		time.Sleep(5 * time.Millisecond)
	}
	s.cmd = nil
}

func (s *server) remove() {
	s.kill()
	_ = os.RemoveAll(s.dir)
}

// dial opens a plain connection, closed by t.Cleanup.
func (s *server) dial(t testing.TB) *amqp.Channel {
	t.Helper()
	c, err := amqp.Dial(s.url())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.CloseDeadline(time.Now().Add(time.Second)) })
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}
