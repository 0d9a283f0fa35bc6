package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// system is the three services as processes of the test's own.
type system struct {
	t    *testing.T
	kind kind
	dir  string
	// redisURL is the Redis of the kinds that have one.
	redisURL string
	// addresses are each service's variables that the profile leaves to the
	// environment.
	addresses map[string][]string
	procs     map[string]*proc
}

// newSystem starts the servers of a kind; start starts the services.
func newSystem(t *testing.T, k kind) *system {
	t.Helper()
	s := &system{t: t, kind: k, dir: t.TempDir(), addresses: map[string][]string{}, procs: map[string]*proc{}}
	s.serve()
	for _, n := range names {
		s.procs[n] = &proc{t: t, name: n, http: freeAddr(t), admin: freeAddr(t)}
	}
	t.Cleanup(func() {
		for _, p := range s.procs {
			p.kill()
		}
		if t.Failed() {
			for _, n := range names {
				t.Logf("---- %s (last lines)\n%s", n, tail(s.procs[n].log.String(), 40))
			}
		}
	})
	return s
}

// start starts the named services, all three when none is named, with extra
// variables, and returns once each is ready.
func (s *system) start(extra []string, which ...string) {
	s.t.Helper()
	if len(which) == 0 {
		which = names
	}
	for _, n := range which {
		p := s.procs[n]
		p.start(bin(s.t, n), s.dir, append(s.environ(n), theirs(n, extra)...))
	}
	for _, n := range which {
		s.procs[n].awaitReady()
	}
}

// environ is what a service of the system runs with.
func (s *system) environ(name string) []string {
	p := s.procs[name]
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir,
		"HEADRACE_ENV=" + string(s.kind),
		"HEADRACE_HTTP_ADDR=" + p.http,
		"HEADRACE_ADMIN_ADDR=" + p.admin,
		// A dead consumer's messages come back soon, so that the test is short.
		"HEADRACE_DELIVERY_LEASE=2s",
	}, s.addresses[name]...)
}

// theirs leaves out the variables of another service's section, which n would
// refuse to start with.
func theirs(n string, env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		return slices.ContainsFunc(names, func(other string) bool {
			return other != n && strings.HasPrefix(kv, "HEADRACE_"+strings.ToUpper(other)+"_")
		})
	})
}

// proc is one service's process.
type proc struct {
	t           *testing.T
	name        string
	http, admin string
	log         lockedBuffer

	cmd    *exec.Cmd
	exited chan struct{}
}

func (p *proc) start(bin, dir string, env []string) {
	p.t.Helper()
	p.cmd = exec.Command(bin)
	p.cmd.Dir, p.cmd.Env = dir, env
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	require.NoError(p.t, p.cmd.Start())
	exited, cmd := make(chan struct{}), p.cmd
	p.exited = exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
}

// kill ends the process with SIGKILL and waits for its end.
func (p *proc) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
	p.cmd = nil
}

// awaitDeath waits until the process was killed by its failpoint.
func (p *proc) awaitDeath() {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(60 * time.Second):
		p.t.Fatalf("%s reached no failpoint within a minute", p.name)
	}
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(p.t, status.Signaled() && status.Signal() == syscall.SIGKILL, "%s ended with %s, not SIGKILL", p.name, p.cmd.ProcessState)
	p.cmd = nil
}

// stop asks for a drain and waits for the clean end.
func (p *proc) stop() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.exited:
	case <-time.After(60 * time.Second):
		p.t.Fatalf("%s did not stop within a minute of SIGTERM", p.name)
	}
	require.True(p.t, p.cmd.ProcessState.Success(), "%s ended with %s", p.name, p.cmd.ProcessState)
	p.cmd = nil
}

func (p *proc) awaitReady() {
	p.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		resp, err := http.Get("http://" + p.admin + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-p.exited:
			p.t.Fatalf("%s ended before it was ready", p.name)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s is not ready after a minute: %v", p.name, err)
		}
	}
}

// get reads a JSON answer of a service's API.
func (s *system) get(service, path string, into any) {
	s.t.Helper()
	resp, err := http.Get("http://" + s.procs[service].http + path)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, http.StatusOK, resp.StatusCode, "%s %s: %s", service, path, b)
	require.NoError(s.t, json.Unmarshal(b, into), "%s %s: %s", service, path, b)
}

// place places one order that is paid with token. The key makes a repeat safe,
// so it is repeated while the service is away.
func (s *system) place(ctx context.Context, key, token string) (id string, err error) {
	body := fmt.Sprintf(`{"customer":{"id":"c-1","email":"ada@example.com","language":"en"},
		"lines":[{"sku":"TEA","quantity":1,"unit_price":{"amount":1250,"currency":"EUR"}}],"payment_token":%q}`, token)
	for {
		id, retry, err := s.tryPlace(ctx, key, body)
		if err == nil || !retry {
			return id, err
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("place order %s: %w", key, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *system) tryPlace(ctx context.Context, key, body string) (id string, retry bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.procs["orders"].http+"/v1/orders", strings.NewReader(body))
	if err != nil {
		return "", false, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", true, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", true, err
	}
	if resp.StatusCode != http.StatusCreated {
		return "", resp.StatusCode >= 500, fmt.Errorf("place order: %s: %s", resp.Status, b)
	}
	var o struct{ ID string }
	return o.ID, false, json.Unmarshal(b, &o)
}

// eventually asks until check returns nil; what it last said fails the test.
func eventually(t *testing.T, within time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", within, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// mails returns the files that the folder channel wrote.
func (s *system) mails() []string {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.dir, ".headrace", "mail", "*.eml"))
	require.NoError(s.t, err)
	return files
}

// ports hands out each port once, below those that the system gives to outgoing
// connections: one that is asked for with port 0 and let go may be anybody's
// before the service listens on it, also another service's of the same test.
var ports struct {
	sync.Mutex
	used int
}

func freeAddr(t *testing.T) string {
	t.Helper()
	const first, count = 20_000, 12_000
	ports.Lock()
	defer ports.Unlock()
	for range count {
		ports.used++
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+(os.Getpid()*61+ports.used)%count))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		l.Close()
		return addr
	}
	t.Fatal("no port is free")
	return ""
}

// lockedBuffer is a bytes.Buffer that a process writes while the test reads.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(all[max(len(all)-lines, 0):], "\n")
}
