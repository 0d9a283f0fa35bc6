package programtest

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/program"
)

// envSpawned, when set, makes the test binary the service itself.
const envSpawned = "HEADRACE_TEST_SPAWNED"

// readyLine begins the line in which a spawned program tells its address.
const readyLine = "ready "

// Main is for TestMain. It lets Spawn start the test binary as the service, and
// fails the tests when goroutines are left at their end.
func Main(m *testing.M, p Program) {
	if os.Getenv(envSpawned) != "" {
		os.Exit(spawned(p))
	}
	goleak.VerifyTestMain(closesIdle{m})
}

// spawned runs the service and tells its address once it is ready.
func spawned(p Program) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := p.Run(ctx, program.Call{Environ: os.Environ(), Stdout: os.Stderr, Started: func(a *framework.App) {
		fmt.Println(readyLine + a.HTTPAddr())
	}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// closesIdle ends the client's idle connections before leaks are looked for.
type closesIdle struct{ m *testing.M }

func (c closesIdle) Run() int {
	code := c.m.Run()
	http.DefaultClient.CloseIdleConnections()
	return code
}

// Process is the service as a process of its own.
type Process struct {
	// URL is the address of its API: "http://127.0.0.1:12345".
	URL string

	t   testing.TB
	cmd *exec.Cmd
}

// Spawn starts the service as a process of its own, in the profile "test" and
// the environment, and returns once it is ready. The package's TestMain must call
// Main. The process is killed when the test ends.
func Spawn(t testing.TB, environ ...string) *Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("programtest: find the test binary: %v", err)
	}
	cmd := exec.CommandContext(context.Background(), self)
	cmd.Env = append([]string{envSpawned + "=1", "HEADRACE_ENV=test"}, environ...)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("programtest: start the program: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	said := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		said <- strings.TrimSpace(line)
	}()
	select {
	case line := <-said:
		addr, ok := strings.CutPrefix(line, readyLine)
		if !ok {
			t.Fatalf("programtest: the program said %q and not that it is ready", line)
		}
		return &Process{URL: "http://" + addr, t: t, cmd: cmd}
	case <-time.After(Timeout):
		t.Fatalf("programtest: the program is not ready after %s", Timeout)
		return nil
	}
}

// Kill ends the process with SIGKILL, as a crash does, and waits for its end.
func (p *Process) Kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatalf("programtest: kill the program: %v", err)
	}
	_ = p.cmd.Wait()
}

// Terminate sends SIGTERM and returns nil once the process has drained and ended
// with 0.
func (p *Process) Terminate() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.cmd.Wait()
}
