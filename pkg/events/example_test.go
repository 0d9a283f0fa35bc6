package events_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/pkg/events"
)

type ParcelShippedData struct {
	ParcelID string       `json:"parcel_id"`
	Postage  events.Money `json:"postage"`
}

func (d ParcelShippedData) Validate() error {
	return errors.Join(events.Require("parcel_id", d.ParcelID), d.Postage.Validate())
}

var ParcelShipped = events.Define[ParcelShippedData]("parcel.shipped", "1.0")

func Example() {
	draft := ParcelShipped.New("p-1",
		ParcelShippedData{ParcelID: "p-1", Postage: events.Money{Amount: 549, Currency: "EUR"}},
		events.At(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)))

	// The framework does this when a handler emits the draft.
	envelope, err := draft.Seal(events.Stamp{ID: "01980f2e-7c00-7abc-8def-0123456789ab", Source: "parcels", CorrelationID: "c-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	payload, err := envelope.Encode()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(payload))

	// And this where it is consumed.
	received, err := events.Decode(payload)
	if err != nil {
		fmt.Println(err)
		return
	}
	event, err := ParcelShipped.Decode(received)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(event.Data.ParcelID, event.Data.Postage, event.Metadata.CorrelationID)
	// Output:
	// {"id":"01980f2e-7c00-7abc-8def-0123456789ab","source":"parcels","type":"parcel.shipped","timestamp":"2026-07-01T12:00:00Z","version":"1.0","data":{"parcel_id":"p-1","postage":{"amount":549,"currency":"EUR"}},"metadata":{"correlation_id":"c-1","ordering_key":"p-1"}}
	// p-1 5.49 EUR c-1
}

func ExampleDecode() {
	_, err := events.Decode([]byte(`{"id":"1","source":"parcels","type":"parcel.shipped","version":"1.0","data":{},"timestamp":"yesterday"}`))
	fmt.Println(err)
	var refused *events.DecodeError
	if errors.As(err, &refused) {
		fmt.Println(refused.Code, refused.Field)
	}
	// Output:
	// events: field "timestamp" is "yesterday", want an RFC 3339 time such as 2026-07-01T12:00:00Z
	// bad_time timestamp
}

func ExampleRegistry() {
	registry := events.NewRegistry()
	fmt.Println(registry.Register(ParcelShipped.Descriptor()))
	fmt.Println(registry.Known("parcel.shipped"))
	fmt.Println(registry.Register(events.Define[ParcelShippedData]("parcel.ship", "1.0").Descriptor()))
	// Output:
	// <nil>
	// true
	// events: type "parcel.ship": "ship" is not past tense: an event says what has happened ("order.placed"); if the word is right, allow it with events.PastTense("ship")
}

func ExampleStableID() {
	first := events.StableID("01980f2e-7c00-7abc-8def-0123456789ab", "payments.charge", "payment.captured", "order-7", 0)
	again := events.StableID("01980f2e-7c00-7abc-8def-0123456789ab", "payments.charge", "payment.captured", "order-7", 0)
	fmt.Println(first == again)
	// Output: true
}

func ExampleEnvelope_CloudEvent() {
	event := events.Envelope{
		ID: "1", Source: "parcels", Type: "parcel.shipped", Version: "1.0",
		Timestamp: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC), Data: []byte(`{"parcel_id":"p-1"}`),
		Metadata: events.Metadata{OrderingKey: "p-1"},
	}
	out, err := event.CloudEvent()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(out))
	back, err := events.FromCloudEvent(out)
	fmt.Println(back, back.Metadata.OrderingKey, err)
	// Output:
	// {"specversion":"1.0","id":"1","source":"parcels","type":"parcel.shipped","time":"2026-07-01T12:00:00Z","datacontenttype":"application/json","eventversion":"1.0","orderingkey":"p-1","data":{"parcel_id":"p-1"}}
	// parcel.shipped 1.0 1 from parcels p-1 <nil>
}
