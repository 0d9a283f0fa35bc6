package service

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/frameworktest/apitest"
	"github.com/headrace-go/headrace/framework/frameworktest/programtest"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/services/payments"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/sandbox"
)

func TestMain(m *testing.M) { programtest.Main(m, Program()) }

// harness is the service as it runs, on a memory broker, with a client that
// holds it to its API document.
type harness struct {
	*frameworktest.System
	*apitest.Client
	t      *testing.T
	events *frameworktest.Feed
}

// start runs the service on db until the test ends, with the sandbox as its
// gateway. Wrap, if not nil, puts another gateway before it.
func start(t *testing.T, db frameworktest.DB, wrap func(*sandbox.Gateway) app.Gateway) *harness {
	t.Helper()
	h := onSystem(t, frameworktest.New(t))
	s := settings(t)
	gateway, err := OpenGateway(t.Context(), s.Payments.Gateway, db.DB, db.Dialect, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	if wrap != nil {
		gateway = wrap(gateway.(*sandbox.Gateway))
	}
	a, err := New(s, h.Config(Name, s.Profile, db), gateway)
	require.NoError(t, err)
	document, err := payments.Files.ReadFile("api/openapi.yaml")
	require.NoError(t, err)
	h.Client = apitest.New(t, h.Start(a).URL(), document)
	return h
}

// onSystem listens to a service that runs elsewhere.
func onSystem(t *testing.T, s *frameworktest.System) *harness {
	t.Helper()
	return &harness{System: s, t: t, events: s.Listen("payment.captured", "payment.failed", "payment.refunded")}
}

func settings(t *testing.T) Settings {
	t.Helper()
	var s Settings
	require.NoError(t, config.Load(&s, config.Options{FS: payments.Files, Env: "test", Environ: []string{}}))
	return s
}

// next waits for the next event of the service.
func (h *harness) next(typ string) events.Envelope {
	h.t.Helper()
	e := h.events.Next(typ)
	require.Equal(h.t, Name, e.Source)
	return e
}

// publish publishes a draft as the orders service would.
func (h *harness) publish(d events.Draft) events.Envelope {
	h.t.Helper()
	return h.PublishAs(events.Stamp{Source: "orders", CorrelationID: "journey-" + d.Key}, d)
}

// deadLettered waits for the event among the handler's dead letters.
func (h *harness) deadLettered(handler, eventID string) frameworktest.DeadLetter {
	h.t.Helper()
	return h.AwaitDeadLetter(Name+"."+handler, func(d frameworktest.DeadLetter) bool { return d.Message.UUID == eventID })
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
	res := h.Call(http.MethodGet, "/v1/payments?order_id="+orderID, "")
	require.Equal(h.t, http.StatusOK, res.Status, "%s", res.Body)
	found := res.Object(h.t)["payments"].([]any)
	require.Len(h.t, found, 1)
	p := found[0].(map[string]any)
	res = h.Call(http.MethodGet, "/v1/payments/"+p["id"].(string), "")
	require.Equal(h.t, http.StatusOK, res.Status, "%s", res.Body)
	require.Equal(h.t, p, res.Object(h.t))
	return p
}

// ledger reads the gateway's books of one order over the API.
func (h *harness) ledger(orderID string) sandbox.Summary {
	h.t.Helper()
	res := h.Call(http.MethodGet, "/v1/sandbox/charges?order_id="+orderID, "")
	require.Equal(h.t, http.StatusOK, res.Status, "%s", res.Body)
	var page struct{ Summary sandbox.Summary }
	require.NoError(h.t, json.Unmarshal(res.Body, &page))
	return page.Summary
}
