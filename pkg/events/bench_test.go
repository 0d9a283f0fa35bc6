package events_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/orders"
)

// order is an event of usual size, about 0.9 kB.
func order(b *testing.B) events.Envelope {
	b.Helper()
	price := events.Money{Amount: 1999, Currency: "EUR"}
	e, err := orders.Placed.New("01980f2e-7c00-7abc-8def-0123456789ac", orders.PlacedData{
		OrderID:  "01980f2e-7c00-7abc-8def-0123456789ac",
		Customer: orders.Customer{ID: "c-1", Email: "ada@example.com", Phone: "+4915112345678", Language: "de"},
		Lines:    []orders.Line{{SKU: "KETTLE-1", Quantity: 1, UnitPrice: price}, {SKU: "CUP-2", Quantity: 6, UnitPrice: price}},
		Total:    events.Money{Amount: 13993, Currency: "EUR"}, PaymentToken: "tok_success",
	}).Seal(events.Stamp{
		Source: "orders", CorrelationID: "01980f2e-7c00-7abc-8def-0123456789ad", CausationID: "01980f2e-7c00-7abc-8def-0123456789ae",
		TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	})
	if err != nil {
		b.Fatal(err)
	}
	return e
}

func BenchmarkEncode(b *testing.B) {
	e := order(b)
	out, _ := e.Encode()
	b.SetBytes(int64(len(out)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Encode(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	payload, _ := order(b).Encode()
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := events.Decode(payload); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecodeStandard is the same job by encoding/json, for comparison.
func BenchmarkDecodeStandard(b *testing.B) {
	payload, _ := order(b).Encode()
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		var e struct {
			ID, Source, Type, Version string
			Timestamp                 time.Time
			Data                      json.RawMessage
			Metadata                  map[string]string
		}
		if err := json.Unmarshal(payload, &e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTypeDecode(b *testing.B) {
	e := order(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := orders.Placed.Decode(e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTypeNewAndSeal(b *testing.B) {
	event, err := orders.Placed.Decode(order(b))
	if err != nil {
		b.Fatal(err)
	}
	stamp := events.Stamp{ID: event.ID, Source: "orders", Now: event.Timestamp}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := orders.Placed.New(event.Data.OrderID, event.Data).Seal(stamp); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHeaders(b *testing.B) {
	e := order(b)
	b.ReportAllocs()
	for b.Loop() {
		e.Headers()
	}
}

func BenchmarkStableID(b *testing.B) {
	parent := events.NewID()
	b.ReportAllocs()
	for b.Loop() {
		events.StableID(parent, "payments.charge-order", "payment.captured", parent, 0)
	}
}
