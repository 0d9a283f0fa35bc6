package service

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/services/payments"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/sandbox"
)

func TestProblemsNameWhatIsWrong(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db, nil)
		order, _ := h.place(sandbox.TokenDeclined)
		h.next("payment.failed")
		failed := h.payment(order)["id"].(string)
		cases := map[string]struct {
			method, path string
			status       int
			code, field  string
		}{
			"unknown payment":              {"GET", "/v1/payments/none", 404, "not_found", ""},
			"a NUL in the id":              {"GET", "/v1/payments/a%00b", 404, "not_found", ""},
			"a long id":                    {"GET", "/v1/payments/" + strings.Repeat("x", 129), 404, "not_found", ""},
			"no order":                     {"GET", "/v1/payments", 422, "invalid", "order_id"},
			"a NUL in the order":           {"GET", "/v1/payments?order_id=%00", 422, "invalid", "order_id"},
			"refund unknown":               {"POST", "/v1/payments/none/refund", 404, "not_found", ""},
			"refund a NUL":                 {"POST", "/v1/payments/%00/refund", 404, "not_found", ""},
			"refund of nothing":            {"POST", "/v1/payments/" + failed + "/refund", 409, "conflict", ""},
			"a wrong limit":                {"GET", "/v1/sandbox/charges?limit=x", 422, "invalid", "limit"},
			"an unknown filter":            {"GET", "/v1/payments?order_id=none&state=failed", 422, "invalid", "state"},
			"an unknown filter of charges": {"GET", "/v1/sandbox/charges?order=none", 422, "invalid", "order"},
			"unknown address":              {"GET", "/v2/payments", 404, "not_found", ""},
			"unknown method":               {"DELETE", "/v1/payments/none", 405, "method_not_allowed", ""},
		}
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				res := h.Call(c.method, c.path, "")
				res.RequireProblem(t, c.status, c.code, c.field)
			})
		}
		res := h.Call(http.MethodGet, "/v1/payments?order_id=unknown", "")
		require.Equal(t, http.StatusOK, res.Status)
		require.Empty(t, res.Object(t)["payments"])
		h.events.Silent()
	})
}

func TestTheAPIDocumentIsServed(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db, nil)
		res := h.Call(http.MethodGet, "/openapi.yaml", "")
		require.Equal(t, http.StatusOK, res.Status)
		want, err := payments.Files.ReadFile("api/openapi.yaml")
		require.NoError(t, err)
		require.Equal(t, string(want), string(res.Body))
		for _, path := range []string{"/openapi.yaml", "/v1/payments?order_id=none"} {
			res := h.Call(http.MethodHead, path, "")
			require.Equal(t, http.StatusOK, res.Status, path)
			require.Empty(t, res.Body, path)
		}
		require.Equal(t, http.StatusMethodNotAllowed, h.Call(http.MethodHead, "/v1/payments/1/refund", "").Status)
	})
}

// The ledger is shown by the sandbox alone: another gateway has none.
func TestOnlyTheSandboxShowsALedger(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db, func(s *sandbox.Gateway) app.Gateway { return &held{Gateway: s} })
		res := h.Call(http.MethodGet, "/v1/sandbox/charges", "")
		require.Equal(t, http.StatusNotFound, res.Status)
	})
}
