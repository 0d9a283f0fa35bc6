package apitest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// RequireProblem requires that the answer is a problem of RFC 9457 with the status
// and the code, that it tells the correlation id, and that the first value that it
// finds fault with is the field; "" requires that it names none.
func (r Response) RequireProblem(t testing.TB, status int, code, field string) {
	t.Helper()
	require.Equal(t, status, r.Status, "%s", r.Body)
	require.Equal(t, "application/problem+json", r.Header.Get("Content-Type"))
	p := r.Object(t)
	require.Equal(t, code, p["code"])
	require.EqualValues(t, status, p["status"])
	require.NotEmpty(t, p["correlation_id"])
	require.Equal(t, r.Header.Get("X-Correlation-ID"), p["correlation_id"])
	if field == "" {
		require.NotContains(t, p, "errors")
		return
	}
	faults, _ := p["errors"].([]any)
	require.NotEmpty(t, faults, "%s", r.Body)
	require.Equal(t, field, faults[0].(map[string]any)["field"])
}
