// Package providertest is a payment provider for tests of the HTTP gateway: the
// protocol that package httpgateway documents, over another gateway's ledger.
package providertest

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/httpgateway"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/sandbox"
)

// Credentials that the provider wants.
const (
	APIKey     = "key-for-tests"
	SigningKey = "signing-key-for-tests"
)

// Handler returns the provider. Like a real one it checks credentials and
// signatures. Below another path it is mounted with http.StripPrefix.
func Handler(ledger app.Gateway) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		key := r.Header.Get("Idempotency-Key")
		switch {
		case err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || key == "":
			w.WriteHeader(http.StatusBadRequest)
			return
		case r.Header.Get("Authorization") != "Bearer "+APIKey,
			r.Header.Get("X-Signature") != httpgateway.Sign(SigningKey, r.Header.Get("X-Timestamp"), r.Method, r.RequestURI, key, body):
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
		case "/v1/charges":
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
		case "/v1/voids":
			receipt, captured, err := ledger.Void(r.Context(), in.ChargeKey)
			switch {
			case err != nil:
				w.WriteHeader(http.StatusInternalServerError)
			case captured:
				out = map[string]any{"id": receipt.Reference, "status": "captured"}
			default:
				out = map[string]any{"status": "voided"}
			}
		case "/v1/refunds":
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
	})
}
