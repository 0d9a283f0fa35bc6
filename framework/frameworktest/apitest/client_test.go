package apitest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest/apitest"
)

const document = `
openapi: 3.0.3
info: {title: lamps, version: "1"}
paths:
  /v1/lamps/{id}:
    put:
      parameters:
        - {name: id, in: path, required: true, schema: {type: string}}
      requestBody:
        required: true
        content:
          application/json:
            schema: {type: object, required: [on], properties: {on: {type: boolean}}, additionalProperties: false}
      responses:
        "200":
          description: The lamp.
          content:
            application/json:
              schema: {type: object, required: [on], properties: {on: {type: boolean}}}
        "404": {description: There is none.}
`

func answering(t *testing.T, status int, body string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Seen", r.Header.Get("X-Sent")+" "+r.Header.Get("Content-Type"))
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestTheAnswerAndTheRequestAreHeldAgainstTheDocument(t *testing.T) {
	t.Parallel()
	good := apitest.New(t, answering(t, 200, `{"on":true}`).URL+"/", []byte(document))
	res := good.Call(http.MethodPut, "/v1/lamps/1", `{"on":true}`, apitest.With("X-Sent", "a"))
	require.Equal(t, 200, res.Status)
	require.Equal(t, map[string]any{"on": true}, res.Object(t))
	require.Equal(t, "a application/json", res.Header.Get("X-Seen"))

	for name, c := range map[string]struct {
		client             *apitest.Client
		method, path, body string
	}{
		"a request that the document forbids": {good, "PUT", "/v1/lamps/1", `{"off":true}`},
		"a body that the document forbids":    {good.At(answering(t, 200, `{"on":"yes"}`).URL), "PUT", "/v1/lamps/1", `{"on":true}`},
		"a status that the document lacks":    {good.At(answering(t, 202, `{"on":true}`).URL), "PUT", "/v1/lamps/1", `{"on":true}`},
		"an address that the document lacks":  {good, "GET", "/v1/chairs", ""},
		"a method that the document lacks":    {good, "DELETE", "/v1/lamps/1", ""},
		"a service that is not there":         {good.At("http://127.0.0.1:1"), "GET", "/", ""},
		"a method that is no method":          {good, " ", "/", ""},
	} {
		_, err := c.client.Try(c.method, c.path, c.body)
		require.Error(t, err, name)
	}
	refusing := good.At(answering(t, 404, `{}`).URL)
	for _, path := range []string{"/v1/lamps/1", "/v1/chairs"} {
		_, err := refusing.Try(http.MethodPut, path, `{"off":true}`)
		require.NoError(t, err, "what is refused may be anything")
	}
}
