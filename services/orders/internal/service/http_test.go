package service

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/frameworktest/apitest"
	"github.com/headrace-go/headrace/services/orders"
)

func TestProblemsNameWhatIsWrong(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db)
		with := func(old, repl string) string {
			require.Contains(t, orderBody, old)
			return strings.Replace(orderBody, old, repl, 1)
		}
		plain := apitest.With("Content-Type", "text/plain")
		cases := map[string]struct {
			method, path, body string
			headers            []apitest.Header
			status             int
			code, field        string
		}{
			"no body":             {"POST", "/v1/orders", "", nil, 415, "unsupported_media_type", ""},
			"not json":            {"POST", "/v1/orders", "{", nil, 400, "malformed", ""},
			"two values":          {"POST", "/v1/orders", orderBody + "{}", nil, 400, "malformed", ""},
			"a stray bracket":     {"POST", "/v1/orders", orderBody + "]", nil, 400, "malformed", ""},
			"a list":              {"POST", "/v1/orders", "[]", nil, 400, "malformed", ""},
			"another media type":  {"POST", "/v1/orders", orderBody, []apitest.Header{plain}, 415, "unsupported_media_type", ""},
			"too large":           {"POST", "/v1/orders", with("BOOK", strings.Repeat("x", 2<<20)), nil, 413, "too_large", ""},
			"an unknown field":    {"POST", "/v1/orders", with(`"total"`, `"totel"`), nil, 422, "invalid", "totel"},
			"a key twice":         {"POST", "/v1/orders", with(`"total"`, `"total":null,"total"`), nil, 422, "invalid", "total"},
			"another case":        {"POST", "/v1/orders", with(`"total"`, `"Total"`), nil, 422, "invalid", "Total"},
			"a fraction":          {"POST", "/v1/orders", with("1250", "12.5"), nil, 422, "invalid", "lines.unit_price.amount"},
			"above 64 bits":       {"POST", "/v1/orders", with("1250", "9223372036854775808"), nil, 422, "invalid", "lines.unit_price.amount"},
			"a string for a list": {"POST", "/v1/orders", `{"lines":"x"}`, nil, 422, "invalid", "lines"},
			"null":                {"POST", "/v1/orders", `null`, nil, 422, "invalid", "customer.id"},
			"an overflow":         {"POST", "/v1/orders", with("1250", "9223372036854775807"), nil, 422, "invalid", "lines[0]"},
			"a wrong total":       {"POST", "/v1/orders", with("2797", "1"), nil, 422, "invalid", "total"},
			"a foreign currency":  {"POST", "/v1/orders", strings.ReplaceAll(orderBody, "EUR", "JPY"), nil, 422, "invalid", "lines[0].unit_price.currency"},
			"an empty key":        {"POST", "/v1/orders", orderBody, []apitest.Header{apitest.With("Idempotency-Key", "")}, 422, "invalid", "Idempotency-Key"},
			"a long key":          {"POST", "/v1/orders", orderBody, []apitest.Header{apitest.With("Idempotency-Key", strings.Repeat("k", 256))}, 422, "invalid", "Idempotency-Key"},
			"unknown order":       {"GET", "/v1/orders/none", "", nil, 404, "not_found", ""},
			"a NUL in the id":     {"GET", "/v1/orders/a%00b", "", nil, 404, "not_found", ""},
			"cancel unknown":      {"POST", "/v1/orders/none/cancel", "", nil, 404, "not_found", ""},
			"a long reason":       {"POST", "/v1/orders/none/cancel", `{"reason":"` + strings.Repeat("x", 201) + `"}`, nil, 422, "invalid", "reason"},
			"a wrong state":       {"GET", "/v1/orders?state=paid", "", nil, 422, "invalid", "state"},
			"a NUL in a filter":   {"GET", "/v1/orders?customer_id=%00", "", nil, 422, "invalid", "customer_id"},
			"limit zero":          {"GET", "/v1/orders?limit=0", "", nil, 422, "invalid", "limit"},
			"limit too large":     {"GET", "/v1/orders?limit=101", "", nil, 422, "invalid", "limit"},
			"a forged cursor":     {"GET", "/v1/orders?cursor=MS4xLg", "", nil, 422, "invalid", "cursor"},
			"an unknown filter":   {"GET", "/v1/orders?customer=c-1", "", nil, 422, "invalid", "customer"},
			"unknown address":     {"GET", "/v2/orders", "", nil, 404, "not_found", ""},
			"unknown method":      {"DELETE", "/v1/orders", "", nil, 405, "method_not_allowed", ""},
		}
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				res := h.Call(c.method, c.path, c.body, c.headers...)
				res.RequireProblem(t, c.status, c.code, c.field)
			})
		}
		h.events.Silent()
	})
}

func TestListWalksAllPagesNewestFirst(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db)
		var want []any
		for range 5 {
			id, _ := h.place()
			want = append([]any{id}, want...)
		}
		cancelled := want[2].(string)
		require.Equal(t, http.StatusOK, h.Call(http.MethodPost, "/v1/orders/"+cancelled+"/cancel", "").Status)

		walk := func(query string, limit int) []any {
			var got []any
			cursor := ""
			for {
				res := h.Call(http.MethodGet, fmt.Sprintf("/v1/orders?limit=%d%s%s", limit, query, cursor), "")
				require.Equal(t, http.StatusOK, res.Status, "%s", res.Body)
				page := res.Object(t)
				for _, o := range page["orders"].([]any) {
					got = append(got, o.(map[string]any)["id"])
				}
				next, more := page["next_cursor"]
				if !more {
					return got
				}
				cursor = "&cursor=" + next.(string)
			}
		}
		for limit := 1; limit <= 6; limit++ {
			require.Equal(t, want, walk("", limit), "limit %d", limit)
		}
		require.Equal(t, want, walk("&customer_id=cus_1", 2))
		require.Empty(t, walk("&customer_id=cus_2", 2))
		require.Equal(t, []any{cancelled}, walk("&state=cancelled", 1))
		require.Len(t, walk("&state=placed&customer_id=cus_1", 3), 4)
	})
}

func TestTheAPIDocumentIsServed(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db)
		res := h.Call(http.MethodGet, "/openapi.yaml", "")
		require.Equal(t, http.StatusOK, res.Status)
		want, err := orders.Files.ReadFile("api/openapi.yaml")
		require.NoError(t, err)
		require.Equal(t, string(want), string(res.Body))
		for _, path := range []string{"/openapi.yaml", "/v1/orders"} {
			res := h.Call(http.MethodHead, path, "")
			require.Equal(t, http.StatusOK, res.Status, path)
			require.Empty(t, res.Body, path)
		}
		require.Equal(t, http.StatusMethodNotAllowed, h.Call(http.MethodHead, "/v1/orders/1/cancel", "").Status)
	})
}
