package payments_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/payments"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var amount = events.Money{Amount: 13993, Currency: "EUR"}

// The golden files are what other teams' consumers see: a change of one is a
// change of the contract.
func TestGolden(t *testing.T) {
	t.Parallel()
	golden(t, "payment_captured_1.0.json", payments.Captured,
		payments.CapturedData{OrderID: "order-7", PaymentID: "pay-9", Amount: amount, Reference: "ch_123"})
	golden(t, "payment_failed_1.0.json", payments.Failed,
		payments.FailedData{OrderID: "order-7", PaymentID: "pay-9", Amount: amount, Reason: "declined"})
	golden(t, "payment_refunded_1.0.json", payments.Refunded,
		payments.RefundedData{OrderID: "order-7", PaymentID: "pay-9", RefundID: "ref-3", Amount: amount, Reference: "re_456"})
}

func golden[T any](t *testing.T, name string, kind events.Type[T], data T) {
	t.Helper()
	draft := kind.New("order-7", data, events.At(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)))
	envelope, err := draft.Seal(events.Stamp{
		ID: "01980f2e-7c00-7abc-8def-0123456789ab", Source: "payments", CorrelationID: "corr-1", CausationID: "01980f2e-0000-7abc-8def-0123456789ab",
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
	require.NoError(t, r.Register(payments.Descriptors()...))
	for _, name := range []string{"payment.captured", "payment.failed", "payment.refunded"} {
		d, ok := r.Lookup(name, "1.0")
		require.True(t, ok, name)
		require.Equal(t, name, d.Topic)
	}
	require.Len(t, r.Types(), 3)
}

// B45: a required field that is missing is named.
func TestValidateNamesTheField(t *testing.T) {
	t.Parallel()
	for says, err := range map[string]error{
		"order_id is missing":   payments.CapturedData{PaymentID: "p", Amount: amount}.Validate(),
		"payment_id is missing": payments.CapturedData{OrderID: "o", Amount: amount}.Validate(),
		"amount: currency":      payments.CapturedData{OrderID: "o", PaymentID: "p"}.Validate(),
		"amount is negative":    payments.CapturedData{OrderID: "o", PaymentID: "p", Amount: events.Money{Amount: -1, Currency: "EUR"}}.Validate(),
		"reason is missing":     payments.FailedData{OrderID: "o", PaymentID: "p", Amount: amount}.Validate(),
		"refund_id is missing":  payments.RefundedData{OrderID: "o", PaymentID: "p", Amount: amount}.Validate(),
	} {
		require.ErrorContains(t, err, says)
	}
}
