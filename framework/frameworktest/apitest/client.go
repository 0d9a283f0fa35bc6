// Package apitest calls a service's HTTP API in a test and holds every answer,
// and every request that the service took, against its OpenAPI document. Only
// tests import it.
package apitest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
)

// Client is a client of one service. It is safe for concurrent use.
type Client struct {
	t      testing.TB
	base   string
	routes routers.Router
}

// New makes a client for the API at base ("http://127.0.0.1:8080") and checks
// the document itself. A document that is no valid OpenAPI fails the test.
func New(t testing.TB, base string, document []byte) *Client {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(document)
	if err == nil {
		err = doc.Validate(context.Background())
	}
	if err != nil {
		t.Fatalf("apitest: the API document: %v", err)
	}
	routes, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatalf("apitest: the API document: %v", err)
	}
	return &Client{t: t, base: strings.TrimSuffix(base, "/"), routes: routes}
}

// At returns the client for the same API at another address.
func (c *Client) At(base string) *Client {
	other := *c
	other.base = strings.TrimSuffix(base, "/")
	return &other
}

// Header is one header of a request.
type Header struct{ Name, Value string }

// With returns a header.
func With(name, value string) Header { return Header{Name: name, Value: value} }

// Response is an answer.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Object returns the body as a JSON object, and fails the test if it is none.
func (r Response) Object(t testing.TB) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(r.Body, &v); err != nil {
		t.Fatalf("apitest: the body is no JSON object: %v: %s", err, r.Body)
	}
	return v
}

// Call sends a request, with a JSON body where there is one, and marks the test
// as failed where the answer breaks the document. It may be called from any
// goroutine.
func (c *Client) Call(method, path, body string, headers ...Header) Response {
	c.t.Helper()
	r, err := c.Try(method, path, body, headers...)
	if err != nil {
		c.t.Errorf("apitest: %s %s: %v", method, path, err)
	}
	return r
}

// Try is Call with the fault as an error: the service did not answer, or
// answered what the document does not allow.
func (c *Client) Try(method, path, body string, headers ...Header) (Response, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, c.base+path, strings.NewReader(body))
	if err != nil {
		return Response{}, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		req.Header.Set(h.Name, h.Value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return Response{}, err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return Response{}, err
	}
	got := Response{Status: res.StatusCode, Header: res.Header, Body: raw}
	return got, c.check(req, body, got)
}

func (c *Client) check(req *http.Request, body string, got Response) error {
	req = req.Clone(context.Background())
	req.URL.Host, req.URL.Scheme = "", ""
	head := req.Method == http.MethodHead
	if head { // the answer to GET without its body
		req.Method = http.MethodGet
	}
	route, params, err := c.routes.FindRoute(req)
	if err != nil {
		// An address or a method that the document does not know must not work.
		if got.Status < http.StatusBadRequest {
			return fmt.Errorf("answered %d, and is not in the API document: %w", got.Status, err)
		}
		return nil
	}
	req.Body = io.NopCloser(strings.NewReader(body))
	input := &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route}
	if got.Status < http.StatusBadRequest {
		if err := openapi3filter.ValidateRequest(context.Background(), input); err != nil {
			return fmt.Errorf("the service took a request that its document does not allow: %w", err)
		}
	}
	return openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input,
		Status:                 got.Status, Header: got.Header, Body: io.NopCloser(bytes.NewReader(got.Body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true, ExcludeResponseBody: head},
	})
}
