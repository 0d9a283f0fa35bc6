// Package programtest runs a service's program in a test: within the test's own
// process, or as a process of its own that the test may kill. Only tests import
// it.
package programtest

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/program"
)

// Timeout is how long anything is waited for before the test fails.
const Timeout = 20 * time.Second

// Program is a service's program, program.Program of its settings.
type Program interface {
	Run(ctx context.Context, c program.Call) error
}

// Log keeps what a program writes. It is safe for concurrent use.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write appends p.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String is all that was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Running is a program that serves within the test's process.
type Running struct {
	// App is the service's, ready.
	App *framework.App
	// Log is what it wrote.
	Log *Log

	t      testing.TB
	cancel context.CancelFunc
	ended  chan error
}

// Start runs p in the environment and returns once it is ready. It is stopped
// when the test ends.
func Start(t testing.TB, p Program, environ ...string) *Running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &Running{Log: &Log{}, t: t, cancel: cancel, ended: make(chan error, 1)}
	started := make(chan *framework.App, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ended <- p.Run(ctx, program.Call{
			Environ: environ, Stdout: r.Log, Stderr: r.Log, Started: func(a *framework.App) { started <- a },
		})
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(Timeout):
			t.Errorf("programtest: the program does not end\n%s", r.Log)
		}
	})
	select {
	case r.App = <-started:
	case err := <-r.ended:
		t.Fatalf("programtest: the program ended: %v\n%s", err, r.Log)
	case <-time.After(Timeout):
		t.Fatalf("programtest: the program is not ready\n%s", r.Log)
	}
	return r
}

// Stop ends the program as SIGTERM does and returns what Run returned.
func (r *Running) Stop() error {
	r.t.Helper()
	r.cancel()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(Timeout):
		r.t.Fatalf("programtest: the program does not end\n%s", r.Log)
		return nil
	}
}

// Command runs one of the program's commands to its end and returns what it
// printed and how it ended.
func Command(t testing.TB, p Program, environ []string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	log := &Log{}
	err := p.Run(ctx, program.Call{Args: args, Environ: environ, Stdout: log, Stderr: log})
	return log.String(), err
}
