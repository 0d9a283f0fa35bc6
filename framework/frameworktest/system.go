// Package frameworktest runs a service in a test: on the memory broker and an
// SQLite file of its own, with ways to publish an event as another service
// would, to await what the service publishes, to wait until nothing is left to
// do, and to look at dead letters. Only tests import it.
package frameworktest

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/memory"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/pkg/events"
)

// Timeout is how long a System waits for anything before it fails the test.
const Timeout = time.Minute

// Source is the source of the events that a System publishes.
const Source = "frameworktest"

// System is one memory broker with the services on it. Its methods fail the test
// instead of returning errors. It is safe for concurrent use, but for the test's
// own goroutine rules: call it from the test's goroutine.
type System struct {
	t      testing.TB
	broker broker.Broker

	mu     sync.Mutex
	apps   []*framework.App
	topics map[string]*recorder
}

// New makes a System on a new memory broker. Everything in it ends with the
// test.
func New(t testing.TB) *System {
	t.Helper()
	b := memory.New(memory.Config{})
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("frameworktest: close the broker: %v", err)
		}
	})
	return On(t, b)
}

// On makes a System on a broker of the caller's, which stays open.
func On(t testing.TB, b broker.Broker) *System {
	t.Helper()
	return &System{t: t, broker: b, topics: map[string]*recorder{}}
}

// Broker is the System's broker.
func (s *System) Broker() broker.Broker { return s.broker }

// Profile is a profile for tests: free ports on loopback, short waits between
// attempts, a drain of 10 s.
func Profile() config.Profile {
	p := config.Default()
	p.Env = "test"
	p.HTTP.Addr, p.Admin.Addr = "127.0.0.1:0", "127.0.0.1:0"
	p.Delivery.BackoffBase, p.Delivery.BackoffCap = time.Millisecond, 10*time.Millisecond
	p.Delivery.NackDelay = 10 * time.Millisecond
	p.Outbox.PollInterval = 100 * time.Millisecond
	p.Drain.Timeout = 10 * time.Second
	return p
}

// Connections opens an SQLite database of its own, with Headrace's tables, and
// returns it with the System's broker: what a service's constructor takes.
func (s *System) Connections() *connect.Connections {
	s.t.Helper()
	p := Profile()
	p.Broker.Kind = "memory"
	p.Database.Driver = "sqlite"
	p.Database.DSN = config.Secret(filepath.Join(s.t.TempDir(), "service.db"))
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	c, err := connect.Open(ctx, p, Logger(s.t))
	if err != nil {
		s.t.Fatalf("frameworktest: %v", err)
	}
	// The connection's own broker is not used: services meet on the System's.
	c.Broker = s.broker
	s.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			s.t.Errorf("frameworktest: close the connections: %v", err)
		}
	})
	return c
}

// Logger writes to the test's log, from debug up.
func Logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(&testWriter{t: t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// testWriter drops what comes after the test's end, which t.Log would panic at.
type testWriter struct {
	t    testing.TB
	once sync.Once
	mu   sync.Mutex
	over bool
}

func (w *testWriter) Write(b []byte) (int, error) {
	w.once.Do(func() {
		w.t.Cleanup(func() {
			w.mu.Lock()
			w.over = true
			w.mu.Unlock()
		})
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.t.Logf("%s", b)
	}
	return len(b), nil
}

// Start runs app until the test ends, and returns once it is ready. The test
// fails if the app does not start, or does not drain cleanly.
func (s *System) Start(app *framework.App) *Running {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &Running{t: s.t, App: app, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = app.Run(ctx)
	}()
	s.t.Cleanup(func() {
		if err := r.end(); err != nil && !r.judged {
			s.t.Errorf("frameworktest: the app ended with: %v", err)
		}
	})
	select {
	case <-app.Ready():
	case <-r.done:
		s.t.Fatalf("frameworktest: the app did not start: %v", r.err)
	case <-time.After(Timeout):
		s.t.Fatalf("frameworktest: the app was not ready after %s", Timeout)
	}
	s.mu.Lock()
	s.apps = append(s.apps, app)
	s.mu.Unlock()
	return r
}

// Running is an app that runs.
type Running struct {
	// App is the app.
	App *framework.App

	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	judged bool
}

// Stop drains the app, as SIGTERM does, and returns what Run returned, which is
// then the test's to judge. It may be called more than once.
func (r *Running) Stop() error {
	r.judged = true
	return r.end()
}

// Wait returns what Run returned once the app has ended by itself.
func (r *Running) Wait() error {
	r.t.Helper()
	r.judged = true
	select {
	case <-r.done:
		return r.err
	case <-time.After(Timeout):
		r.t.Fatalf("frameworktest: the app still ran after %s", Timeout)
		return nil
	}
}

func (r *Running) end() error {
	r.cancel()
	select {
	case <-r.done:
		return r.err
	case <-time.After(2 * Timeout):
		return errors.New("frameworktest: the app did not stop")
	}
}

// Publish publishes events as another service would, straight to the broker, and
// returns what was sent.
func (s *System) Publish(drafts ...events.Draft) []events.Envelope {
	s.t.Helper()
	sent := make([]events.Envelope, 0, len(drafts))
	for _, d := range drafts {
		id := events.NewID()
		env, err := d.Seal(events.Stamp{ID: id, Source: Source, CorrelationID: "corr-" + id})
		if err != nil {
			s.t.Fatalf("frameworktest: %v", err)
		}
		s.Send(d.Topic, env)
		sent = append(sent, env)
	}
	return sent
}

// Send publishes an envelope as it is; sending one twice makes a duplicate.
func (s *System) Send(topic string, env events.Envelope) {
	s.t.Helper()
	payload, err := env.Encode()
	if err != nil {
		s.t.Fatalf("frameworktest: %v", err)
	}
	m := message.NewMessage(env.ID, payload)
	for k, v := range env.Headers() {
		m.Metadata.Set(k, v)
	}
	s.SendRaw(topic, m)
}

// SendRaw publishes a message of any content.
func (s *System) SendRaw(topic string, m *message.Message) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	if err := s.broker.Publisher().PublishBatch(ctx, topic, []*message.Message{m}); err != nil {
		s.t.Fatalf("frameworktest: publish to %q: %v", topic, err)
	}
}
