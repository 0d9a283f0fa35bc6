package httpgateway_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/services/payments/internal/outbound/httpgateway"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/httpgateway/providertest"
)

// answers is a provider that gives the same answer to everything and counts.
func answers(t *testing.T, status int, header http.Header, body string) (*httptest.Server, func() int) {
	t.Helper()
	asked := make(chan struct{}, 1000)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		for k, v := range header {
			w.Header()[k] = v
		}
		w.WriteHeader(status)
		_, err := io.WriteString(w, body)
		if err != nil && r.Context().Err() == nil {
			t.Errorf("answer: %v", err)
		}
	}))
	t.Cleanup(s.Close)
	return s, func() int { return len(asked) }
}

func open(t *testing.T, url string, change func(*httpgateway.Config)) *httpgateway.Gateway {
	t.Helper()
	cfg := httpgateway.Config{BaseURL: url, APIKey: providertest.APIKey, SigningKey: providertest.SigningKey, BreakerFailures: 1000}
	if change != nil {
		change(&cfg)
	}
	g, err := httpgateway.New(cfg)
	require.NoError(t, err)
	return g
}
