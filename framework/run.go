package framework

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/logging"
)

// Run validates the wiring, takes up all work and keeps at it until ctx ends,
// Close is called or a part fails; then it drains and returns. It returns nil
// after a clean drain, and otherwise what failed and what the drain had to leave
// behind. The drain ends within drain.delay and drain.timeout and about two
// seconds, whatever handlers do. An App runs once: a second Run is ErrRunOnce.
func (a *App) Run(ctx context.Context) error {
	ctx, err := a.begin(ctx)
	if err != nil {
		return err
	}
	defer a.end()
	if err := a.Validate(); err != nil {
		return err
	}
	// The work outlives ctx: handlers and requests finish during the drain.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	r := &run{a: a, failed: make(chan error, 1)}
	cause := r.start(ctx, work)
	if cause == nil {
		a.logger.InfoContext(ctx, "ready", "http", a.HTTPAddr(), "admin", a.AdminAddr(), "handlers", len(a.handlers))
		select {
		case <-ctx.Done():
		case cause = <-r.failed:
			a.logger.ErrorContext(ctx, "a part failed: draining", "error", cause)
		}
	}
	return errors.Join(cause, r.drain(work, stopWork))
}

// Close ends a Run and waits for its drain. An App that never ran is closed at
// once and can't run any more. It returns nil; Run tells how the drain went.
func (a *App) Close() error {
	a.mu.Lock()
	if a.state == stateNew {
		a.state = stateClosed
		a.mu.Unlock()
		close(a.done)
		return nil
	}
	cancel := a.cancel
	a.mu.Unlock()
	if cancel != nil {
		cancel(errors.New("closed"))
	}
	<-a.done
	return nil
}

func (a *App) begin(ctx context.Context) (context.Context, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != stateNew {
		return nil, ErrRunOnce
	}
	a.state = stateStarting
	ctx, a.cancel = context.WithCancelCause(ctx)
	return ctx, nil
}

func (a *App) end() {
	a.mu.Lock()
	a.state = stateClosed
	cancel := a.cancel
	a.mu.Unlock()
	cancel(nil)
	close(a.done)
}

func (a *App) setState(s state) {
	a.mu.Lock()
	a.state = s
	a.mu.Unlock()
	if s == stateReady {
		a.stats.ready.Set(1)
	} else {
		a.stats.ready.Set(0)
	}
}

// run is what one Run holds open.
type run struct {
	a      *App
	failed chan error

	api, admin *listener

	router     *message.Router
	routerDone chan struct{}
	crews      []*crew

	stopRelay context.CancelFunc
	relayDone chan struct{}

	stopBackground context.CancelFunc
	background     sync.WaitGroup
	jobs           *jobs
}

// fail reports that a part ended by itself. The first report counts.
func (r *run) fail(err error) {
	select {
	case r.failed <- err:
	default:
	}
}

// start takes up all parts. Ctx bounds the start; work is what they live on.
func (r *run) start(ctx, work context.Context) error {
	a := r.a
	p := a.cfg.Profile
	var err error
	if p.Admin.Addr != "" {
		limits := config.HTTP{ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute}
		if r.admin, err = listen(ctx, "admin", "admin.addr", p.Admin.Addr, a.adminRoutes(), limits, a.logger, r.fail); err != nil {
			return err
		}
	}
	subs := make([]broker.Subscription, 0, 2*len(a.handlers))
	for _, h := range a.handlers {
		a.setSubscription(h.name, "not subscribed yet")
		subs = append(subs, h.subscriptions()...)
	}
	if len(subs) > 0 {
		if err := a.cfg.Broker.EnsureTopology(ctx, subs...); err != nil {
			return fmt.Errorf("framework: create topics and groups on broker %q: %w", a.cfg.Broker.Name(), err)
		}
		if err := a.checkDeadLetterTopics(ctx); err != nil {
			return err
		}
	}
	r.startRelay(work)
	if err := r.startRouter(ctx, work); err != nil {
		return err
	}
	if p.HTTP.Addr != "" && a.routes != nil {
		if r.api, err = listen(ctx, "API", "http.addr", p.HTTP.Addr, a.Handler(), p.HTTP, a.logger, r.fail); err != nil {
			return err
		}
	}
	r.startBackground(work)
	r.jobs = a.startJobs(work)
	if context.Cause(ctx) != nil {
		return nil //nolint:nilerr // asked to stop while starting: the drain does it
	}
	a.mu.Lock()
	a.addrs = addresses{api: r.api.addr(), admin: r.admin.addr()}
	a.mu.Unlock()
	a.setState(stateReady)
	close(a.ready)
	return nil
}

func (r *run) startRelay(work context.Context) {
	if r.a.relay == nil {
		return
	}
	ctx, stop := context.WithCancel(work)
	r.stopRelay, r.relayDone = stop, make(chan struct{})
	go func() {
		defer close(r.relayDone)
		err := r.a.relay.Run(ctx)
		if ctx.Err() == nil {
			r.fail(fmt.Errorf("framework: the outbox relay ended: %w", orEnded(err)))
		}
	}()
}

func orEnded(err error) error {
	if err == nil {
		return errors.New("it returned without an error")
	}
	return err
}

func (r *run) startRouter(ctx, work context.Context) error {
	a := r.a
	if len(a.handlers) == 0 {
		return nil
	}
	a.warn(ctx)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: a.handlerBudget()}, logging.Watermill(a.logger))
	if err != nil {
		return fmt.Errorf("framework: make the router: %w", err)
	}
	registered := make([][2]*message.Handler, len(a.handlers))
	for i, h := range a.handlers {
		stack, err := a.stackOf(h)
		if err != nil {
			return err
		}
		live, redrives, err := a.subscribers(h)
		if err != nil {
			return err
		}
		h.crew.start(2 * max(h.policy.concurrency, 1)) // one for the stack, one for its attempt
		r.crews = append(r.crews, h.crew)
		process := a.process(h, stack)
		registered[i][0] = router.AddConsumerHandler(h.name, h.event.Topic, live, process)
		registered[i][1] = router.AddConsumerHandler(h.name+"/redrive", broker.RedriveTopic(h.group), redrives, process)
	}
	r.router, r.routerDone = router, make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		defer close(r.routerDone)
		ended <- router.Run(work)
	}()
	select {
	case <-router.Running():
	case err := <-ended:
		return fmt.Errorf("framework: subscribe: %w", orEnded(err))
	case <-ctx.Done():
		return nil
	}
	for i, h := range a.handlers {
		a.setSubscription(h.name, "")
		live, redrives := registered[i][0].Stopped(), registered[i][1].Stopped()
		r.background.Go(func() { r.watch(h, h.event.Topic, live) })
		r.background.Go(func() { r.watch(h, broker.RedriveTopic(h.group), redrives) })
	}
	return nil
}

// checkDeadLetterTopics asks the broker for each group's dead letters: a group
// that can't be looked at may not be written to either, and that must not show
// only when the first message fails.
func (a *App) checkDeadLetterTopics(ctx context.Context) error {
	var errs []error
	for _, h := range a.handlers {
		topic := broker.DeadLetterTopic(h.group)
		if _, err := a.cfg.Broker.Admin().Depth(ctx, topic); err != nil {
			errs = append(errs, fmt.Errorf("%w: %w", &Finding{
				Handler: h.name, Rule: RuleDeadLetters,
				Found:  fmt.Sprintf("its dead letters' topic %q on broker %q can't be looked at", topic, a.cfg.Broker.Name()),
				Danger: "a message that fails may have nowhere to go, and would come for ever",
				Fix:    "let the service create, read and write that topic",
			}, err))
		}
	}
	return errors.Join(errs...)
}

// warn tells what holds only in part on this broker.
func (a *App) warn(ctx context.Context) {
	f := a.cfg.Broker.Features()
	if !f.Durable { // a broker that ends with the process has no replicas and no crashes
		return
	}
	var ordered []string
	for _, h := range a.handlers {
		if !f.DeliveryCount {
			a.logger.WarnContext(ctx, "this broker does not count deliveries: a message that kills the process comes again for ever",
				"handler", h.name, "broker", a.cfg.Broker.Name())
		}
		if n := len(h.policy.redeliver); n > 0 && f.HoldsDelay && f.MaxDelay > 0 && slices.Max(h.policy.redeliver) > f.MaxDelay {
			a.logger.WarnContext(ctx, "redelivery delays hold while this process lives: after a restart their messages come sooner on this broker",
				"handler", h.name, "broker", a.cfg.Broker.Name(), "delays", h.policy.redeliver, "after_a_restart", f.MaxDelay)
		}
		if h.policy.order && !f.OrderAcrossReplicas {
			ordered = append(ordered, h.name)
		}
	}
	if len(ordered) > 0 {
		a.logger.InfoContext(ctx, "order by key holds within one process on this broker, and not over its kill: run one replica of the service, or choose a broker that keeps order across them",
			"handlers", ordered, "broker", a.cfg.Broker.Name())
	}
}

// watch makes a subscription that ends by itself the end of the service: a
// process that looks alive and consumes nothing helps nobody.
func (r *run) watch(h *handler, topic string, stopped <-chan struct{}) {
	select {
	case <-stopped:
	case <-r.routerDone:
	}
	r.a.mu.Lock()
	ours := r.a.state == stateDraining || r.a.state == stateClosed
	r.a.subs[h.name] = "ended"
	r.a.mu.Unlock()
	if !ours {
		r.fail(fmt.Errorf("framework: handler %q: its subscription to %q ended by itself", h.name, topic))
	}
}

func (r *run) startBackground(work context.Context) {
	ctx, stop := context.WithCancel(work)
	r.stopBackground = stop
	if len(r.a.handlers) > 0 {
		r.background.Go(func() { r.a.pollStats(ctx) })
	}
	if n, ok := r.a.cfg.OutboxWaker.(OutboxNotifier); ok {
		r.background.Go(func() {
			if err := n.Run(ctx); err != nil && ctx.Err() == nil {
				r.a.logger.ErrorContext(ctx, "other processes' relays are not woken any more", "error", err)
			}
		})
	}
	if r.a.cfg.DB != nil {
		r.background.Go(func() { r.a.forgetLines(ctx) })
	}
	if r.a.cleaner != nil {
		r.background.Go(func() {
			if err := r.a.cleaner.Run(ctx); err != nil && ctx.Err() == nil {
				r.a.logger.ErrorContext(ctx, "inbox clean-up ended", "error", err)
			}
		})
	}
}

// grace is what follows a deadline so that those who obey it can say so.
const grace = time.Second

// flushShare is the part of drain.timeout that is kept for the outbox.
const flushShare = 5

// handlerBudget is how long handlers may go on once the drain began; the rest
// of drain.timeout is the outbox's.
func (a *App) handlerBudget() time.Duration {
	total := a.cfg.Profile.Drain.Timeout
	return total - total/flushShare
}

// subscriberBudget ends a little before handlerBudget: a handler whose context
// is cancelled then can still give its message back.
func (a *App) subscriberBudget() time.Duration {
	b := a.handlerBudget()
	return b - min(grace, b/5)
}

// drain takes the parts down in the order that loses nothing.
func (r *run) drain(work context.Context, stopWork context.CancelFunc) error {
	a := r.a
	begun := time.Now()
	a.setState(stateDraining)
	if d := a.cfg.Profile.Drain.Delay; d > 0 && r.api != nil {
		time.Sleep(d) // the point of it: load balancers look in the meantime
	}
	start := time.Now()
	end := start.Add(a.cfg.Profile.Drain.Timeout)

	err := r.stopIntake(work, start.Add(a.handlerBudget()))
	for _, c := range r.crews {
		c.stop()
	}
	if r.stopBackground != nil {
		r.stopBackground()
	}
	err = errors.Join(err, r.flush(work, end))
	stopWork()
	closing, cancel := context.WithTimeout(context.WithoutCancel(work), grace)
	defer cancel()
	err = errors.Join(err, r.admin.shutdown(closing))
	if !within(closing, r.background.Wait) {
		err = errors.Join(err, errors.New("framework: drain: background work was still running"))
	}
	took := time.Since(begun).Round(time.Millisecond)
	if err != nil {
		a.logger.WarnContext(work, "drained with leftovers", "took", took, "error", err)
	} else {
		a.logger.InfoContext(work, "drained", "took", took)
	}
	return err
}

// stopIntake closes the API and the subscriptions, cancels the jobs and waits for
// what runs.
func (r *run) stopIntake(work context.Context, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(work, deadline)
	defer cancel()
	var wg sync.WaitGroup
	var apiErr, routerErr, jobsErr error
	wg.Go(func() { apiErr = r.api.shutdown(ctx) })
	wg.Go(func() { jobsErr = r.jobs.stop(ctx) })
	if r.router != nil {
		wg.Go(func() { routerErr = r.closeRouter(deadline) })
	}
	wg.Wait()
	return errors.Join(apiErr, routerErr, jobsErr)
}

func (r *run) closeRouter(deadline time.Time) error {
	closed := make(chan error, 1)
	go func() { closed <- r.router.Close() }()
	late := time.NewTimer(time.Until(deadline) + grace)
	defer late.Stop()
	select {
	case err := <-closed:
		if err == nil {
			return nil
		}
	case <-late.C:
	}
	return fmt.Errorf("framework: drain: handlers were still running after %s: %s: their messages come again", r.a.handlerBudget(), r.a.running())
}

// running names the handlers with messages in hand.
func (a *App) running() string {
	var names []string
	for _, h := range a.handlers {
		if n := h.inFlight.Load(); n > 0 {
			names = append(names, fmt.Sprintf("%q (%d)", h.name, n))
		}
	}
	if len(names) == 0 {
		return "none of them holds a message"
	}
	return strings.Join(names, ", ")
}

// flush empties the outbox as far as the time goes. Rows that stay are published
// by the next relay.
func (r *run) flush(work context.Context, end time.Time) error {
	if r.stopRelay == nil {
		return nil
	}
	ctx, cancel := context.WithDeadline(work, end)
	defer cancel()
	if err := r.a.relay.Flush(ctx); err != nil {
		r.a.logger.WarnContext(work, "outbox not flushed: its rows stay for the next relay", "error", err)
	}
	r.stopRelay()
	late, stop := context.WithDeadline(context.WithoutCancel(work), end.Add(grace))
	defer stop()
	select {
	case <-r.relayDone:
		return nil
	case <-late.Done():
		return errors.New("framework: drain: the outbox relay did not stop in time")
	}
}

// within tells whether wait returned before ctx ended.
func within(ctx context.Context, wait func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
