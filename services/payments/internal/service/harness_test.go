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
	"github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/services/payments"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/sandbox"
	"github.com/headrace-go/headrace/services/payments/internal/testdb"
)

const patience = 15 * time.Second

// harness is the service as it runs, on a memory broker, with a client that
// checks every response against the API document.
type harness struct {
	t       *testing.T
	db      testdb.DB
	gateway app.Gateway
	broker  broker.Broker
	app     *framework.App
	base    string
	routes  routers.Router
	events  <-chan events.Envelope
}

// start runs the service on db until the test ends, with the sandbox as its
// gateway. Wrap, if not nil, puts another gateway before it.
func start(t *testing.T, db testdb.DB, wrap func(*sandbox.Gateway) app.Gateway) *harness {
	t.Helper()
	h := &harness{t: t, db: db, broker: memory.New(memory.Config{}), routes: document(t)}
	t.Cleanup(func() { require.NoError(t, h.broker.Close()) })
	books, err := OpenGateway(t.Context(), settings(t).Payments.Gateway, db.DB, db.Dialect, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	h.gateway = books
	if wrap != nil {
		h.gateway = wrap(books.(*sandbox.Gateway))
	}
	h.events = h.listen("payment.captured", "payment.failed", "payment.refunded")
	h.run()
	return h
}

// run starts one App on the harness's database and broker and returns what
// stops it.
func (h *harness) run() (stop func()) {
	h.t.Helper()
	a, err := New(settings(h.t), Conns{
		DB: h.db.DB, Dialect: h.db.Dialect, Broker: h.broker, Gateway: h.gateway,
		Logger: slog.New(slog.NewTextHandler(h.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	require.NoError(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	select {
	case <-a.Ready():
	case err := <-ended:
		require.NoError(h.t, err, "the service ended before it was ready")
	case <-time.After(patience):
		h.t.Fatal("the service is not ready")
	}
	h.app, h.base = a, "http://"+a.HTTPAddr()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			require.NoError(h.t, err)
		case <-time.After(patience):
			h.t.Error("the service does not stop")
		}
	}
	h.t.Cleanup(stop)
	return stop
}

func settings(t *testing.T) Settings {
	t.Helper()
	var s Settings
	require.NoError(t, config.Load(&s, config.Options{FS: payments.Files, Env: "test", Environ: []string{}}))
	s.Delivery.BackoffBase, s.Delivery.BackoffCap = time.Millisecond, 5*time.Millisecond
	return s
}

func document(t *testing.T) routers.Router {
	t.Helper()
	raw, err := payments.Files.ReadFile("api/openapi.yaml")
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

// all waits for one event of each type, in any order: different topics keep no
// order among each other.
func (h *harness) all(types ...string) {
	h.t.Helper()
	var got []string
	for range types {
		select {
		case e := <-h.events:
			got = append(got, e.Type)
		case <-time.After(patience):
			h.t.Fatalf("got %q of %q", got, types)
		}
	}
	require.ElementsMatch(h.t, types, got)
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

// publish publishes a draft as the orders service would.
func (h *harness) publish(d events.Draft) events.Envelope {
	h.t.Helper()
	require.NoError(h.t, d.Err())
	e, err := d.Seal(events.Stamp{
		ID: events.NewID(), Source: "orders", CorrelationID: "journey-" + d.Key, Now: time.Now(),
	})
	require.NoError(h.t, err)
	h.send(d.Topic, e)
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

// deadLetters returns the handler's dead letters.
func (h *harness) deadLetters(handler string) []*message.Message {
	h.t.Helper()
	var found []*message.Message
	for stored, err := range h.broker.Admin().Browse(h.t.Context(), broker.DeadLetterTopic(Name+"."+handler), time.Time{}) {
		require.NoError(h.t, err)
		found = append(found, stored.Message)
	}
	return found
}

// deadLettered waits for the event among the handler's dead letters.
func (h *harness) deadLettered(handler, eventID string) *message.Message {
	h.t.Helper()
	var found *message.Message
	require.Eventually(h.t, func() bool {
		for _, m := range h.deadLetters(handler) {
			if m.UUID == eventID {
				found = m
			}
		}
		return found != nil
	}, patience, 5*time.Millisecond, "%s is not among the dead letters of %s", eventID, handler)
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
	return got, openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route},
		Status:                 res.StatusCode, Header: res.Header, Body: io.NopCloser(bytes.NewReader(raw)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	})
}

var total = events.Money{Amount: 2797, Currency: "EUR"}

var customer = orders.Customer{ID: "cus_1", Email: "ada@example.com", Language: "en"}

// place publishes order.placed for a new order that pays with the token.
func (h *harness) place(token string) (orderID string, placed events.Envelope) {
	h.t.Helper()
	orderID = "ord_" + events.NewID()
	return orderID, h.publish(placedDraft(orderID, token))
}

func placedDraft(orderID, token string) events.Draft { return placedOf(placedData(orderID, token)) }

func placedOf(d orders.PlacedData) events.Draft { return orders.Placed.New(d.OrderID, d) }

func placedData(orderID, token string) orders.PlacedData {
	return orders.PlacedData{
		OrderID: orderID, Customer: customer, Total: total, PaymentToken: token,
		Lines: []orders.Line{{SKU: "BOOK", Quantity: 1, UnitPrice: total}},
	}
}

// cancel publishes order.cancelled.
func (h *harness) cancel(orderID string) events.Envelope {
	h.t.Helper()
	return h.publish(cancelledDraft(orderID))
}

func cancelledDraft(orderID string) events.Draft {
	return orders.Cancelled.New(orderID, orders.CancelledData{
		OrderID: orderID, Customer: customer, Total: total, Reason: "customer_request", PreviousState: "placed",
	})
}

// payment reads the order's payment over the API, by order and by id.
func (h *harness) payment(orderID string) map[string]any {
	h.t.Helper()
	res := h.call(http.MethodGet, "/v1/payments?order_id="+orderID, "")
	require.Equal(h.t, http.StatusOK, res.status, "%s", res.body)
	found := res.object(h.t)["payments"].([]any)
	require.Len(h.t, found, 1)
	p := found[0].(map[string]any)
	res = h.call(http.MethodGet, "/v1/payments/"+p["id"].(string), "")
	require.Equal(h.t, http.StatusOK, res.status, "%s", res.body)
	require.Equal(h.t, p, res.object(h.t))
	return p
}

// ledger reads the gateway's books of one order over the API.
func (h *harness) ledger(orderID string) sandbox.Summary {
	h.t.Helper()
	res := h.call(http.MethodGet, "/v1/sandbox/charges?order_id="+orderID, "")
	require.Equal(h.t, http.StatusOK, res.status, "%s", res.body)
	var page struct{ Summary sandbox.Summary }
	require.NoError(h.t, json.Unmarshal(res.body, &page))
	return page.Summary
}

func data[T any](t *testing.T, e events.Envelope) T {
	t.Helper()
	var d T
	require.NoError(t, json.Unmarshal(e.Data, &d))
	return d
}
