package httpgateway_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/httpgateway"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/sandbox"
)

const (
	apiKey     = "key-for-tests"
	signingKey = "signing-key-for-tests"
)

// provider speaks the documented protocol over the sandbox's ledger, and checks
// credentials and signatures as a real provider would.
func provider(t *testing.T, ledger *sandbox.Gateway) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		key := r.Header.Get("Idempotency-Key")
		switch {
		case err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || key == "":
			w.WriteHeader(http.StatusBadRequest)
			return
		case r.Header.Get("Authorization") != "Bearer "+apiKey,
			r.Header.Get("X-Signature") != httpgateway.Sign(signingKey, r.Header.Get("X-Timestamp"), r.Method, r.URL.EscapedPath(), key, body):
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		var in struct {
			OrderID      string `json:"order_id"`
			PaymentToken string `json:"payment_token"`
			ChargeKey    string `json:"charge_key"`
			ChargeID     string `json:"charge_id"`
			Amount       int64  `json:"amount"`
			Currency     string `json:"currency"`
		}
		if json.Unmarshal(body, &in) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		amount := domain.Money{Amount: in.Amount, Currency: in.Currency}
		var out map[string]any
		switch r.URL.Path {
		case "/pay/v1/charges":
			receipt, err := ledger.Charge(r.Context(), app.ChargeRequest{Key: key, OrderID: in.OrderID, Amount: amount, Token: in.PaymentToken})
			var declined *app.DeclinedError
			switch {
			case errors.As(err, &declined):
				w.WriteHeader(http.StatusPaymentRequired)
				out = map[string]any{"reason": declined.Reason}
			case errors.Is(err, app.ErrVoided):
				out = map[string]any{"status": "voided"}
			case errors.Is(err, sandbox.ErrAnswerLost):
				// Cut within the answer: net/http repeats a request with an
				// Idempotency-Key by itself when nothing at all came back.
				w.Header().Set("Content-Length", "100")
				_, _ = io.WriteString(w, "{")
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			case err != nil:
				w.WriteHeader(http.StatusServiceUnavailable)
			default:
				out = map[string]any{"id": receipt.Reference, "status": "captured", "amount": in.Amount, "currency": in.Currency}
			}
		case "/pay/v1/voids":
			receipt, captured, err := ledger.Void(r.Context(), in.ChargeKey)
			switch {
			case err != nil:
				w.WriteHeader(http.StatusInternalServerError)
			case captured:
				out = map[string]any{"id": receipt.Reference, "status": "captured"}
			default:
				out = map[string]any{"status": "voided"}
			}
		case "/pay/v1/refunds":
			receipt, err := ledger.Refund(r.Context(), app.RefundRequest{Key: key, Charge: in.ChargeID, Amount: amount})
			if err != nil {
				w.WriteHeader(http.StatusUnprocessableEntity)
			} else {
				out = map[string]any{"id": receipt.Reference, "status": "refunded"}
			}
		default:
			w.WriteHeader(http.StatusNotFound)
		}
		if out != nil {
			_ = json.NewEncoder(w).Encode(out)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

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
	cfg := httpgateway.Config{BaseURL: url, APIKey: apiKey, SigningKey: signingKey, BreakerFailures: 1000}
	if change != nil {
		change(&cfg)
	}
	g, err := httpgateway.New(cfg)
	require.NoError(t, err)
	return g
}
