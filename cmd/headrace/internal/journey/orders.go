package journey

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Shop is a client of the orders service's API, as much of it as the demo needs.
type Shop struct {
	// URL is the service's base address.
	URL string
	// Client sends the requests. Nil means http.DefaultClient.
	Client *http.Client
}

// Order is what the orders service answers.
type Order struct {
	ID          string     `json:"id"`
	State       string     `json:"state"`
	ConfirmedAt *time.Time `json:"confirmed_at"`
}

// Place places an order that is paid with the given token of the sandbox
// gateway. The correlation id follows it through every service.
func (s Shop) Place(ctx context.Context, correlationID, token string) (Order, error) {
	return s.post(ctx, "/v1/orders", correlationID, map[string]any{
		"customer": map[string]any{"id": "customer-1", "email": "ada@example.com", "language": "en"},
		"lines": []any{
			map[string]any{"sku": "TEA-250G", "quantity": 2, "unit_price": map[string]any{"amount": 1250, "currency": "EUR"}},
			map[string]any{"sku": "CUP-BLUE", "quantity": 1, "unit_price": map[string]any{"amount": 1900, "currency": "EUR"}},
		},
		"payment_token": token,
	})
}

// Cancel cancels an order.
func (s Shop) Cancel(ctx context.Context, correlationID, orderID, reason string) (Order, error) {
	return s.post(ctx, "/v1/orders/"+orderID+"/cancel", correlationID, map[string]any{"reason": reason})
}

func (s Shop) post(ctx context.Context, path, correlationID string, body any) (Order, error) {
	var o Order
	b, err := json.Marshal(body)
	if err != nil {
		return o, fmt.Errorf("encode the request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, bytes.NewReader(b))
	if err != nil {
		return o, fmt.Errorf("orders service: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Correlation-ID", correlationID)
	client := s.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return o, fmt.Errorf("orders service: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return o, fmt.Errorf("orders service: read the answer to %s: %w", path, err)
	}
	if resp.StatusCode/100 != 2 {
		return o, fmt.Errorf("orders service: %s answers %s: %s", path, resp.Status, bytes.TrimSpace(answer))
	}
	if err := json.Unmarshal(answer, &o); err != nil {
		return o, fmt.Errorf("orders service: the answer to %s is no order: %w", path, err)
	}
	return o, nil
}
