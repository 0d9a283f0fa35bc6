package inbound

import (
	"net/http"

	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

const maxKeyBytes = 255

type placeRequest struct {
	Customer     customerBody `json:"customer"`
	Lines        []lineBody   `json:"lines"`
	Total        *moneyBody   `json:"total"`
	PaymentToken string       `json:"payment_token"`
}

type customerBody struct {
	ID       string `json:"id"`
	Email    string `json:"email"`
	Phone    string `json:"phone,omitempty"`
	Language string `json:"language,omitempty"`
}

type lineBody struct {
	SKU       string    `json:"sku"`
	Quantity  int64     `json:"quantity"`
	UnitPrice moneyBody `json:"unit_price"`
}

type moneyBody struct {
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

func (b placeRequest) request() domain.Request {
	req := domain.Request{
		Customer:     domain.Customer(b.Customer),
		Lines:        make([]domain.Line, len(b.Lines)),
		PaymentToken: b.PaymentToken,
	}
	for i, l := range b.Lines {
		req.Lines[i] = domain.Line{SKU: l.SKU, Quantity: l.Quantity, UnitPrice: domain.Money(l.UnitPrice)}
	}
	if b.Total != nil {
		total := domain.Money(*b.Total)
		req.Total = &total
	}
	return req
}

func (a api) placeOrder(w http.ResponseWriter, r *http.Request) error {
	key, err := idempotencyKey(r)
	if err != nil {
		return err
	}
	var body placeRequest
	if err := httpx.DecodeJSON(w, r, &body, 0); err != nil {
		return err
	}
	placing, err := a.Place.Place(r.Context(), key, body.request())
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/orders/"+placing.Order.ID)
	if placing.Replayed {
		w.Header().Set("Idempotency-Replayed", "true")
	}
	return httpx.WriteJSON(w, http.StatusCreated, orderView(placing.Order))
}

// idempotencyKey returns the request's key; empty when it has none.
func idempotencyKey(r *http.Request) (string, error) {
	values := r.Header.Values("Idempotency-Key")
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	valid := len(values) == 1 && key != "" && len(key) <= maxKeyBytes
	for i := range len(key) {
		valid = valid && key[i] >= ' ' && key[i] < 0x7f
	}
	if !valid {
		return "", httpx.Invalid("the Idempotency-Key header can't be used", httpx.FieldError{
			Field: "Idempotency-Key", Code: "invalid", Message: "must be one header of 1 to 255 printable ASCII characters",
		})
	}
	return key, nil
}
