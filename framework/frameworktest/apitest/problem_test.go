package apitest_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest/apitest"
)

// failing stands in for a test that is to fail.
type failing struct {
	testing.TB
	failed bool
}

type stopped struct{}

func (f *failing) Helper()               {}
func (f *failing) Errorf(string, ...any) { f.failed = true }
func (f *failing) FailNow()              { panic(stopped{}) }

func TestProblemsAreRequired(t *testing.T) {
	t.Parallel()
	problem := func(contentType, correlation, body string) apitest.Response {
		h := http.Header{}
		h.Set("Content-Type", contentType)
		h.Set("X-Correlation-ID", correlation)
		return apitest.Response{Status: 422, Header: h, Body: []byte(body)}
	}
	const media = "application/problem+json"
	plain := `{"status":422,"code":"invalid","correlation_id":"c"}`
	named := `{"status":422,"code":"invalid","correlation_id":"c","errors":[{"field":"limit"}]}`
	problem(media, "c", plain).RequireProblem(t, 422, "invalid", "")
	problem(media, "c", named).RequireProblem(t, 422, "invalid", "limit")
	for name, c := range map[string]struct {
		res         apitest.Response
		code, field string
	}{
		"another media type":     {problem("application/json", "c", plain), "invalid", ""},
		"another correlation":    {problem(media, "d", plain), "invalid", ""},
		"another code":           {problem(media, "c", plain), "conflict", ""},
		"no field":               {problem(media, "c", plain), "invalid", "limit"},
		"another field":          {problem(media, "c", named), "invalid", "cursor"},
		"a field out of nowhere": {problem(media, "c", named), "invalid", ""},
		"another status within":  {problem(media, "c", `{"status":400,"code":"invalid","correlation_id":"c"}`), "invalid", ""},
	} {
		f := &failing{TB: t}
		func() {
			defer func() {
				if p := recover(); p != nil {
					require.IsType(t, stopped{}, p, name)
				}
			}()
			c.res.RequireProblem(f, 422, c.code, c.field)
		}()
		require.True(t, f.failed, name)
	}
}
