package events_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/pkg/events"
)

type placed struct {
	OrderID string       `json:"order_id"`
	Total   events.Money `json:"total"`
	At      *time.Time   `json:"at,omitempty"`
}

func (p placed) Validate() error {
	return errors.Join(events.Require("order_id", p.OrderID), p.Total.Validate())
}

var orderPlaced = events.Define[placed]("order.placed", "1.1", events.Topic("orders"))

func envelope(data string) events.Envelope {
	e := minimal()
	e.Data = json.RawMessage(data)
	return e
}

func TestTypeRoundTrip(t *testing.T) {
	t.Parallel()
	data := placed{OrderID: "7 <&>", Total: events.Money{Amount: 1999, Currency: "EUR"}}
	when := time.Date(2026, 7, 1, 14, 0, 0, 5, time.FixedZone("x", 7200))
	d := orderPlaced.New("7", data, events.At(when), events.WithID("my-id"), events.WithExtra("tenant", "acme"), events.WithExtra("b", ""))
	require.NoError(t, d.Err())
	require.Equal(t, "orders", d.Topic)
	require.Equal(t, `{"order_id":"7 <&>","total":{"amount":1999,"currency":"EUR"}}`, string(d.Data))

	env, err := d.Seal(events.Stamp{
		ID: "unused", Source: "orders", CorrelationID: "c", CausationID: "p", TraceParent: "tp", TraceState: "ts", Now: time.Now(),
	})
	require.NoError(t, err)
	require.Equal(t, events.Metadata{
		CorrelationID: "c", CausationID: "p", TraceParent: "tp", TraceState: "ts", OrderingKey: "7",
		Extra: map[string]string{"tenant": "acme", "b": ""},
	}, env.Metadata)
	require.Equal(t, "my-id", env.ID)
	require.Equal(t, time.Date(2026, 7, 1, 12, 0, 0, 5, time.UTC), env.Timestamp)

	b, err := env.Encode()
	require.NoError(t, err)
	got, err := events.Decode(b)
	require.NoError(t, err)
	e, err := orderPlaced.Decode(got)
	require.NoError(t, err)
	require.Equal(t, data, e.Data)
	require.Equal(t, string(d.Data), string(e.Envelope.Data))
	require.Equal(t, "my-id", e.ID)

	var viaJSON events.Event[placed]
	marshalled, err := json.Marshal(e)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(marshalled, &viaJSON))
	require.Equal(t, data, viaJSON.Data)
	require.Equal(t, "my-id", viaJSON.ID)
}

func TestSealFillsWhatTheDraftLeavesOpen(t *testing.T) {
	t.Parallel()
	d := orderPlaced.New("", placed{OrderID: "7", Total: events.Money{Currency: "EUR"}})
	now := time.Now()
	e, err := d.Seal(events.Stamp{ID: "stamp", Source: "orders", Now: now})
	require.NoError(t, err)
	require.Equal(t, "stamp", e.ID)
	require.Equal(t, now.UTC().Round(0), e.Timestamp)
	require.Nil(t, e.Metadata.Extra)

	e, err = d.Seal(events.Stamp{Source: "orders"})
	require.NoError(t, err)
	require.Len(t, e.ID, 36)
	require.WithinDuration(t, time.Now(), e.Timestamp, time.Minute)

	_, err = d.Seal(events.Stamp{})
	require.Equal(t, "source", refused(t, err).Field)
	_, err = orderPlaced.New("", placed{OrderID: "7", Total: events.Money{Currency: "EUR"}}, events.WithExtra(events.KeyTraceParent, "x")).
		Seal(events.Stamp{Source: "orders"})
	require.Equal(t, "metadata.traceparent", refused(t, err).Field)
}

func TestDraftKeepsItsFault(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]events.Draft{
		"order_id":   orderPlaced.New("7", placed{Total: events.Money{Currency: "EUR"}}),
		"zero time":  orderPlaced.New("7", placed{OrderID: "7", Total: events.Money{Currency: "EUR"}}, events.At(time.Time{})),
		"chan":       events.Define[any]("x.made", "1.0").New("7", make(chan int)),
		"null":       events.Define[*nullable]("x.made", "1.0").New("7", &nullable{}),
		"early":      events.Define[json.RawMessage]("x.made", "1.0").New("7", json.RawMessage(`{`)),
		"it is null": events.Define[alwaysNull]("x.made", "1.0").New("7", alwaysNull{}),
	} {
		require.ErrorContains(t, d.Err(), name)
		_, err := d.Seal(events.Stamp{Source: "orders"})
		require.ErrorIs(t, err, d.Err())
	}
}

type nullable struct{}

func (*nullable) Validate() error { return errors.New("null by pointer") }

type alwaysNull struct{}

func (alwaysNull) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

// B45: a field that was added is ignored; what is missing or of another type is
// refused with the field's name, and nothing of the data in the text.
func TestTypeDecodeToleratesAndRefuses(t *testing.T) {
	t.Parallel()
	e, err := orderPlaced.Decode(envelope(`{"order_id":"7","total":{"amount":1,"currency":"EUR","tax":3},"gift":{"wrap":true}}`))
	require.NoError(t, err)
	require.Equal(t, "7", e.Data.OrderID)

	for name, tc := range map[string]struct{ data, field, says string }{
		"missing field":      {`{"total":{"amount":1,"currency":"EUR"}}`, "data", "order_id is missing"},
		"missing object":     {`{"order_id":"7"}`, "data", "currency is missing"},
		"missing amount":     {`{"order_id":"7","total":{"currency":"EUR"}}`, "data", `"amount" is missing`},
		"wrong type":         {`{"order_id":98765,"total":{"amount":1,"currency":"EUR"}}`, "data.order_id", "it is a number, want string"},
		"amount as text":     {`{"order_id":"7","total":{"amount":"98765","currency":"EUR"}}`, "data", "whole number"},
		"amount a fraction":  {`{"order_id":"7","total":{"amount":98765.5,"currency":"EUR"}}`, "data", "whole number"},
		"currency by symbol": {`{"order_id":"7","total":{"amount":1,"currency":"euro"}}`, "data", "ISO 4217"},
		"bad time":           {`{"order_id":"7","total":{"amount":1,"currency":"EUR"},"at":"98765"}`, "data", "RFC 3339"},
		"null":               {`null`, "data", "it is null"},
		"array":              {`[98765]`, "data", "it is an array"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := orderPlaced.Decode(envelope(tc.data))
			d := refused(t, err)
			require.Equal(t, events.CodeBadData, d.Code)
			require.Equal(t, tc.field, d.Field)
			require.ErrorContains(t, err, tc.says)
			require.NotContains(t, err.Error(), "98765")
		})
	}
}

// B45: an unknown type or major version among known ones is told apart.
func TestTypeDecodeChecksNameAndVersion(t *testing.T) {
	t.Parallel()
	const data = `{"order_id":"7","total":{"amount":1,"currency":"EUR"}}`
	for version, ok := range map[string]bool{"1.1": true, "1.0": true, "1.27": true, "2.0": false, "1": false, "1.x": false, "01.1": false, "v1.1": false} {
		e := envelope(data)
		e.Version = version
		_, err := orderPlaced.Decode(e)
		require.Equal(t, ok, orderPlaced.Accepts(e.Type, version), version)
		if ok {
			require.NoError(t, err, version)
			continue
		}
		require.Equal(t, events.CodeUnknownVersion, refused(t, err).Code, version)
	}
	e := envelope(data)
	e.Type = "order.replaced"
	_, err := orderPlaced.Decode(e)
	require.Equal(t, events.CodeUnknownType, refused(t, err).Code)
	require.False(t, orderPlaced.Accepts(e.Type, "1.1"))
	require.Error(t, orderPlaced.Descriptor().Check(e))
	require.NoError(t, orderPlaced.Descriptor().Check(envelope(data)))
}

func TestNumbersKeepTheirDigits(t *testing.T) {
	t.Parallel()
	const digits = "12345678901234567890.123456789"
	loose := events.Define[map[string]any]("order.placed", "1.0")
	e, err := loose.Decode(envelope(`{"n":` + digits + `,"deep":[{"n":9007199254740993}]}`))
	require.NoError(t, err)
	require.Equal(t, json.Number(digits), e.Data["n"])
	nested := events.Define[struct {
		In []struct{ V any } `json:"in"`
	}]("order.placed", "1.0")
	n, err := nested.Decode(envelope(`{"in":[{"v":9007199254740993}]}`))
	require.NoError(t, err)
	require.Equal(t, json.Number("9007199254740993"), n.Data.In[0].V)

	raw := events.Define[json.RawMessage]("order.placed", "1.0")
	r, err := raw.Decode(envelope(`{ "n" : 1.00 }`))
	require.NoError(t, err)
	require.Equal(t, `{ "n" : 1.00 }`, string(r.Data))
	d := raw.New("k", json.RawMessage("\n{ \"n\" : 1.00, \"h\":\"<\" } "))
	require.NoError(t, d.Err())
	require.Equal(t, `{ "n" : 1.00, "h":"<" }`, string(d.Data))
}

func TestRecursiveDataType(t *testing.T) {
	t.Parallel()
	type node struct {
		Name string  `json:"name"`
		Next []*node `json:"next,omitempty"`
	}
	kind := events.Define[node]("tree.grown", "1.0")
	d := kind.New("k", node{Name: "a", Next: []*node{{Name: "b"}}})
	env, err := d.Seal(events.Stamp{Source: "trees"})
	require.NoError(t, err)
	e, err := kind.Decode(env)
	require.NoError(t, err)
	require.Equal(t, "b", e.Data.Next[0].Name)
}

func TestZeroTypeDoesNotPanic(t *testing.T) {
	t.Parallel()
	var zero events.Type[placed]
	require.Empty(t, zero.Topic())
	_, err := zero.Decode(minimal())
	require.Error(t, err)
	_, err = zero.New("", placed{OrderID: "7", Total: events.Money{Currency: "EUR"}}).Seal(events.Stamp{Source: "x"})
	require.Equal(t, "type", refused(t, err).Field)
	require.Error(t, events.NewRegistry().Register(zero.Descriptor()))
}

func TestHugeDraftIsWhole(t *testing.T) {
	t.Parallel()
	text := events.Define[string]("note.taken", "1.0")
	big := strings.Repeat("é", 100_000)
	first, second := text.New("k", big), text.New("k", "short")
	require.Len(t, first.Data, 200_002)
	require.Equal(t, `"short"`, string(second.Data))
}
