package orders_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/orders"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var (
	customer = orders.Customer{ID: "cust-42", Email: "ada@example.com", Phone: "+4915112345678", Language: "de"}
	total    = events.Money{Amount: 13993, Currency: "EUR"}
)

func placed() orders.PlacedData {
	return orders.PlacedData{
		OrderID: "order-7", Customer: customer, Total: total, PaymentToken: "tok_success",
		Lines: []orders.Line{
			{SKU: "KETTLE-1", Quantity: 1, UnitPrice: events.Money{Amount: 1999, Currency: "EUR"}},
			{SKU: "CUP-2", Quantity: 6, UnitPrice: events.Money{Amount: 1999, Currency: "EUR"}},
		},
	}
}

func confirmed() orders.ConfirmedData {
	return orders.ConfirmedData{OrderID: "order-7", Customer: customer, Total: total, PaymentID: "pay-9"}
}

func cancelled() orders.CancelledData {
	return orders.CancelledData{
		OrderID: "order-7", Customer: orders.Customer{ID: "cust-42", Email: "ada@example.com", Language: "de"}, Total: total,
		Reason: "customer_request", PaymentID: "pay-9", PreviousState: "confirmed",
	}
}

// The golden files are what other teams' consumers see: a change of one is a
// change of the contract.
func TestGolden(t *testing.T) {
	t.Parallel()
	golden(t, "order_placed_1.0.json", orders.Placed, placed())
	golden(t, "order_confirmed_1.0.json", orders.Confirmed, confirmed())
	golden(t, "order_cancelled_1.0.json", orders.Cancelled, cancelled())
}

func golden[T any](t *testing.T, name string, kind events.Type[T], data T) {
	t.Helper()
	draft := kind.New("order-7", data, events.At(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)))
	envelope, err := draft.Seal(events.Stamp{
		ID: "01980f2e-7c00-7abc-8def-0123456789ab", Source: "orders", CorrelationID: "corr-1", CausationID: "01980f2e-0000-7abc-8def-0123456789ab",
	})
	require.NoError(t, err)
	got, err := envelope.Encode()
	require.NoError(t, err)
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, append(bytes.Clone(got), '\n'), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got)+"\n")

	decoded, err := events.Decode(want)
	require.NoError(t, err)
	event, err := kind.Decode(decoded)
	require.NoError(t, err)
	require.Equal(t, data, event.Data)
	require.Equal(t, "order-7", event.Metadata.OrderingKey)
}

func TestDescriptorsRegister(t *testing.T) {
	t.Parallel()
	r := events.NewRegistry()
	require.NoError(t, r.Register(orders.Descriptors()...))
	for _, name := range []string{"order.placed", "order.confirmed", "order.cancelled"} {
		d, ok := r.Lookup(name, "1.0")
		require.True(t, ok, name)
		require.Equal(t, name, d.Topic)
	}
	require.Len(t, r.Types(), 3)
}

// B45: a required field that is missing is named.
func TestValidateNamesTheField(t *testing.T) {
	t.Parallel()
	for says, change := range map[string]func(*orders.PlacedData){
		"order_id is missing":               func(d *orders.PlacedData) { d.OrderID = "" },
		"customer.id is missing":            func(d *orders.PlacedData) { d.Customer.ID = "" },
		"customer.email and customer.phone": func(d *orders.PlacedData) { d.Customer.Email, d.Customer.Phone = "", "" },
		"payment_token is missing":          func(d *orders.PlacedData) { d.PaymentToken = "" },
		"lines is missing":                  func(d *orders.PlacedData) { d.Lines = nil },
		"lines[1].sku is missing":           func(d *orders.PlacedData) { d.Lines[1].SKU = "" },
		"lines[1].quantity is below 1":      func(d *orders.PlacedData) { d.Lines[1].Quantity = 0 },
		"lines[0].unit_price is negative":   func(d *orders.PlacedData) { d.Lines[0].UnitPrice.Amount = -1 },
		"lines[0].unit_price: currency":     func(d *orders.PlacedData) { d.Lines[0].UnitPrice.Currency = "" },
		"lines[0].unit_price is in another": func(d *orders.PlacedData) { d.Lines[0].UnitPrice.Currency = "USD" },
		"total: currency":                   func(d *orders.PlacedData) { d.Total.Currency = "" },
		"total is negative":                 func(d *orders.PlacedData) { d.Total.Amount = -1 },
	} {
		d := placed()
		require.NoError(t, d.Validate())
		change(&d)
		require.ErrorContains(t, d.Validate(), says)
		require.ErrorContains(t, orders.Placed.New("order-7", d).Err(), says)
	}
	require.ErrorContains(t, orders.ConfirmedData{OrderID: "o", Customer: customer, Total: total}.Validate(), "payment_id")
	require.ErrorContains(t, orders.CancelledData{OrderID: "o", Customer: customer, Total: total}.Validate(), "reason")
}
