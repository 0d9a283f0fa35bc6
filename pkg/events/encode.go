package events

import (
	"maps"
	"slices"
	"time"
	"unicode/utf8"
)

// Encode writes the envelope. It applies the rules of Decode first (Validate),
// so what it returns can be decoded. Data is written byte for byte, without the
// blanks around it. Fields and metadata stand in a fixed order, Extra by name:
// equal envelopes have equal bytes.
//
// encoding/json is not used, since it compacts a RawMessage and escapes <, > and
// & in it.
func (e Envelope) Encode() ([]byte, error) {
	if err := e.validateFields(); err != nil {
		return nil, err
	}
	data, fault := trimJSON(e.Data)
	if fault != nil {
		return nil, inField(fault, fieldData)
	}
	m := &e.Metadata
	const fixed = 300 // names, punctuation and the time
	size := fixed + len(e.ID) + len(e.Source) + len(e.Type) + len(e.Version) + len(data) +
		len(m.CorrelationID) + len(m.CausationID) + len(m.TraceParent) + len(m.TraceState) + len(m.OrderingKey)
	for k, v := range m.Extra {
		size += len(k) + len(v) + 8
	}
	w := writer{b: append(make([]byte, 0, size), '{')}
	w.field(fieldID, e.ID)
	w.field(fieldSource, e.Source)
	w.field(fieldType, e.Type)
	w.time(fieldTimestamp, e.Timestamp)
	w.field(fieldVersion, e.Version)
	w.raw(fieldData, data)
	w.open(fieldMetadata)
	w.optional(KeyCorrelation, m.CorrelationID)
	w.optional(KeyCausation, m.CausationID)
	w.optional(KeyTraceParent, m.TraceParent)
	w.optional(KeyTraceState, m.TraceState)
	w.optional(KeyOrdering, m.OrderingKey)
	if len(m.Extra) > 0 {
		for _, k := range slices.Sorted(maps.Keys(m.Extra)) {
			w.field(k, m.Extra[k])
		}
	}
	w.b = append(w.b, '}', '}')
	return w.b, nil
}

// MarshalJSON is Encode, for an envelope inside a larger document. Mind that
// encoding/json compacts and HTML-escapes what it gets from here.
func (e Envelope) MarshalJSON() ([]byte, error) { return e.Encode() }

// UnmarshalJSON is Decode on a copy of b.
func (e *Envelope) UnmarshalJSON(b []byte) error {
	decoded, err := Decode(slices.Clone(b))
	if err != nil {
		return err
	}
	*e = decoded
	return nil
}

// writer appends the members of JSON objects.
type writer struct{ b []byte }

func (w *writer) name(name string) {
	if w.b[len(w.b)-1] != '{' {
		w.b = append(w.b, ',')
	}
	w.b = appendString(w.b, name)
	w.b = append(w.b, ':')
}

func (w *writer) field(name, value string) {
	w.name(name)
	w.b = appendString(w.b, value)
}

func (w *writer) optional(name, value string) {
	if value != "" {
		w.field(name, value)
	}
}

func (w *writer) time(name string, t time.Time) {
	w.name(name)
	w.b = append(w.b, '"')
	w.b = t.UTC().AppendFormat(w.b, time.RFC3339Nano)
	w.b = append(w.b, '"')
}

func (w *writer) raw(name string, value []byte) {
	w.name(name)
	w.b = append(w.b, value...)
}

func (w *writer) open(name string) {
	w.name(name)
	w.b = append(w.b, '{')
}

// appendString appends s, which is valid UTF-8, as a JSON string. It escapes
// what JSON demands and no more.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' || c >= utf8.RuneSelf {
			continue
		}
		b = append(b, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
		}
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}
