package app

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

func request() domain.Request {
	return domain.Request{
		Customer:     domain.Customer{ID: "cus_1", Email: "ada@example.com"},
		Lines:        []domain.Line{{SKU: "BOOK", Quantity: 2, UnitPrice: domain.Money{Amount: 1250, Currency: "EUR"}}},
		PaymentToken: "tok_ok",
	}
}

// Keys outlive a release: a request that was fingerprinted by the last one must
// match when its repetition meets this one.
func TestFingerprintStaysTheSame(t *testing.T) {
	t.Parallel()
	require.Equal(t, "80e1e3c0922c5c9f7de6a4d552889a63a81777880e581186463054d8f91c9a85", fingerprint(request()))
}

func TestFingerprintTellsRequestsApart(t *testing.T) {
	t.Parallel()
	seen := map[string]string{fingerprint(request()): "the request itself"}
	for name, change := range map[string]func(*domain.Request){
		"customer":     func(r *domain.Request) { r.Customer.ID = "cus_2" },
		"moved border": func(r *domain.Request) { r.Customer.ID, r.Customer.Email = "cus_1a", "da@example.com" },
		"phone":        func(r *domain.Request) { r.Customer.Phone = "+441632960961" },
		"language":     func(r *domain.Request) { r.Customer.Language = "de" },
		"sku":          func(r *domain.Request) { r.Lines[0].SKU = "PEN" },
		"quantity":     func(r *domain.Request) { r.Lines[0].Quantity = 3 },
		"price":        func(r *domain.Request) { r.Lines[0].UnitPrice.Amount++ },
		"currency":     func(r *domain.Request) { r.Lines[0].UnitPrice.Currency = "USD" },
		"second line":  func(r *domain.Request) { r.Lines = append(r.Lines, r.Lines[0]) },
		"total":        func(r *domain.Request) { r.Total = &domain.Money{Amount: 2500, Currency: "EUR"} },
		"token":        func(r *domain.Request) { r.PaymentToken = "tok_other" },
		"no lines":     func(r *domain.Request) { r.Lines = nil },
		"a quote":      func(r *domain.Request) { r.Customer.ID = `cus_1""` },
	} {
		req := request()
		change(&req)
		f := fingerprint(req)
		require.NotContains(t, seen, f, "%s is taken for %s", name, seen[f])
		seen[f] = name
	}
}
