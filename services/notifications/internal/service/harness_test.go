package service

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/memory"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/notifications"
	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
	"github.com/headrace-go/headrace/services/notifications/internal/testdb"
)

const patience = 15 * time.Second

// harness is the service as it runs, on a memory broker, with a client that
// checks every response against the API document.
type harness struct {
	t      *testing.T
	db     testdb.DB
	broker *memory.Broker
	app    *framework.App
	base   string
	folder string
	log    *logBuffer
	routes routers.Router
	events <-chan events.Envelope
}

// setup is what a test changes of the service.
type setup struct {
	settings func(*Settings)
	channels map[domain.Channel]app.Channel
}

// start runs the service on db until the test ends.
func start(t *testing.T, db testdb.DB, with setup) *harness {
	t.Helper()
	require.NoError(t, schema.Ensure(t.Context(), db.DB, db.Dialect, slog.New(slog.DiscardHandler)))
	h := &harness{t: t, db: db, broker: memory.New(memory.Config{}), routes: document(t), folder: t.TempDir(), log: &logBuffer{}}
	t.Cleanup(func() { require.NoError(t, h.broker.Close()) })
	h.events = h.listen("notification.sent", "notification.failed")
	s := settings(t)
	s.Notifications.Folder = h.folder
	if with.settings != nil {
		with.settings(&s)
	}
	require.NoError(t, s.Validate())
	a, err := New(s, Conns{
		DB: h.db.DB, Dialect: h.db.Dialect, Broker: h.broker, Channels: with.channels,
		Logger: slog.New(slog.NewTextHandler(io.MultiWriter(h.log, t.Output()), &slog.HandlerOptions{Level: slog.LevelInfo})),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	select {
	case <-a.Ready():
	case err := <-ended:
		require.NoError(t, err, "the service ended before it was ready")
	case <-time.After(patience):
		t.Fatal("the service is not ready")
	}
	h.app, h.base = a, "http://"+a.HTTPAddr()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(patience):
			t.Error("the service does not stop")
		}
	})
	return h
}

func settings(t *testing.T) Settings {
	t.Helper()
	s := Defaults()
	require.NoError(t, config.Load(&s, config.Options{FS: notifications.Files, Env: "test", Environ: []string{}}))
	s.Delivery.BackoffBase, s.Delivery.BackoffCap = time.Millisecond, 5*time.Millisecond
	return s
}

func document(t *testing.T) routers.Router {
	t.Helper()
	raw, err := notifications.Files.ReadFile("api/openapi.yaml")
	require.NoError(t, err)
	doc, err := openapi3.NewLoader().LoadFromData(raw)
	require.NoError(t, err)
	require.NoError(t, doc.Validate(t.Context()))
	router, err := gorillamux.NewRouter(doc)
	require.NoError(t, err)
	return router
}

// listen returns the events of the topics, each once, in the order in which this
// group received them.
func (h *harness) listen(topics ...string) <-chan events.Envelope {
	h.t.Helper()
	out := make(chan events.Envelope, 1000)
	for _, topic := range topics {
		sub, err := h.broker.Subscriber(broker.SubscriberConfig{Group: "test", Order: true})
		require.NoError(h.t, err)
		msgs, err := sub.Subscribe(context.Background(), topic)
		require.NoError(h.t, err)
		go func() {
			for m := range msgs {
				if e, err := events.Decode(m.Payload); err == nil {
					out <- e
				}
				m.Ack()
			}
		}()
		h.t.Cleanup(func() { require.NoError(h.t, sub.Close()) })
	}
	return out
}

// next waits for the next event of the service.
func (h *harness) next(typ string) events.Envelope {
	h.t.Helper()
	select {
	case e := <-h.events:
		require.Equal(h.t, typ, e.Type)
		require.Equal(h.t, Name, e.Source)
		return e
	case <-time.After(patience):
		h.t.Fatalf("no %s", typ)
		return events.Envelope{}
	}
}

// silent checks that the outbox is empty and no event is left to be read.
func (h *harness) silent() {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		var n int
		err := h.db.QueryRowContext(h.t.Context(), "SELECT COUNT(*) FROM "+schema.OutboxTable).Scan(&n)
		return err == nil && n == 0
	}, patience, 5*time.Millisecond)
	select {
	case e := <-h.events:
		h.t.Fatalf("unexpected %s of %s", e.Type, e.Metadata.OrderingKey)
	default:
	}
}

// publish publishes a draft as another service would.
func (h *harness) publish(d events.Draft) events.Envelope {
	h.t.Helper()
	e := seal(h.t, d)
	h.send(d.Topic, e)
	return e
}

func seal(t *testing.T, d events.Draft) events.Envelope {
	t.Helper()
	require.NoError(t, d.Err())
	e, err := d.Seal(events.Stamp{ID: events.NewID(), Source: "orders", CorrelationID: "journey-1", Now: time.Now()})
	require.NoError(t, err)
	return e
}

func (h *harness) send(topic string, e events.Envelope) {
	h.t.Helper()
	payload, err := e.Encode()
	require.NoError(h.t, err)
	m := message.NewMessage(e.ID, payload)
	for k, v := range e.Headers() {
		m.Metadata.Set(k, v)
	}
	require.NoError(h.t, h.broker.Publisher().Publish(topic, m))
}

// deadLetter waits for a dead letter of the handler and returns it.
func (h *harness) deadLetter(handler string) *message.Message {
	h.t.Helper()
	topic := broker.DeadLetterTopic(Name + "." + handler)
	var found *message.Message
	require.Eventually(h.t, func() bool {
		for stored, err := range h.broker.Admin().Browse(h.t.Context(), topic, time.Time{}) {
			if err == nil {
				found = stored.Message
			}
		}
		return found != nil
	}, patience, 5*time.Millisecond, "nothing in %s", topic)
	return found
}

// settled waits until the group of the handler has nothing left to do.
func (h *harness) settled(topic, handler string) {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		s, err := h.broker.Admin().Stats(h.t.Context(), broker.Subscription{Topic: topic, Group: Name + "." + handler})
		return err == nil && s.Lag == 0 && s.Pending == 0
	}, patience, 5*time.Millisecond)
}

type response struct {
	status int
	header http.Header
	body   []byte
}

func (r response) object(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	require.NoError(t, json.Unmarshal(r.body, &v), "%s", r.body)
	return v
}

type header struct{ name, value string }

// call sends a request and checks the response against the API document. It may
// be called from any goroutine.
func (h *harness) call(method, path, body string, headers ...header) response {
	h.t.Helper()
	r, err := h.try(method, path, body, headers...)
	if err != nil {
		h.t.Errorf("%s %s: %v", method, path, err)
	}
	return r
}

func (h *harness) try(method, path, body string, headers ...header) (response, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, h.base+path, strings.NewReader(body))
	if err != nil {
		return response{}, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, hd := range headers {
		req.Header.Set(hd.name, hd.value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return response{}, err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return response{}, err
	}
	got := response{status: res.StatusCode, header: res.Header, body: raw}
	lookup := req.Clone(context.Background())
	lookup.URL.Host, lookup.URL.Scheme = "", ""
	route, params, err := h.routes.FindRoute(lookup)
	if err != nil {
		return got, nil // an address or a method that the document does not know
	}
	lookup.Body = io.NopCloser(strings.NewReader(body))
	input := &openapi3filter.RequestValidationInput{Request: lookup, PathParams: params, Route: route}
	if res.StatusCode < http.StatusBadRequest {
		// What the service takes, the document must allow.
		if err := openapi3filter.ValidateRequest(context.Background(), input); err != nil {
			return got, err
		}
	}
	return got, openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input,
		Status:                 res.StatusCode, Header: res.Header, Body: io.NopCloser(bytes.NewReader(raw)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	})
}

// list returns the notifications that a query selects.
func (h *harness) list(query string) []map[string]any {
	h.t.Helper()
	res := h.call(http.MethodGet, "/v1/notifications?"+query, "")
	require.Equal(h.t, http.StatusOK, res.status, "%s", res.body)
	var page struct {
		Notifications []map[string]any `json:"notifications"`
	}
	require.NoError(h.t, json.Unmarshal(res.body, &page))
	return page.Notifications
}

func data[T any](t *testing.T, e events.Envelope) T {
	t.Helper()
	var d T
	require.NoError(t, json.Unmarshal(e.Data, &d))
	return d
}
