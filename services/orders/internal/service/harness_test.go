package service

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/frameworktest/apitest"
	"github.com/headrace-go/headrace/framework/frameworktest/programtest"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/orders"
)

func TestMain(m *testing.M) { programtest.Main(m, Program()) }

// harness is the service as it runs, on a memory broker, with a client that
// holds it to its API document.
type harness struct {
	*frameworktest.System
	*apitest.Client
	t      *testing.T
	db     frameworktest.DB
	events *frameworktest.Feed
}

// start runs the service on db until the test ends.
func start(t *testing.T, db frameworktest.DB) *harness {
	t.Helper()
	h := &harness{System: frameworktest.New(t), t: t, db: db}
	h.events = h.Listen("order.placed", "order.confirmed", "order.cancelled")
	h.Client = client(t, h.run())
	return h
}

// run starts one App on the harness's database and broker and returns its URL.
func (h *harness) run() string {
	h.t.Helper()
	s := settings(h.t)
	a, err := New(h.t.Context(), s, h.Config(Name, s.Profile, h.db))
	require.NoError(h.t, err)
	return h.Start(a).URL()
}

func settings(t *testing.T) Settings {
	t.Helper()
	var s Settings
	require.NoError(t, config.Load(&s, config.Options{FS: orders.Files, Env: "test", Environ: []string{}}))
	return s
}

func client(t *testing.T, url string) *apitest.Client {
	t.Helper()
	document, err := orders.Files.ReadFile("api/openapi.yaml")
	require.NoError(t, err)
	return apitest.New(t, url, document)
}

// next waits for the next event of the service.
func (h *harness) next(typ string) events.Envelope {
	h.t.Helper()
	e := h.events.Next(typ)
	require.Equal(h.t, Name, e.Source)
	return e
}

// publish publishes a draft as the payments service would, in answer to cause.
func (h *harness) publish(cause events.Envelope, d events.Draft) events.Envelope {
	h.t.Helper()
	return h.PublishAs(events.Stamp{Source: "payments", CorrelationID: cause.Metadata.CorrelationID, CausationID: cause.ID}, d)
}

const orderBody = `{"customer":{"id":"cus_1","email":"ada@example.com","phone":"+441632960961","language":"en"},` +
	`"lines":[{"sku":"BOOK","quantity":2,"unit_price":{"amount":1250,"currency":"EUR"}},{"sku":"PEN","quantity":3,"unit_price":{"amount":99,"currency":"EUR"}}],` +
	`"total":{"amount":2797,"currency":"EUR"},"payment_token":"tok_ok"}`

// place places an order and returns its id and its event.
func (h *harness) place(headers ...apitest.Header) (string, events.Envelope) {
	h.t.Helper()
	res := h.Call(http.MethodPost, "/v1/orders", orderBody, headers...)
	require.Equal(h.t, http.StatusCreated, res.Status, "%s", res.Body)
	return res.Object(h.t)["id"].(string), h.next("order.placed")
}

func (h *harness) get(id string) map[string]any {
	h.t.Helper()
	res := h.Call(http.MethodGet, "/v1/orders/"+id, "")
	require.Equal(h.t, http.StatusOK, res.Status, "%s", res.Body)
	return res.Object(h.t)
}
