package events_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/headrace-go/headrace/pkg/events"
)

func seeds(f *testing.F) {
	f.Helper()
	for _, name := range []string{
		"envelope_full.json", "envelope_minimal.json", "envelope_foreign.json", "cloudevent_full.json", "cloudevent_minimal.json",
	} {
		f.Add(readGolden(f, name))
	}
	for _, s := range []string{
		"", "null", "[]", "{}", "{", `{"id":`, `{"id":"1"}`, valid, valid + " ", valid[:40],
		strings.Replace(valid, `"1"`, `"\ud83d\ude00\u0000"`, 1),
		strings.Replace(valid, `{}}`, `{"a":[1e5,-0,"\\"]},"metadata":{"x":1.50,"y":"\ud800","ordering_key":"é"}}`, 1),
		strings.Replace(valid, `00Z`, `00.000000001+23:59`, 1),
		strings.Replace(valid, `{}`, "\"\xff\"", 1),
		`{"specversion":"1.0","id":"1","source":"/a","type":"t","time":"2026-07-01T12:00:00Z","eventversion":"1.0","data_base64":"e30="}`,
		`{"specversion":"1.0","id":"1","source":"/a","type":"t","time":"2026-07-01T12:00:00Z","dataschema":"http://x/#1.0","n":1,"eventextra":"{\"a\":\"b\"}"}`,
	} {
		f.Add([]byte(s))
	}
}

// Decode never panics; what it accepts is JSON, can be encoded, and comes back
// the same, data byte for byte.
func FuzzDecode(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, payload []byte) {
		before := bytes.Clone(payload)
		e, err := events.Decode(payload)
		if !bytes.Equal(before, payload) {
			t.Fatal("Decode changed its input")
		}
		if err != nil {
			refused(t, err)
			if err.Error() == "" || !utf8.ValidString(err.Error()) {
				t.Fatalf("unprintable error %q", err.Error())
			}
			return
		}
		if !json.Valid(payload) {
			t.Fatalf("accepted what is not JSON: %q", payload)
		}
		var ref struct {
			Data json.RawMessage `json:"data"`
		}
		if err := json.Unmarshal(payload, &ref); err != nil {
			t.Fatal(err)
		}
		b, err := e.Encode()
		if err != nil {
			t.Fatalf("decoded and can't be encoded: %v", err)
		}
		again, err := events.Decode(b)
		if err != nil {
			t.Fatalf("encoded and can't be decoded: %v\n%s", err, b)
		}
		same(t, e, again)
		twice, err := again.Encode()
		if err != nil || !bytes.Equal(b, twice) {
			t.Fatalf("encoding isn't stable: %q, %q, %v", b, twice, err)
		}
		for k, v := range e.Headers() {
			if v == "" {
				t.Fatalf("empty header %s", k)
			}
		}
		if ce, err := e.CloudEvent(); err == nil {
			back, err := events.FromCloudEvent(ce)
			if err != nil {
				t.Fatalf("own CloudEvent refused: %v\n%s", err, ce)
			}
			same(t, e, back)
		}
		for _, binding := range []events.Binding{events.BindingHTTP, events.BindingKafka, events.BindingAMQP} {
			if h, body, err := e.CloudEventBinary(binding); err == nil {
				back, err := events.FromCloudEventBinary(h, body)
				if err != nil {
					t.Fatalf("own binary CloudEvent refused: %v\n%v", err, h)
				}
				same(t, e, back)
			}
		}
	})
}

// Our scanner and encoding/json agree on what is JSON; ours also wants UTF-8.
func FuzzDataIsJSON(f *testing.F) {
	for _, s := range []string{
		`{}`, `[1,2]`, ` {"a" : [ {} , null, true,false ]} `, `-0.1e-5`, `01`, `1.`, `.5`, `+1`, `1e`, `-`, `"\u12"`, `"\x"`, "\"\n\"",
		`[1,]`, `{"a":1,}`, `{,}`, `[,]`, `nulll`, `tru`, `{"a"}`, `{1:2}`, `"a" "b"`, "\"\xc3\"", "\u00a0{}", "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e := minimal()
		e.Data = data
		b, err := e.Encode()
		want := json.Valid(data) && utf8.Valid(data)
		if (err == nil) != want {
			t.Fatalf("%q: encoding/json says %v, we say %v", data, want, err)
		}
		if err == nil && !json.Valid(b) {
			t.Fatalf("wrote what is not JSON: %q", b)
		}
	})
}

func FuzzFromCloudEvent(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, payload []byte) {
		e, err := events.FromCloudEvent(payload)
		if err != nil {
			refused(t, err)
			return
		}
		b, err := e.Encode()
		if err != nil {
			t.Fatalf("read and can't be encoded: %v", err)
		}
		back, err := events.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		same(t, e, back)
	})
}

func FuzzMoney(f *testing.F) {
	for _, s := range []string{
		`{"amount":1,"currency":"EUR"}`, `{"amount":-9223372036854775808,"currency":"JPY","x":[{}]}`, `{"amount":1.5,"currency":"EUR"}`,
		`{"amount":"1","currency":"EUR"}`, `{"currency":"EUR"}`, `null`, `[]`, `{"amount":1,"currency":"\u0045UR"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m events.Money
		if json.Unmarshal(b, &m) != nil {
			return
		}
		out, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var again events.Money
		if err := json.Unmarshal(out, &again); err != nil {
			t.Fatal(err)
		}
		if again != m && utf8.Valid(b) {
			t.Fatalf("%+v != %+v", again, m)
		}
		_ = m.String()
	})
}
