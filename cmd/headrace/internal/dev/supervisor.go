package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/headrace-go/headrace/framework/config"
)

// Options say how to run a workspace. The zero value of a field means its
// default.
type Options struct {
	// Dir is any folder of the workspace. Default: the current one.
	Dir string
	// State is the folder under which StateFolder is made. Default: the
	// workspace's root.
	State string
	// Env is the profile. Default: HEADRACE_ENV of Environ, else "local".
	Env string
	// Environ is the environment that the services inherit, "KEY=value".
	Environ []string
	// BrokerURL is a Redis that runs already, for profiles with Redis Streams.
	// Empty means the profile's, and where that is empty too, one is started here.
	BrokerURL string
	// AnyPort makes every service listen on a free port. Default false: the
	// profile's port, and a free one only where that is taken.
	AnyPort bool
	// BuildFlags are passed to go build.
	BuildFlags []string
	// Quiet leaves the services' logs out of Out; the log files have them.
	Quiet bool
	// Out receives everything that is printed. Required.
	Out io.Writer
	// Grace bounds how long a service may take to drain. Default 40 s.
	Grace time.Duration
}

// Running is a workspace whose services are up.
type Running struct {
	// State is what State file says.
	State State
	// Workspace is what runs.
	Workspace *Workspace
	// Folder is where the state is kept.
	Folder string

	console *Console
	procs   map[string]*process
	stop    context.CancelFunc
	done    chan struct{}
	err     error
}

// Done is closed when everything has stopped.
func (r *Running) Done() <-chan struct{} { return r.done }

// Stop drains the services, then stops the Redis, and returns what went wrong.
// It may be called more than once.
func (r *Running) Stop() error {
	r.stop()
	<-r.done
	return r.err
}

// PID returns the process id of a service, 0 when it does not run.
func (r *Running) PID(service string) int {
	if p := r.procs[service]; p != nil {
		return p.pid()
	}
	return 0
}

// Say prints a line of the supervisor's.
func (r *Running) Say(format string, args ...any) { r.console.Say(format, args...) }

// ErrStopped is what Start returns when ctx ended before all services were ready
// and everything that it had started has stopped.
var ErrStopped = errors.New("stopped before all services were ready")

// Start builds and starts every service and returns once each is ready. When
// ctx ends, everything stops as with Stop.
func Start(ctx context.Context, o Options) (*Running, error) {
	r, err := start(ctx, o.withDefaults())
	// What broke off on the way is no fault; what could not be stopped is one.
	if err != nil && ctx.Err() != nil && !errors.Is(err, errKilled) {
		return nil, ErrStopped
	}
	return r, err
}

func start(ctx context.Context, o Options) (*Running, error) {
	w, err := Find(o.Dir, o.Env)
	if err != nil {
		return nil, err
	}
	if o.BrokerURL != "" {
		o.Environ = overlay(o.Environ, map[string]string{config.EnvName("broker.url"): o.BrokerURL})
	}
	all, err := w.profiles(o)
	if err != nil {
		return nil, err
	}
	if err := checkRedis(ctx, o.BrokerURL, o.Env, all); err != nil {
		return nil, err
	}
	if err := reach(ctx, all); err != nil {
		return nil, err
	}
	if o.State == "" {
		o.State = w.Root
	}
	base, err := filepath.Abs(o.State)
	if err != nil {
		return nil, fmt.Errorf("state folder %q: %w", o.State, err)
	}
	folder := filepath.Join(base, StateFolder)
	for _, d := range []string{"bin", "logs"} {
		if err := os.MkdirAll(filepath.Join(folder, d), 0o700); err != nil {
			return nil, fmt.Errorf("make the state folder: %w", err)
		}
	}
	if s, err := ReadState(base); err == nil {
		return nil, fmt.Errorf("services of this workspace run already (process %d): stop them first, or name another folder with --state", s.PID)
	}
	names := make([]string, len(w.Services))
	for i, s := range w.Services {
		names[i] = s.Name
	}
	r := &Running{
		Workspace: w, Folder: folder,
		console: NewConsole(o.Out, names, o.Quiet),
		procs:   map[string]*process{},
		done:    make(chan struct{}),
	}
	if err := r.build(ctx, o); err != nil {
		return nil, err
	}
	if err := r.checkSettings(ctx, o, base); err != nil {
		return nil, err
	}

	// The Redis and the services outlive ctx: they are stopped in order.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	redis, err := r.broker(life, &o, all)
	if err != nil {
		cancel()
		return nil, err
	}
	closeRedis := func() error {
		if redis == nil {
			return nil
		}
		return redis.Close()
	}
	logs, err := r.prepare(ctx, o, base)
	if err != nil {
		cancel()
		return nil, errors.Join(err, closeRedis())
	}
	serve, stop := context.WithCancel(ctx)
	r.stop = stop
	g, gctx := errgroup.WithContext(serve)
	for _, p := range r.procs {
		g.Go(func() error { return p.run(gctx, o.Grace) })
	}
	go func() {
		defer close(r.done)
		defer cancel()
		defer stop()
		err := g.Wait()
		for _, l := range logs {
			l.Close()
		}
		r.err = errors.Join(err, closeRedis(), removeState(folder))
	}()
	if err := r.awaitReady(serve); err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	r.State.PID = os.Getpid()
	r.State.Started = processStart(r.State.PID)
	if err := r.State.write(folder); err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	return r, nil
}

func (o Options) withDefaults() Options {
	if o.Dir == "" {
		o.Dir = "."
	}
	if o.Env == "" {
		o.Env = DefaultEnv(o.Environ)
	}
	if o.Grace == 0 {
		o.Grace = 40 * time.Second
	}
	return o
}

// DefaultEnv is the profile where none is named: HEADRACE_ENV of environ, else
// "local".
func DefaultEnv(environ []string) string {
	env := "local"
	for _, kv := range environ {
		if k, v, _ := strings.Cut(kv, "="); k == config.EnvEnv && v != "" {
			env = v
		}
	}
	return env
}

func removeState(folder string) error {
	err := os.Remove(filepath.Join(folder, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// build compiles each service's command into the state folder.
func (r *Running) build(ctx context.Context, o Options) error {
	for _, s := range r.Workspace.Services {
		began := time.Now()
		args := append([]string{"build"}, o.BuildFlags...)
		args = append(args, "-o", r.binary(s.Name), "./cmd/"+s.Name)
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir, cmd.Env = s.Dir, o.Environ
		// So that it removes what it has made so far.
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = buildStops
		if out, err := cmd.CombinedOutput(); err != nil {
			// The terminal's Ctrl-C reaches the build as well, and may do so first.
			select {
			case <-ctx.Done():
			case <-time.After(signalLag):
			}
			return fmt.Errorf("build %s: %w\n%s", s.Name, err, strings.TrimSpace(string(out)))
		}
		r.console.Say("built %s in %s", s.Name, time.Since(began).Round(100*time.Millisecond))
	}
	return nil
}

const (
	// buildStops bounds how long an interrupted build may take to end.
	buildStops = 3 * time.Second
	// signalLag is how much later than a child this process may hear a signal.
	signalLag = 200 * time.Millisecond
	// settingsWithin bounds how long a service may take to read its settings.
	settingsWithin = 20 * time.Second
)

// checkSettings has each service read its settings as it will when it runs, and
// says of all of them what does not work: a service that refuses them tells it
// only in its log.
func (r *Running) checkSettings(ctx context.Context, o Options, base string) error {
	var errs []error
	for _, s := range r.Workspace.Services {
		if err := r.checkService(ctx, o, s, base); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (r *Running) checkService(ctx context.Context, o Options, s Service, base string) error {
	ctx, cancel := context.WithTimeout(ctx, settingsWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.binary(s.Name), "config")
	cmd.Dir, cmd.Env = base, r.Workspace.Environ(s.Name, o.Env, o.Environ)
	var why bytes.Buffer
	cmd.Stderr = &why
	err := cmd.Run()
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%s: `%s config` does not end within %s: a service must not serve when it is asked for its settings", s.Name, s.Name, settingsWithin)
	}
	text := strings.TrimSpace(why.String())
	if text == "" {
		text = err.Error()
	}
	return fmt.Errorf("%s would not start with profile %q: %s", s.Name, o.Env, text)
}

func (r *Running) binary(name string) string {
	path := filepath.Join(r.Folder, "bin", name)
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	return path
}

// broker starts a Redis when a service wants one and no address is given.
func (r *Running) broker(ctx context.Context, o *Options, all map[string]config.Profile) (*redisKeeper, error) {
	r.State.Broker = brokerSettings(o.Environ)
	r.State.BrokerURL = o.BrokerURL
	wanted := false
	for _, p := range all {
		wanted = wanted || p.Broker.Kind == "redisstream" && p.Broker.URL == ""
	}
	if !wanted {
		return nil, nil
	}
	k, err := keepRedis(ctx, filepath.Join(r.Folder, "redis"), r.console.Say)
	if err != nil {
		return nil, fmt.Errorf("start a Redis: %w", err)
	}
	o.BrokerURL, r.State.BrokerURL = k.url, k.url
	return k, nil
}

// prepare gives each service its addresses and its log file.
func (r *Running) prepare(ctx context.Context, o Options, base string) (logs []io.Closer, err error) {
	r.State.Env = o.Env
	r.State.Services = map[string]Address{}
	defer func() {
		if err != nil {
			for _, l := range logs {
				l.Close()
			}
		}
	}()
	for _, s := range r.Workspace.Services {
		httpAddr, movedHTTP, err := place(ctx, s.HTTPAddr, o.AnyPort)
		if err != nil {
			return logs, fmt.Errorf("service %s: %w", s.Name, err)
		}
		adminAddr, movedAdmin, err := place(ctx, s.AdminAddr, o.AnyPort)
		if err != nil {
			return logs, fmt.Errorf("service %s: %w", s.Name, err)
		}
		if movedHTTP && !o.AnyPort {
			r.console.Say("%s is taken; %s listens on %s", s.HTTPAddr, s.Name, httpAddr)
		}
		if movedAdmin && !o.AnyPort {
			r.console.Say("%s is taken; %s's admin listens on %s", s.AdminAddr, s.Name, adminAddr)
		}
		f, err := os.OpenFile(filepath.Join(r.Folder, "logs", s.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return logs, fmt.Errorf("service %s: open its log: %w", s.Name, err)
		}
		logs = append(logs, f)
		env := overlay(r.Workspace.environFor(s.Name, o.Environ), map[string]string{
			"HEADRACE_ENV":        o.Env,
			"HEADRACE_HTTP_ADDR":  httpAddr,
			"HEADRACE_ADMIN_ADDR": adminAddr,
		})
		if o.BrokerURL != "" {
			env = overlay(env, map[string]string{"HEADRACE_BROKER_URL": o.BrokerURL})
		}
		r.State.Services[s.Name] = Address{HTTP: "http://" + httpAddr, Admin: "http://" + adminAddr}
		r.procs[s.Name] = &process{
			name: s.Name, bin: r.binary(s.Name), dir: base, env: env,
			console: r.console, log: f, readyURL: "http://" + adminAddr + "/readyz",
			firstBackoff: 500 * time.Millisecond, lastBackoff: 10 * time.Second, healthyAfter: 30 * time.Second,
		}
	}
	return logs, nil
}

// readyWithin bounds how long the services may take to become ready.
const readyWithin = 60 * time.Second

func (r *Running) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for _, s := range r.Workspace.Services {
		a := r.State.Services[s.Name]
		if err := awaitOK(ctx, a.Admin+"/readyz"); err != nil {
			return fmt.Errorf("%s is not ready: %w: see %s", s.Name, err, filepath.Join(r.Folder, "logs", s.Name+".log"))
		}
		r.console.Say("%-*s ready: API %s   admin %s", r.console.width, s.Name, a.HTTP, a.Admin)
	}
	return nil
}

// awaitOK asks url until it answers 200. A service can't signal its supervisor
// in a way that works on every system, so it is asked.
func awaitOK(ctx context.Context, url string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("no answer yet")
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			last = fmt.Errorf("%s answers %s", url, resp.Status)
		} else if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", last, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// overlay returns environ with the given keys set and set only once.
func overlay(environ []string, set map[string]string) []string {
	out := make([]string, 0, len(environ)+len(set))
	for _, kv := range environ {
		k, _, _ := strings.Cut(kv, "=")
		if _, ok := set[k]; !ok {
			out = append(out, kv)
		}
	}
	for k, v := range set {
		out = append(out, k+"="+v)
	}
	return out
}
