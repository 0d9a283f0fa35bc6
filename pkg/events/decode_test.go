package events_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/pkg/events"
)

const valid = `{"id":"1","source":"orders","type":"order.placed","timestamp":"2026-07-01T12:00:00Z","version":"1.0","data":{}}`

// with replaces a part of the valid payload.
func with(t *testing.T, old, replacement string) string {
	t.Helper()
	require.Contains(t, valid, old)
	return strings.Replace(valid, old, replacement, 1)
}

func refused(t *testing.T, err error) *events.DecodeError {
	t.Helper()
	var d *events.DecodeError
	require.ErrorAs(t, err, &d)
	return d
}

// B19 and B45: whatever can't be an event is refused, with the field named.
func TestDecodeRefusesAndNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	for name, tc := range map[string]struct {
		payload string
		code    events.DecodeCode
		field   string
		says    string
	}{
		"empty":                {"", events.CodeEmpty, "", "payload is empty"},
		"blanks":               {" \r\n\t", events.CodeEmpty, "", "payload is empty"},
		"null":                 {"null", events.CodeNotObject, "", "payload is null"},
		"array":                {"[]", events.CodeNotObject, "", "payload is an array"},
		"string":               {`"x"`, events.CodeNotObject, "", "payload is a string"},
		"number":               {`-5`, events.CodeNotObject, "", "payload is a number"},
		"boolean":              {`true`, events.CodeNotObject, "", "payload is a boolean"},
		"empty object":         {`{}`, events.CodeMissing, "id", `"id" is missing`},
		"text":                 {`hello`, events.CodeMalformed, "", "at byte 0"},
		"BOM":                  {"\ufeff" + valid, events.CodeMalformed, "", "at byte 0"},
		"brace":                {`{`, events.CodeTruncated, "", "at byte 1"},
		"trailing":             {valid + "x", events.CodeMalformed, "", fmt.Sprintf("at byte %d", len(valid))},
		"two documents":        {valid + valid, events.CodeMalformed, "", ""},
		"trailing comma":       {with(t, `{}}`, `{},}`), events.CodeMalformed, "", ""},
		"bad data":             {with(t, `{}`, `{01}`), events.CodeMalformed, "", ""},
		"not UTF-8":            {with(t, `"1"`, "\"\xff\""), events.CodeMalformed, "", "at byte 7: not UTF-8"},
		"not UTF-8 in data":    {with(t, `{}`, "\"\xff\""), events.CodeMalformed, "", "not UTF-8"},
		"too deep":             {with(t, `{}`, strings.Repeat("[", 10000)+strings.Repeat("]", 10000)), events.CodeMalformed, "", "nested"},
		"no id":                {with(t, `"id":"1",`, ``), events.CodeMissing, "id", ""},
		"empty id":             {with(t, `"id":"1"`, `"id":""`), events.CodeMissing, "id", ""},
		"null id":              {with(t, `"id":"1"`, `"id":null`), events.CodeMissing, "id", ""},
		"id by another case":   {with(t, `"id":"1"`, `"ID":"1"`), events.CodeMissing, "id", ""},
		"no source":            {with(t, `"source":"orders",`, ``), events.CodeMissing, "source", ""},
		"no type":              {with(t, `"type":"order.placed",`, ``), events.CodeMissing, "type", ""},
		"no timestamp":         {with(t, `"timestamp":"2026-07-01T12:00:00Z",`, ``), events.CodeMissing, "timestamp", ""},
		"no version":           {with(t, `"version":"1.0",`, ``), events.CodeMissing, "version", ""},
		"no data":              {with(t, `,"data":{}`, ``), events.CodeMissing, "data", ""},
		"id a number":          {with(t, `"id":"1"`, `"id":1`), events.CodeWrongType, "id", "it is a number"},
		"type an object":       {with(t, `"type":"order.placed"`, `"type":{}`), events.CodeWrongType, "type", "it is an object"},
		"version a number":     {with(t, `"version":"1.0"`, `"version":1.0`), events.CodeWrongType, "version", ""},
		"timestamp a number":   {with(t, `"timestamp":"2026-07-01T12:00:00Z"`, `"timestamp":1782907200`), events.CodeWrongType, "timestamp", ""},
		"metadata an array":    {with(t, `{}}`, `{},"metadata":[]}`), events.CodeWrongType, "metadata", ""},
		"correlation a bool":   {with(t, `{}}`, `{},"metadata":{"correlation_id":true}}`), events.CodeWrongType, "metadata.correlation_id", ""},
		"id twice":             {with(t, `"id":"1"`, `"id":"1","id":"2"`), events.CodeDuplicate, "id", "twice"},
		"id twice, escaped":    {with(t, `"id":"1"`, `"id":"1","\u0069d":"2"`), events.CodeDuplicate, "id", "twice"},
		"data twice":           {with(t, `{}}`, `{},"data":{}}`), events.CodeDuplicate, "data", ""},
		"metadata twice":       {with(t, `{}}`, `{},"metadata":{},"metadata":{}}`), events.CodeDuplicate, "metadata", ""},
		"key twice":            {with(t, `{}}`, `{},"metadata":{"ordering_key":"a","ordering_key":"a"}}`), events.CodeDuplicate, "metadata.ordering_key", ""},
		"extra twice":          {with(t, `{}}`, `{},"metadata":{"x":"a","x":"b"}}`), events.CodeDuplicate, "metadata.x", ""},
		"id with newline":      {with(t, `"id":"1"`, `"id":"1\n"`), events.CodeInvalid, "id", "control"},
		"id with NUL":          {with(t, `"id":"1"`, `"id":"1\u0000"`), events.CodeInvalid, "id", "control"},
		"id with blank":        {with(t, `"id":"1"`, `"id":" 1"`), events.CodeInvalid, "id", "blank"},
		"id too long":          {with(t, `"id":"1"`, `"id":"`+long+`"`), events.CodeInvalid, "id", "256 bytes"},
		"source with DEL":      {with(t, `"orders"`, `"o\u007f"`), events.CodeInvalid, "source", "control"},
		"key with tab":         {with(t, `{}}`, `{},"metadata":{"ordering_key":"a\tb"}}`), events.CodeInvalid, "metadata.ordering_key", "control"},
		"correlation too long": {with(t, `{}}`, `{},"metadata":{"correlation_id":"`+long+`"}}`), events.CodeInvalid, "metadata.correlation_id", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := events.Decode([]byte(tc.payload))
			d := refused(t, err)
			require.Equal(t, tc.code, d.Code, "%v", err)
			require.Equal(t, tc.field, d.Field, "%v", err)
			require.ErrorContains(t, err, tc.says)
			require.Less(t, len(err.Error()), 250)
			require.Zero(t, e)
		})
	}
}

// B19: cut anywhere, an event is refused as truncated (or empty) and never
// decoded from its first half.
func TestDecodeRefusesEveryTruncation(t *testing.T) {
	t.Parallel()
	for _, whole := range []string{string(readGolden(t, "envelope_full.json")), string(readGolden(t, "envelope_foreign.json"))} {
		for n := range len(whole) {
			_, err := events.Decode([]byte(whole[:n]))
			d := refused(t, err)
			switch {
			case n == 0:
				require.Equal(t, events.CodeEmpty, d.Code)
			case d.Code == events.CodeMalformed:
				require.ErrorContains(t, err, "not UTF-8", "cut at %d", n) // inside a character
			default:
				require.Equal(t, events.CodeTruncated, d.Code, "cut at %d: %v", n, err)
				require.Equal(t, n, d.Offset)
			}
		}
	}
}

// B45: times with a fraction or an offset are taken and become UTC.
func TestDecodeTimes(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Time{
		"2026-07-01T12:00:06.8Z":              time.Date(2026, 7, 1, 12, 0, 6, 800_000_000, time.UTC),
		"2026-07-01T12:00:06+05:30":           time.Date(2026, 7, 1, 6, 30, 6, 0, time.UTC),
		"2026-01-01T00:30:00+01:00":           time.Date(2025, 12, 31, 23, 30, 0, 0, time.UTC),
		"2026-07-01T12:00:06-00:00":           time.Date(2026, 7, 1, 12, 0, 6, 0, time.UTC),
		"2026-07-01T12:00:06.123456789-03:00": time.Date(2026, 7, 1, 15, 0, 6, 123456789, time.UTC),
		`2026-07-01T12:00:06\u002e8Z`:         time.Date(2026, 7, 1, 12, 0, 6, 800_000_000, time.UTC),
	} {
		e, err := events.Decode([]byte(with(t, "2026-07-01T12:00:00Z", in)))
		require.NoError(t, err, in)
		require.Equal(t, want, e.Timestamp)
	}
}

// B45: a bad time is refused and named, never replaced by the present.
func TestDecodeRefusesBadTimes(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"garbage", "2026-07-01", "2026-07-01 12:00:00Z", "2026-07-01T12:00:00", "2026-13-01T12:00:00Z", "2026-02-30T12:00:00Z",
		"2026-07-01T24:00:00Z", "2026-07-01T3:04:05Z", "2026-07-01T12:00:06,8Z", "2026-07-01T12:00:06+25:00", "1782907200", " 2026-07-01T12:00:00Z",
		"0001-01-01T00:00:00Z", "0000-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00",
	} {
		_, err := events.Decode([]byte(with(t, "2026-07-01T12:00:00Z", in)))
		d := refused(t, err)
		require.Equal(t, events.CodeBadTime, d.Code, in)
		require.Equal(t, "timestamp", d.Field)
		require.Equal(t, in, d.Value)
	}
}

func TestDecodeKeepsEveryByteOfData(t *testing.T) {
	t.Parallel()
	for _, data := range []string{
		`null`, `0`, `-0.0e+10`, `"x"`, `[]`, `{ }`, `{"a":1,"a":2}`, `"\ud800"`, `"<>&` + "\u2028" + `\/"`,
		"{\"a\"\t:\r\n[ 1 , 2.50 ]}", `123456789012345678901234567890`, `1E400`, `{"id":"inner","data":{}}`,
		strings.Repeat("[", 9999) + strings.Repeat("]", 9999),
	} {
		e, err := events.Decode([]byte(with(t, `"data":{}`, "\"data\" : \n"+data+" ")))
		require.NoError(t, err, data)
		require.Equal(t, data, string(e.Data))
		b, err := e.Encode()
		require.NoError(t, err)
		again, err := events.Decode(b)
		require.NoError(t, err)
		require.Equal(t, data, string(again.Data))
	}
}

func TestDecodedDataCannotGrowIntoThePayload(t *testing.T) {
	t.Parallel()
	payload := []byte(valid)
	e, err := events.Decode(payload)
	require.NoError(t, err)
	_ = append(e.Data, "overwritten"...)
	require.Equal(t, valid, string(payload))
}

func TestEncodeRefusesWhatDecodeRefuses(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*events.Envelope){
		"id":                    func(e *events.Envelope) { e.ID = "" },
		"source":                func(e *events.Envelope) { e.Source = "a\x00b" },
		"type":                  func(e *events.Envelope) { e.Type = "\xff" },
		"version":               func(e *events.Envelope) { e.Version = "" },
		"timestamp":             func(e *events.Envelope) { e.Timestamp = time.Time{} },
		"data":                  func(e *events.Envelope) { e.Data = nil },
		"metadata.ordering_key": func(e *events.Envelope) { e.Metadata.OrderingKey = "a\nb" },
		"metadata.tracestate":   func(e *events.Envelope) { e.Metadata.TraceState = "a\nb" },
		"metadata.traceparent":  func(e *events.Envelope) { e.Metadata.Extra = map[string]string{"traceparent": "x"} },
		"metadata.x":            func(e *events.Envelope) { e.Metadata.Extra = map[string]string{"x": "\xff"} },
	} {
		e := minimal()
		change(&e)
		_, err := e.Encode()
		require.Equal(t, field, refused(t, err).Field, "%v", err)
		require.Equal(t, field, refused(t, e.Validate()).Field)
	}
	for _, data := range []string{`{`, `{}{}`, ` `, `x`, "\"\xff\"", `nul`} {
		e := minimal()
		e.Data = json.RawMessage(data)
		_, err := e.Encode()
		require.Equal(t, "data", refused(t, err).Field, data)
		require.Equal(t, "data", refused(t, e.Validate()).Field, data)
	}
	far := minimal()
	far.Timestamp = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	_, err := far.Encode()
	require.Equal(t, events.CodeBadTime, refused(t, err).Code)
}

func TestHeadersHoldNoEmptyValue(t *testing.T) {
	t.Parallel()
	require.Equal(t, map[string]string{
		events.KeyID: "1", events.KeySource: "orders", events.KeyType: "order.placed",
		events.KeyVersion: "1.0", events.KeyTime: "2026-07-01T12:00:00Z",
	}, minimal().Headers())
	h := full().Headers()
	require.Len(t, h, 10)
	require.Equal(t, "order-7", h[events.KeyOrdering])
	require.Equal(t, "2026-07-01T12:00:00.123456789Z", h[events.KeyTime])
	require.NotContains(t, h, "tenant")
	require.Empty(t, events.Envelope{}.Headers())
}

// Payloads are not logged, not even by an unlucky %+v.
func TestPrintingAnEventLeaksNoData(t *testing.T) {
	t.Parallel()
	type secret struct{ Card string }
	kind := events.Define[secret]("card.stored", "1.0")
	draft := kind.New("k", secret{Card: "4111"})
	env, err := draft.Seal(events.Stamp{Source: "vault"})
	require.NoError(t, err)
	e, err := kind.Decode(env)
	require.NoError(t, err)
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "env", env, "event", e)
	for _, v := range []any{env, e, draft} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
			fmt.Fprintf(&log, verb, v)
		}
	}
	require.NotContains(t, log.String(), "4111")
	require.NotContains(t, log.String(), "52 49 49 49")
	require.Contains(t, log.String(), env.ID)
}

func TestEnvelopeInsideAnotherDocument(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(map[string]any{"event": minimal()})
	require.NoError(t, err)
	var doc struct{ Event events.Envelope }
	require.NoError(t, json.Unmarshal(b, &doc))
	same(t, minimal(), doc.Event)
	require.Error(t, json.Unmarshal([]byte(`{"event":{"id":"1"}}`), &doc))
}

func TestDecodeErrorUnwraps(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	require.ErrorIs(t, &events.DecodeError{Code: events.CodeBadData, Field: "data", Err: cause}, cause)
}
