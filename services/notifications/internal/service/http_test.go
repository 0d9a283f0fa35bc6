package service

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/frameworktest/apitest"
	"github.com/headrace-go/headrace/services/notifications"
)

func TestProblemsNameWhatIsWrong(t *testing.T) {
	t.Parallel()
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{})
	with := func(old, repl string) string {
		require.Contains(t, codeBodyText, old)
		return strings.Replace(codeBodyText, old, repl, 1)
	}
	verify := func(id, code string) string { return fmt.Sprintf(`{"id":%q,"code":%q,"purpose":"login"}`, id, code) }
	plain := apitest.With("Content-Type", "text/plain")
	cases := map[string]struct {
		method, path, body string
		headers            []apitest.Header
		status             int
		code, field        string
	}{
		"no body":              {"POST", "/v1/codes", "", nil, 415, "unsupported_media_type", ""},
		"not json":             {"POST", "/v1/codes", "{", nil, 400, "malformed", ""},
		"another media type":   {"POST", "/v1/codes", codeBodyText, []apitest.Header{plain}, 415, "unsupported_media_type", ""},
		"too large":            {"POST", "/v1/codes", with("login", strings.Repeat("x", 2<<20)), nil, 413, "too_large", ""},
		"unknown field":        {"POST", "/v1/codes", with(`"purpose"`, `"porpoise"`), nil, 422, "invalid", "porpoise"},
		"unknown channel":      {"POST", "/v1/codes", with("sms", "pigeon"), nil, 422, "invalid", "channel"},
		"codes by webhook":     {"POST", "/v1/codes", with("sms", "webhook"), nil, 422, "invalid", "channel"},
		"no recipient":         {"POST", "/v1/codes", with("+441632960961", ""), nil, 422, "invalid", "recipient"},
		"a mail address":       {"POST", "/v1/codes", with("+441632960961", "ada@example.com"), nil, 422, "invalid", "recipient"},
		"a purpose with blank": {"POST", "/v1/codes", with("login", "log in"), nil, 422, "invalid", "purpose"},
		"no purpose":           {"POST", "/v1/codes", with("login", ""), nil, 422, "invalid", "purpose"},
		"a long language":      {"POST", "/v1/codes", with(`"de"`, `"`+strings.Repeat("d", 36)+`"`), nil, 422, "invalid", "language"},
		"letters for digits":   {"POST", "/v1/codes/verify", verify("c", "abcdef"), nil, 422, "invalid", "code"},
		"too few digits":       {"POST", "/v1/codes/verify", verify("c", "12345"), nil, 422, "invalid", "code"},
		"no code id":           {"POST", "/v1/codes/verify", verify("", "123456"), nil, 422, "invalid", "id"},
		"unknown notification": {"GET", "/v1/notifications/none", "", nil, 404, "not_found", ""},
		"a NUL in the id":      {"GET", "/v1/notifications/a%00b", "", nil, 404, "not_found", ""},
		"resend unknown":       {"POST", "/v1/notifications/none/resend", "", nil, 404, "not_found", ""},
		"a wrong state":        {"GET", "/v1/notifications?state=lost", "", nil, 422, "invalid", "state"},
		"a NUL in a filter":    {"GET", "/v1/notifications?order_id=%00", "", nil, 422, "invalid", "order_id"},
		"limit zero":           {"GET", "/v1/notifications?limit=0", "", nil, 422, "invalid", "limit"},
		"limit too large":      {"GET", "/v1/notifications?limit=101", "", nil, 422, "invalid", "limit"},
		"a forged cursor":      {"GET", "/v1/notifications?cursor=MS4xLg", "", nil, 422, "invalid", "cursor"},
		"an unknown filter":    {"GET", "/v1/notifications?order=o-1", "", nil, 422, "invalid", "order"},
		"unknown address":      {"GET", "/v2/notifications", "", nil, 404, "not_found", ""},
		"unknown method":       {"DELETE", "/v1/notifications", "", nil, 405, "method_not_allowed", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			res := h.Call(c.method, c.path, c.body, c.headers...)
			res.RequireProblem(t, c.status, c.code, c.field)
			require.NotContains(t, string(res.Body), "441632960961")
		})
	}
	h.events.Silent()
}

func TestListWalksAllPagesNewestFirst(t *testing.T) {
	t.Parallel()
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{})
	for i := range 5 {
		h.publish(confirmed(fmt.Sprintf("o-%d", i)))
		h.next("notification.sent")
	}
	var got []string
	cursor := ""
	for range 3 {
		res := h.Call(http.MethodGet, "/v1/notifications?limit=2"+cursor, "")
		require.Equal(t, http.StatusOK, res.Status)
		var page struct {
			Notifications []struct {
				OrderID string `json:"order_id"`
			}
			NextCursor string `json:"next_cursor"`
		}
		require.NoError(t, json.Unmarshal(res.Body, &page))
		for _, n := range page.Notifications {
			got = append(got, n.OrderID)
		}
		cursor = "&cursor=" + url.QueryEscape(page.NextCursor)
		if page.NextCursor == "" {
			break
		}
	}
	require.Equal(t, []string{"o-4", "o-3", "o-2", "o-1", "o-0"}, got)
}

func TestDocumentIsServed(t *testing.T) {
	t.Parallel()
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{})
	want, err := notifications.Files.ReadFile("api/openapi.yaml")
	require.NoError(t, err)
	res := h.Call(http.MethodGet, "/openapi.yaml", "")
	require.Equal(t, http.StatusOK, res.Status)
	require.Equal(t, string(want), string(res.Body))
	for _, path := range []string{"/openapi.yaml", "/v1/notifications"} {
		res := h.Call(http.MethodHead, path, "")
		require.Equal(t, http.StatusOK, res.Status, path)
		require.Empty(t, res.Body, path)
	}
	require.Equal(t, http.StatusMethodNotAllowed, h.Call(http.MethodHead, "/v1/notifications/1/resend", "").Status)
}
