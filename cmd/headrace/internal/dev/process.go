package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// process keeps one service running: it starts it, copies what it prints, and
// starts it again when it ends unasked.
type process struct {
	name    string
	bin     string
	dir     string
	env     []string
	console *Console
	log     io.Writer
	// readyURL answers 200 when the service is ready.
	readyURL string
	// firstBackoff to lastBackoff space the restarts; a run of healthyAfter
	// starts them anew.
	firstBackoff, lastBackoff, healthyAfter time.Duration

	mu  sync.Mutex
	cmd *exec.Cmd
}

// run keeps the process up until ctx ends, then asks it to stop and waits up to
// grace before it kills it. It returns an error when the process had to be
// killed or ended badly at the end.
func (p *process) run(ctx context.Context, grace time.Duration) error {
	backoff := p.firstBackoff
	for restarts := 0; ; restarts++ {
		began := time.Now()
		exited, err := p.start()
		if err != nil {
			return fmt.Errorf("start %s: %w", p.name, err)
		}
		asking, stopAsking := context.WithCancel(ctx)
		if restarts > 0 {
			go p.tellReady(asking)
		}
		select {
		case <-ctx.Done():
			stopAsking()
			return p.stop(exited, grace)
		case err := <-exited:
			stopAsking()
			if ctx.Err() != nil {
				return nil //nolint:nilerr // how it ended does not matter: it was to end
			}
			if time.Since(began) > p.healthyAfter {
				backoff = p.firstBackoff
			}
			p.console.Say("%s ended (%s); starting it again in %s", p.name, ending(err), backoff)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, p.lastBackoff)
	}
}

// tellReady says so when the service that was started again is ready.
func (p *process) tellReady(ctx context.Context) {
	if awaitOK(ctx, p.readyURL) == nil {
		p.console.Say("%s is ready again", p.name)
	}
}

func ending(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// start starts the process once. The channel yields how it ended, after all its
// output was copied.
func (p *process) start() (<-chan error, error) {
	// No CommandContext: the end of the context asks for a drain, not a kill.
	cmd := exec.Command(p.bin) //nolint:noctx // see above
	cmd.Dir, cmd.Env = p.dir, p.env
	separate(cmd)
	out, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = w, w
	// The kernel ties a child's end to the thread that started it, so that one
	// must live as long as the child: this goroutine keeps it.
	started, exited := make(chan error, 1), make(chan error, 1)
	go func() {
		release := pinThread()
		defer release()
		err := cmd.Start()
		w.Close()
		started <- err
		if err != nil {
			out.Close()
			return
		}
		copied := make(chan struct{})
		go func() {
			defer close(copied)
			p.console.Copy(p.name, out, p.log)
			out.Close()
		}()
		err = cmd.Wait()
		<-copied
		exited <- err
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.cmd = cmd
	p.mu.Unlock()
	return exited, nil
}

// errKilled is the end of a process that did not drain in time.
var errKilled = errors.New("did not stop in time and was killed: what it had not finished is delivered again at the next start")

func (p *process) stop(exited <-chan error, grace time.Duration) error {
	p.mu.Lock()
	cmd := p.cmd
	p.mu.Unlock()
	_ = terminate(cmd.Process)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-exited:
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		return nil
	case <-timer.C:
		_ = cmd.Process.Kill()
		return fmt.Errorf("%s: %w (%s)", p.name, errKilled, ending(<-exited))
	}
}

// pid returns the running process's id, 0 before the first start.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.cmd.Process == nil {
		return 0
	}
	return p.cmd.Process.Pid
}
