package framework

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// A job that fails comes back after a random wait below a bound that doubles
// with each failure in a row, from jobBackoffBase to jobBackoffCap. One that ran
// longer than the cap before it failed starts over.
const (
	jobBackoffBase = time.Second
	jobBackoffCap  = time.Minute
)

// job is one of the service's background jobs.
type job struct {
	name string
	fn   func(ctx context.Context) error
}

// Background registers a job that runs while the App is up: from the moment
// that its subscriptions run until the drain begins, which cancels its context.
// The drain waits for it within drain.timeout, and what it emitted is published
// before the broker and the database are closed.
//
// A job that fails, panics or exits its goroutine is logged, counted in
// headrace_job_failures_total and started again after a backoff of at most a
// minute; one that returns nil is done. Its context is good for Emit, Publish
// and App.Tx. For work that is due again and again pass Every. Every replica of
// the service runs the job. The name is in lower case, as a handler's, and taken
// once.
func (a *App) Background(name string, fn func(ctx context.Context) error) {
	switch {
	case !handlerName.MatchString(name):
		a.fault(fmt.Errorf("framework: job %q: give a name in lower case letters, digits, dashes and dots, such as \"purge-keys\"", name))
	case fn == nil:
		a.fault(fmt.Errorf("framework: job %q: its function is nil: pass one", name))
	}
	for _, j := range a.jobs {
		if j.name == name {
			a.fault(fmt.Errorf("framework: job %q is registered twice: give the second one another name", name))
			return
		}
	}
	a.jobs = append(a.jobs, &job{name: name, fn: fn})
	a.stats.jobFailures.WithLabelValues(name)
}

// Every returns a job for Background that calls fn at once and then each
// interval, measured from the end of one call to the start of the next, until
// its context ends. A call that fails ends it, so that Background logs, counts
// and repeats it. An interval of 0 or less is a minute.
func Every(interval time.Duration, fn func(ctx context.Context) error) func(ctx context.Context) error {
	if interval <= 0 {
		interval = time.Minute
	}
	return func(ctx context.Context) error {
		for {
			if err := fn(ctx); err != nil {
				return err
			}
			if !sleep(ctx, interval) {
				return nil
			}
		}
	}
}

// sleep waits for d; false means that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// jobs are the running jobs of one Run.
type jobs struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	running map[string]bool
}

// startJobs starts every job on a context of their own.
func (a *App) startJobs(work context.Context) *jobs {
	if len(a.jobs) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(a.Context(work))
	r := &jobs{cancel: cancel, running: map[string]bool{}}
	for _, j := range a.jobs {
		r.running[j.name] = true
		r.wg.Go(func() {
			a.keepRunning(ctx, j)
			r.mu.Lock()
			delete(r.running, j.name)
			r.mu.Unlock()
		})
	}
	return r
}

// stop cancels the jobs and waits for them until ctx ends.
func (r *jobs) stop(ctx context.Context) error {
	if r == nil {
		return nil
	}
	r.cancel()
	if within(ctx, r.wg.Wait) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for name := range r.running {
		names = append(names, fmt.Sprintf("%q", name))
	}
	return fmt.Errorf("framework: drain: jobs still run although their context was cancelled: %s", strings.Join(names, ", "))
}

// keepRunning runs the job until it is done or ctx ends.
func (a *App) keepRunning(ctx context.Context, j *job) {
	for failures := 0; ; {
		begun := time.Now()
		err := runJob(ctx, j.fn)
		switch {
		case ctx.Err() != nil:
			// What a job answers to its cancellation is no failure, unless it panicked.
			if failed := (*jobPanicError)(nil); errors.As(err, &failed) {
				a.jobFailed(ctx, j, err, 0)
			}
			return
		case err == nil:
			a.logger.InfoContext(ctx, "job done", "job", j.name)
			return
		}
		if time.Since(begun) > jobBackoffCap {
			failures = 0
		}
		bound := jobBackoffBase << min(failures, 10)
		wait := rand.N(min(bound, jobBackoffCap))
		failures++
		a.jobFailed(ctx, j, err, wait)
		if !sleep(ctx, wait) {
			return
		}
	}
}

func (a *App) jobFailed(ctx context.Context, j *job, err error, wait time.Duration) {
	a.stats.jobFailures.WithLabelValues(j.name).Inc()
	attrs := []any{"job", j.name, "error", err, "again_in", wait.Round(time.Millisecond)}
	if failed := (*jobPanicError)(nil); errors.As(err, &failed) && failed.stack != "" {
		attrs = append(attrs, "stack", failed.stack)
	}
	a.logger.ErrorContext(ctx, "job failed", attrs...)
}

// jobPanicError is a job that did not return.
type jobPanicError struct{ what, stack string }

func (e *jobPanicError) Error() string { return e.what }

// maxJobStack bounds the stack in the log, in bytes.
const maxJobStack = 8 << 10

// runJob calls fn in a goroutine of its own, which it may panic in or exit.
func runJob(ctx context.Context, fn func(context.Context) error) error {
	result := make(chan error, 1)
	go func() {
		err := error(&jobPanicError{what: "the job ended its goroutine with runtime.Goexit"})
		defer func() {
			if p := recover(); p != nil {
				stack := debug.Stack()
				err = &jobPanicError{what: fmt.Sprintf("the job panicked: %v", p), stack: string(stack[:min(len(stack), maxJobStack)])}
			}
			result <- err
		}()
		err = fn(ctx)
	}()
	return <-result
}
