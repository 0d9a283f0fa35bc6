package localredis

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// portAttempts: between finding a port free and the server's bind somebody
	// else may take it.
	portAttempts = 5
	// answerPoll is how often a starting server is asked. It gives no signal.
	answerPoll = 10 * time.Millisecond
	// stopTimeout bounds an orderly stop; then the server is killed.
	stopTimeout = 5 * time.Second
	// recordName is the file in Dir that says which server works on it.
	recordName = "localredis.json"
)

// record is what recordName holds.
type record struct {
	Port     int  `json:"port"`
	Owner    int  `json:"owner_pid"`
	Embedded bool `json:"embedded,omitempty"`
}

func startProcess(ctx context.Context, binary string, opts Options) (*Server, error) {
	dir, temporary := opts.Dir, false
	if dir == "" {
		tmp, err := os.MkdirTemp("", "headrace-redis-")
		if err != nil {
			return nil, fmt.Errorf("localredis: %w", err)
		}
		dir, temporary = tmp, true
	}
	dir, err := makeDir(dir)
	if err != nil {
		return nil, err
	}
	clean := func() {
		if temporary {
			_ = os.RemoveAll(dir)
		}
	}
	// Two servers on one append-only file would spoil it.
	if s := adopt(ctx, dir); s != nil {
		return s, nil
	}
	var last error
	for range portAttempts {
		p, err := spawn(ctx, binary, dir, opts.Port, !temporary)
		if err == nil {
			_ = writeRecord(dir, record{Port: p.port, Owner: os.Getpid()})
			s := newServer(redisURL(p.port), KindServer, func() error {
				err := p.stop()
				_ = os.Remove(filepath.Join(dir, recordName))
				clean()
				return err
			})
			go func() {
				<-p.ended
				select {
				case <-p.asked:
					s.end(nil)
				default:
					s.end(p.how)
				}
			}()
			return s, nil
		}
		last = err
		if ctx.Err() != nil || opts.Port != 0 {
			break
		}
	}
	clean()
	return nil, fmt.Errorf("localredis: start %s: %w", binary, last)
}

// makeDir returns dir's absolute path, and makes it where it is missing.
func makeDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("localredis: the folder for the data: %w", err)
	}
	return dir, nil
}

func redisURL(port int) string { return fmt.Sprintf("redis://127.0.0.1:%d/0", port) }

// adopt returns the server that works on dir already, or nil. One whose owner
// is gone becomes this process's own.
func adopt(ctx context.Context, dir string) *Server {
	r, ok := readRecord(ctx, dir)
	if !ok || r.Embedded {
		return nil
	}
	client := newClient(r.Port)
	defer client.Close()
	answer, err := client.ConfigGet(ctx, "dir").Result()
	if err != nil || answer["dir"] != dir {
		return nil
	}
	if alive(r.Owner) {
		return newServer(redisURL(r.Port), KindShared, func() error { return nil })
	}
	_ = writeRecord(dir, record{Port: r.Port, Owner: os.Getpid()})
	return newServer(redisURL(r.Port), KindServer, func() error {
		c := newClient(r.Port)
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		// A server that stops closes the connection instead of answering.
		_ = c.Shutdown(ctx).Err()
		_ = os.Remove(filepath.Join(dir, recordName))
		return nil
	})
}

// readRecord returns what dir's record says, if something listens there.
func readRecord(ctx context.Context, dir string) (r record, ok bool) {
	raw, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil || json.Unmarshal(raw, &r) != nil || r.Port <= 0 {
		return r, false
	}
	return r, accepts(ctx, r.Port) == nil
}

func writeRecord(dir string, r record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, recordName), raw, 0o600)
}

func newClient(port int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), MaxRetries: -1,
		DialTimeout: time.Second, DialerRetries: 1, ContextTimeoutEnabled: true,
	})
}

func accepts(ctx context.Context, port int) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return c.Close()
}

// process is a redis-server that was started here.
type process struct {
	port  int
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process is gone
	how   error         // how it ended
	asked chan struct{} // closed when it is asked to end
	out   *tail
}

// spawn starts one redis-server, on a free port where port is 0, and waits until
// it answers.
func spawn(ctx context.Context, binary, dir string, port int, keep bool) (*process, error) {
	if port == 0 {
		var err error
		if port, err = freePort(); err != nil {
			return nil, err
		}
	}
	appendonly := "no"
	if keep {
		appendonly = "yes"
	}
	p := &process{port: port, ended: make(chan struct{}), asked: make(chan struct{}), out: &tail{}}
	p.cmd = exec.Command(binary, //nolint:noctx // it outlives every context and is stopped by Close
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--appendonly", appendonly, "--appendfsync", "everysec", "--loglevel", "warning")
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = childAttr()

	started := make(chan error, 1)
	go func() {
		// The kernel ties the child's life to this thread, not to the process.
		runtime.LockOSThread()
		defer close(p.ended)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			if p.how = p.cmd.Wait(); p.how == nil {
				p.how = errors.New("exit status 0")
			}
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if err := p.answers(ctx); err != nil {
		_ = p.cmd.Process.Kill()
		<-p.ended
		return nil, err
	}
	return p, nil
}

// answers waits until the server answers and it is this one that does.
func (p *process) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(answerPoll)
	defer tick.Stop()
	for {
		// A refused connection is what is waited out here; the client would
		// print it, so it comes only once the port accepts.
		err := accepts(ctx, p.port)
		if err == nil {
			client := newClient(p.port)
			err = client.Ping(ctx).Err()
			client.Close()
		}
		if err == nil {
			select {
			case <-p.ended: // another server has the port
			default:
				return nil
			}
		}
		select {
		case <-p.ended:
			return fmt.Errorf("the server ended at once: %s", p.out)
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer on port %d: %w", p.port, errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}

// stop ends the server in good order, so that its file is synced.
func (p *process) stop() error {
	close(p.asked)
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		_ = p.cmd.Process.Kill()
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("localredis: the server did not stop within %s and was killed", stopTimeout)
	}
}

func freePort() (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// tail keeps the end of what the server printed.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if n := len(t.buf) - 2048; n > 0 {
		t.buf = t.buf[n:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.buf))
}
