package framework

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/inbox"
	"github.com/headrace-go/headrace/framework/outbox"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// Config is what an App is made of. The connections in it stay the caller's:
// the App closes none of them.
type Config struct {
	// Service is the service's name in lower case, such as "payments": the source
	// of its events and the prefix of its consumer groups. Required.
	Service string
	// Profile is the policy. Zero fields get their defaults
	// (config.Profile.WithDefaults); an empty address means no listener.
	Profile config.Profile
	// Sources tells where the profile has its values from, by key, as
	// config.Explain does: for App.Explain. Default: what differs from the default
	// comes from the profile.
	Sources map[string]config.Source
	// DB is the service's database. Nil: no HandleTx, HandleCall or Emit, and
	// dedup by DedupStore or in memory. The framework's tables must be there
	// (schema.Ensure; connect.Open does it).
	DB *sql.DB
	// Dialect is DB's. Required with DB.
	Dialect sqltx.Dialect
	// Broker carries the events. Required.
	Broker broker.Broker
	// Registry holds the known event types. Default: an empty one, which handlers
	// and Emits fill.
	Registry *events.Registry
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// Metrics is where /metrics reads. Default: a new registry with the Go and
	// process collectors.
	Metrics *prometheus.Registry
	// Tracer makes spans. Default: otel's global provider.
	Tracer trace.TracerProvider
	// OutboxWaker tells the relay of rows that other processes wrote. One that is
	// an OutboxNotifier too tells the others of this one's. Default: none; the
	// relay polls for rows that are not its own process's.
	OutboxWaker outbox.Waker
	// MaxEventBytes is the largest event, envelope included, that the service is to
	// publish or to handle. Default 0: not stated; else the App refuses to start on
	// a broker that carries less.
	MaxEventBytes int
	// Middleware is the team's own, outermost first. It runs in each attempt,
	// around the dedup and the handler.
	Middleware []message.HandlerMiddleware
	// DedupStore keeps the keys of plain handlers. Default: the database where
	// there is one, else this process's memory, which forgets at a restart.
	DedupStore middleware.DedupStore
	// Clock defaults to time.Now.
	Clock func() time.Time
}

// OutboxNotifier tells other processes' relays of committed rows, as
// pgnotify.Notifier does.
type OutboxNotifier interface {
	// Notify has the others told soon. It never blocks.
	Notify()
	// Run tells until ctx ends.
	Run(ctx context.Context) error
}

// WithDefaults returns c with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.Profile = c.Profile.WithDefaults()
	if c.Registry == nil {
		c.Registry = events.NewRegistry()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Metrics == nil {
		c.Metrics = newMetricsRegistry()
	}
	if c.Tracer == nil {
		c.Tracer = otel.GetTracerProvider()
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return c
}

var (
	serviceName = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)
	handlerName = regexp.MustCompile(`^[a-z][a-z0-9]*([-_.][a-z0-9]+)*$`)
)

// Validate reports every field that can't work.
func (c Config) Validate() error {
	var errs []error
	if !serviceName.MatchString(c.Service) {
		errs = append(errs, fmt.Errorf("framework: Config.Service is %q: give a name in lower case letters, digits and dashes, such as \"payments\"", c.Service))
	}
	if c.Broker == nil {
		errs = append(errs, errors.New("framework: Config.Broker is nil: pass a broker (connect.Open makes one from the profile)"))
	}
	if c.DB != nil {
		if err := c.Dialect.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("framework: Config.DB is set, so Config.Dialect must be too: %w", err))
		}
	}
	if c.DB == nil && c.OutboxWaker != nil {
		errs = append(errs, errors.New("framework: Config.OutboxWaker is set without Config.DB: there is no outbox to wake"))
	}
	errs = append(errs, c.Profile.Validate())
	return errors.Join(errs...)
}

// App is one service. Register everything, then Run it once. Registration is
// not safe for concurrent use; everything else is.
type App struct {
	cfg      Config
	registry *events.Registry
	logger   *slog.Logger
	metrics  *middleware.Metrics
	stats    *appMetrics
	writer   *outbox.Writer
	relay    *outbox.Relay
	dedup    middleware.DedupStore
	cleaner  *inbox.Cleaner

	handlers []*handler
	jobs     []*job
	routes   http.Handler
	faults   []error

	mu     sync.Mutex
	state  state
	cancel context.CancelCauseFunc
	ready  chan struct{}
	done   chan struct{}
	addrs  addresses
	subs   map[string]string // by handler: why its subscription is not up; absent once it is
}

type addresses struct{ api, admin string }

type state int

const (
	stateNew state = iota
	stateStarting
	stateReady
	stateDraining
	stateClosed
)

// New makes an App and checks cfg. It opens nothing and starts nothing.
func New(cfg Config) (*App, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &App{
		cfg:      cfg,
		registry: cfg.Registry,
		logger:   cfg.Logger.With("service", cfg.Service),
		dedup:    cfg.DedupStore,
		ready:    make(chan struct{}),
		done:     make(chan struct{}),
		subs:     map[string]string{},
	}
	var err error
	if a.metrics, err = middleware.NewMetrics(cfg.Metrics, middleware.MetricsConfig{Service: cfg.Service, KnownTypes: a.registry.Known}); err != nil {
		return nil, fmt.Errorf("framework: register metrics: %w", err)
	}
	if a.stats, err = newAppMetrics(cfg.Metrics, cfg.Service); err != nil {
		return nil, fmt.Errorf("framework: register metrics: %w", err)
	}
	if err := a.buildStores(); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *App) now() time.Time { return a.cfg.Clock().UTC() }

// Emits registers event types that the service may publish. The types of its
// handlers are registered by themselves. A fault is reported by Validate and
// Run.
func (a *App) Emits(ds ...events.Descriptor) {
	if err := a.registry.Register(ds...); err != nil {
		a.fault(err)
	}
}

// HTTP sets the handler of the API listener (http.addr). Each request has a
// correlation id, a span, a bounded body and a context for Emit, Publish and Tx.
func (a *App) HTTP(h http.Handler) {
	if a.routes != nil {
		a.fault(errors.New("framework: App.HTTP was called twice: mount both handlers on one mux"))
	}
	a.routes = h
}

// Logger is the service's logger.
func (a *App) Logger() *slog.Logger { return a.logger }

// Metrics is the registry that /metrics shows, for the service's own
// collectors.
func (a *App) Metrics() *prometheus.Registry { return a.cfg.Metrics }

// Registry holds the event types that the service knows.
func (a *App) Registry() *events.Registry { return a.registry }

// Logger returns the logger of the App that ctx belongs to, as Emit finds it;
// else slog.Default().
func Logger(ctx context.Context) *slog.Logger {
	if s := scopeFrom(ctx); s != nil {
		return s.app.logger
	}
	return slog.Default()
}

func (a *App) fault(err error) { a.faults = append(a.faults, err) }

// Ready is closed once the App has taken up all of its work: subscriptions run
// and the listeners accept. It stays open if Run fails before.
func (a *App) Ready() <-chan struct{} { return a.ready }

// HTTPAddr is the API listener's address, with the port that was taken; empty
// before Ready or without a listener.
func (a *App) HTTPAddr() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.addrs.api
}

// AdminAddr is the admin listener's address, as HTTPAddr.
func (a *App) AdminAddr() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.addrs.admin
}

// HandlerInfo describes one handler as it will run.
type HandlerInfo struct {
	// Name, Group, Topic, DeadLetterTopic and RedriveTopic are its names.
	Name, Group, Topic, DeadLetterTopic, RedriveTopic string
	// Event is the event type it takes, and its version.
	Event, Version string
	// Kind is "handle", "handle_tx" or "handle_call".
	Kind string
	// Ordered tells whether events of one key are handled in order.
	Ordered bool
	// Layers is the stack around it, outermost first.
	Layers []middleware.Layer
}

// Pipeline describes every handler and the stack around it, in the order of
// registration. A handler whose stack is faulty has no layers: Validate says
// why.
func (a *App) Pipeline() []HandlerInfo {
	infos := make([]HandlerInfo, 0, len(a.handlers))
	for _, h := range a.handlers {
		info := HandlerInfo{
			Name: h.name, Group: h.group, Topic: h.event.Topic, DeadLetterTopic: broker.DeadLetterTopic(h.group), RedriveTopic: broker.RedriveTopic(h.group),
			Event: h.event.Name, Version: h.event.Version, Kind: string(h.kind), Ordered: h.policy.order,
		}
		if stack, err := a.stackOf(h); err == nil {
			info.Layers = stack.Layers()
		}
		infos = append(infos, info)
	}
	return infos
}

// register adds a handler and keeps its faults for Validate.
func (a *App) register(k kind, d events.Descriptor, name string, isNil bool, opts []HandlerOption) *handler {
	p := policyFrom(a.cfg.Profile)
	for _, opt := range opts {
		if opt != nil {
			opt(&p)
		}
	}
	h := &handler{name: name, kind: k, event: d, policy: p, group: p.group, code: setInCode(opts), crew: newCrew()}
	if h.group == "" {
		h.group = a.cfg.Service + "." + name
	}
	if isNil {
		a.fault(fmt.Errorf("framework: handler %q: its function is nil: pass one", name))
	}
	if err := a.registry.Register(d); err != nil {
		a.fault(fmt.Errorf("framework: handler %q: %w", name, err))
	}
	a.handlers = append(a.handlers, h)
	return h
}

// Validate checks the whole wiring without starting anything and returns all that
// is wrong. FindingsOf gives the broken rules one by one: the handler, the rule,
// the danger and the fix.
func (a *App) Validate() error {
	return errors.Join(append(append([]error(nil), a.faults...), a.check()...)...)
}
