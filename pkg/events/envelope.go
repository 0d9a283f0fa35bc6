package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxIDBytes is the longest id, source, type, version, correlation id, causation
// id and ordering key, in bytes: they stand in message headers and in indexes.
const MaxIDBytes = 255

// Envelope is one event as it travels. It is a plain value; its methods don't
// change it and may be called concurrently.
type Envelope struct {
	// ID identifies the event; it is the idempotency key. A UUIDv7 when it was
	// made here; from elsewhere, any text of up to MaxIDBytes. Required.
	ID string
	// Source is the service that published the event. Required.
	Source string
	// Type is the event's name: domain, dot, past-tense fact. Required.
	Type string
	// Timestamp is when the fact happened, in UTC. Required.
	Timestamp time.Time
	// Version is the version of data's schema, MAJOR.MINOR. Required.
	Version string
	// Data is one JSON value, byte for byte as it was published. Required; an
	// event without facts has {}.
	Data json.RawMessage
	// Metadata carries what routing and tracing need. Optional.
	Metadata Metadata

	raw []byte
}

// Metadata is what accompanies an event. An empty field is not sent.
type Metadata struct {
	// CorrelationID is shared by all that one request set off.
	CorrelationID string
	// CausationID is the id of the event whose handling led to this one.
	CausationID string
	// TraceParent and TraceState are the W3C trace context.
	TraceParent string
	TraceState  string
	// OrderingKey names the entity: events of one key are handled in order.
	OrderingKey string
	// Extra holds every other entry, by name. An entry that was no JSON string
	// is kept as its JSON text. It stays in the payload: Headers leaves it out,
	// since brokers bound the number of headers.
	Extra map[string]string
}

// Raw returns the bytes that Decode saw, unknown fields included, and nil for
// an envelope that was not decoded. It is not a copy: don't change it.
func (e Envelope) Raw() []byte { return e.raw }

// Headers returns the broker metadata of the event under the Key constants. It
// never holds an empty value, which some brokers refuse.
func (e Envelope) Headers() map[string]string {
	h := make(map[string]string, headerCount)
	put := func(key, value string) {
		if value != "" {
			h[key] = value
		}
	}
	put(KeyID, e.ID)
	put(KeyType, e.Type)
	put(KeySource, e.Source)
	put(KeyVersion, e.Version)
	if !e.Timestamp.IsZero() {
		h[KeyTime] = formatTime(e.Timestamp)
	}
	put(KeyCorrelation, e.Metadata.CorrelationID)
	put(KeyCausation, e.Metadata.CausationID)
	put(KeyTraceParent, e.Metadata.TraceParent)
	put(KeyTraceState, e.Metadata.TraceState)
	put(KeyOrdering, e.Metadata.OrderingKey)
	return h
}

// String names the event without its data, so that printing one leaks nothing.
func (e Envelope) String() string {
	return fmt.Sprintf("%s %s %s from %s", e.Type, e.Version, e.ID, e.Source)
}

// GoString is String: %#v leaks no data either.
func (e Envelope) GoString() string { return "events.Envelope(" + e.String() + ")" }

// LogValue logs the event's names and ids and never its data.
func (e Envelope) LogValue() slog.Value {
	attrs := make([]slog.Attr, 0, 6)
	attrs = append(attrs,
		slog.String(KeyID, e.ID), slog.String(KeyType, e.Type),
		slog.String(KeyVersion, e.Version), slog.String(KeySource, e.Source))
	if e.Metadata.CorrelationID != "" {
		attrs = append(attrs, slog.String(KeyCorrelation, e.Metadata.CorrelationID))
	}
	if e.Metadata.CausationID != "" {
		attrs = append(attrs, slog.String(KeyCausation, e.Metadata.CausationID))
	}
	return slog.GroupValue(attrs...)
}

// Validate applies the rules that Decode and Encode share and returns the first
// breach as a *DecodeError.
func (e Envelope) Validate() error {
	if err := e.validateFields(); err != nil {
		return err
	}
	if _, err := trimJSON(e.Data); err != nil {
		return inField(err, fieldData)
	}
	return nil
}

// validateFields is Validate without the look at Data's syntax.
func (e *Envelope) validateFields() error {
	if err := checkName(fieldID, e.ID); err != nil {
		return err
	}
	if err := checkName(fieldType, e.Type); err != nil {
		return err
	}
	if err := checkName(fieldSource, e.Source); err != nil {
		return err
	}
	if e.Timestamp.IsZero() {
		return &DecodeError{Code: CodeMissing, Field: fieldTimestamp}
	}
	if y := e.Timestamp.UTC().Year(); y < 0 || y > 9999 {
		return &DecodeError{Code: CodeBadTime, Field: fieldTimestamp, Value: e.Timestamp.UTC().String()}
	}
	if err := checkName(fieldVersion, e.Version); err != nil {
		return err
	}
	if len(e.Data) == 0 {
		return &DecodeError{Code: CodeMissing, Field: fieldData}
	}
	return e.Metadata.validate()
}

func (m *Metadata) validate() error {
	for _, f := range [...]struct {
		name, value string
		max         int
	}{
		{KeyCorrelation, m.CorrelationID, MaxIDBytes},
		{KeyCausation, m.CausationID, MaxIDBytes},
		{KeyTraceParent, m.TraceParent, 0},
		{KeyTraceState, m.TraceState, 0},
		{KeyOrdering, m.OrderingKey, MaxIDBytes},
	} {
		if f.value == "" {
			continue
		}
		if err := textFault(f.value, f.max); err != nil {
			return &DecodeError{Code: CodeInvalid, Field: fieldMetadata + "." + f.name, Value: clip(f.value), Err: err}
		}
	}
	for k, v := range m.Extra {
		if isMetadataKey(k) {
			return &DecodeError{Code: CodeDuplicate, Field: fieldMetadata + "." + k}
		}
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return &DecodeError{Code: CodeInvalid, Field: fieldMetadata + "." + clip(strings.ToValidUTF8(k, "\uFFFD")), Err: errNotUTF8}
		}
	}
	return nil
}

func checkName(field, value string) error {
	if value == "" {
		return &DecodeError{Code: CodeMissing, Field: field}
	}
	err := textFault(value, MaxIDBytes)
	if err == nil && (value[0] == ' ' || value[len(value)-1] == ' ') {
		err = errBlankAround
	}
	if err != nil {
		return &DecodeError{Code: CodeInvalid, Field: field, Value: clip(value), Err: err}
	}
	return nil
}

var (
	errNotUTF8     = errors.New("not UTF-8")
	errBlankAround = errors.New("it must not begin or end with a blank")
	errControl     = errors.New("it must not contain control characters")
)

// textFault says why value can't stand in a message header; max 0 is no limit.
func textFault(value string, limit int) error {
	if limit > 0 && len(value) > limit {
		return fmt.Errorf("it has %d bytes, more than the %d allowed", len(value), limit)
	}
	ascii := true
	for i := 0; i < len(value); i++ {
		c := value[i]
		if c < 0x20 || c == 0x7f {
			return errControl
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	if !ascii && !utf8.ValidString(value) {
		return errNotUTF8
	}
	return nil
}
