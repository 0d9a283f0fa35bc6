package events

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/url"
	"path"
	"slices"
	"strings"
)

// Media types of CloudEvents.
const (
	// CloudEventContentType is the media type of a structured CloudEvent.
	CloudEventContentType = "application/cloudevents+json"

	contentTypeJSON = "application/json"
	specVersion     = "1.0"
)

// CloudEvents attributes, in the order in which they are written.
//
//	CloudEvents        Envelope
//	specversion        always "1.0"
//	id                 ID
//	source             Source, a URI reference
//	type               Type
//	time               Timestamp
//	datacontenttype    always JSON; one that isn't plain application/json is kept in Extra
//	eventversion       Version (extension)
//	correlationid      Metadata.CorrelationID (extension)
//	causationid        Metadata.CausationID (extension)
//	traceparent        Metadata.TraceParent (extension, Distributed Tracing)
//	tracestate         Metadata.TraceState (extension, Distributed Tracing)
//	orderingkey        Metadata.OrderingKey (extension)
//	any other          Metadata.Extra under the same name (subject, dataschema, …)
//	eventextra         the rest of Metadata.Extra, whose names or values no
//	                   attribute can have, as one JSON object (extension)
//	data, data_base64  Data
const (
	ceSpecVersion = "specversion"
	ceID          = "id"
	ceSource      = "source"
	ceType        = "type"
	ceTime        = "time"
	ceContentType = "datacontenttype"
	ceSchema      = "dataschema"
	ceVersion     = "eventversion"
	ceCorrelation = "correlationid"
	ceCausation   = "causationid"
	ceTraceParent = "traceparent"
	ceTraceState  = "tracestate"
	ceOrdering    = "orderingkey"
	cePartition   = "partitionkey"
	ceExtra       = "eventextra"
	ceData        = "data"
	ceDataBase64  = "data_base64"
)

// CloudEventOption adjusts how a CloudEvent is read.
type CloudEventOption func(*cloudReader)

// AssumeVersion gives a CloudEvent that states no version this one. Default:
// such an event is refused, since nothing says which schema its data follows.
func AssumeVersion(version string) CloudEventOption {
	return func(r *cloudReader) { r.assumed = version }
}

// CloudEvent writes the event as a structured CloudEvent 1.0 (media type
// CloudEventContentType). Data keeps its bytes. What an Envelope holds and a
// CloudEvent has no attribute for becomes an extension, so FromCloudEvent gives
// back an equal envelope.
//
//	Envelope                  CloudEvent
//	ID, Type, Source          id, type, source
//	Timestamp                 time
//	Version                   eventversion
//	Metadata                  correlationid, causationid, traceparent, tracestate, orderingkey
//	Metadata.Extra            the attribute of that name; eventextra for names that none can have
//	Data                      data, with datacontenttype application/json
//
// The error is a *DecodeError: a rule of Validate is broken, or Source is no URI
// reference.
func (e Envelope) CloudEvent() ([]byte, error) {
	attrs, data, err := e.cloudAttributes()
	if err != nil {
		return nil, err
	}
	size := len(data) + 16
	for _, a := range attrs {
		size += len(a.name) + len(a.value) + 8
	}
	w := writer{b: append(make([]byte, 0, size), '{')}
	for _, a := range attrs {
		w.field(a.name, a.value)
	}
	w.raw(ceData, data)
	return append(w.b, '}'), nil
}

// FromCloudEvent reads a structured CloudEvent 1.0 in JSON. The mapping is that
// of Envelope.CloudEvent. Time is required here, though CloudEvents leaves it
// optional. The version is eventversion, else the version that ends dataschema
// ("…/order.placed/1.0", "…#1.2", "…/v2.0.json"), else AssumeVersion; an event
// without any is refused. Without orderingkey, partitionkey is the ordering key.
// An absent data becomes null; data that is not JSON is refused. Attributes whose
// names break CloudEvents' own rule (lower-case letters and digits) are ignored.
//
// Raw returns the CloudEvent's bytes, which Data shares where it can: don't
// change payload afterwards. Errors are *DecodeError and name the CloudEvents
// attribute.
func FromCloudEvent(payload []byte, opts ...CloudEventOption) (Envelope, error) {
	r := newCloudReader(opts)
	s := scanner{b: payload}
	if err := s.document(); err != nil {
		return Envelope{}, err
	}
	var encoded string
	var hasEncoded bool
	for first := true; ; first = false {
		name, more, fault := s.member(first)
		if fault != nil {
			return Envelope{}, fault
		}
		if !more {
			break
		}
		switch key := s.unquote(name); key {
		case ceData:
			from := s.i
			if fault := s.value(); fault != nil {
				return Envelope{}, fault
			}
			if r.data != nil {
				return Envelope{}, &DecodeError{Code: CodeDuplicate, Field: ceData}
			}
			r.data = payload[from:s.i:s.i]
		case ceDataBase64:
			value, ok, err := s.attribute(key)
			if err != nil {
				return Envelope{}, err
			}
			if hasEncoded && ok {
				return Envelope{}, &DecodeError{Code: CodeDuplicate, Field: ceDataBase64}
			}
			encoded, hasEncoded = value, hasEncoded || ok
		default:
			value, ok, err := s.attribute(key)
			if err != nil {
				return Envelope{}, err
			}
			if ok {
				if err := r.put(key, value); err != nil {
					return Envelope{}, err
				}
			}
		}
	}
	if fault := s.end(); fault != nil {
		return Envelope{}, fault
	}
	if hasEncoded {
		if r.data != nil {
			return Envelope{}, &DecodeError{Code: CodeDuplicate, Field: ceData, Err: errors.New("both data and data_base64")}
		}
		decoded, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return Envelope{}, &DecodeError{Code: CodeInvalid, Field: ceDataBase64, Value: "string", Err: errors.New("not base64")}
		}
		r.data = decoded
	}
	return r.envelope(payload)
}

// attribute reads a string, number or boolean; null is as good as absent. What
// an attribute can't be is an error only under a name that an attribute can
// have.
func (s *scanner) attribute(name string) (value string, ok bool, err error) {
	c := s.peek()
	if c == '{' || c == '[' {
		if fault := s.value(); fault != nil {
			return "", false, fault
		}
		if !isAttributeName(name) {
			return "", false, nil
		}
		return "", false, &DecodeError{Code: CodeWrongType, Field: clip(name), Value: kind(c)}
	}
	value, ok, fault := s.loose()
	if fault != nil {
		return "", false, fault
	}
	if ok && c != '"' && isStringAttribute(name) {
		return "", false, &DecodeError{Code: CodeWrongType, Field: name, Value: kind(c)}
	}
	return value, ok, nil
}

func isStringAttribute(name string) bool {
	switch name {
	case ceSpecVersion, ceID, ceSource, ceType, ceTime, ceContentType, ceDataBase64, ceVersion,
		ceCorrelation, ceCausation, ceTraceParent, ceTraceState, ceOrdering:
		return true
	}
	return false
}

type cloudAttribute struct{ name, value string }

// cloudAttributes returns the event's attributes in a fixed order, and its data.
func (e *Envelope) cloudAttributes() ([]cloudAttribute, []byte, error) {
	if err := e.validateFields(); err != nil {
		return nil, nil, err
	}
	data, fault := trimJSON(e.Data)
	if fault != nil {
		return nil, nil, inField(fault, fieldData)
	}
	if _, err := url.Parse(e.Source); err != nil || strings.ContainsAny(e.Source, " <>\"{}|\\^`") {
		return nil, nil, &DecodeError{Code: CodeInvalid, Field: fieldSource, Value: clip(e.Source),
			Err: errors.New("CloudEvents wants a URI reference, such as orders or https://example.com/orders")}
	}
	m := &e.Metadata
	attrs := make([]cloudAttribute, 0, 13+len(m.Extra))
	put := func(name, value string) {
		if value != "" {
			attrs = append(attrs, cloudAttribute{name, value})
		}
	}
	put(ceSpecVersion, specVersion)
	put(ceID, e.ID)
	put(ceSource, e.Source)
	put(ceType, e.Type)
	put(ceTime, formatTime(e.Timestamp))
	contentType := m.Extra[ceContentType]
	own := isOtherJSON(contentType)
	if !own {
		contentType = contentTypeJSON
	}
	put(ceContentType, contentType)
	put(ceVersion, e.Version)
	put(ceCorrelation, m.CorrelationID)
	put(ceCausation, m.CausationID)
	put(ceTraceParent, m.TraceParent)
	put(ceTraceState, m.TraceState)
	put(ceOrdering, m.OrderingKey)
	var rest map[string]string
	for _, name := range slices.Sorted(maps.Keys(m.Extra)) {
		value := m.Extra[name]
		switch {
		case name == ceContentType && own: // written above
		case name == cePartition && m.OrderingKey == "": // or it would come back as the ordering key
			rest = with(rest, name, value)
		case isExtraAttribute(name) && value != "" && textFault(value, 0) == nil:
			put(name, value)
		default:
			rest = with(rest, name, value)
		}
	}
	if rest != nil {
		put(ceExtra, encodeExtra(rest))
	}
	return attrs, data, nil
}

func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

func encodeExtra(extra map[string]string) string {
	w := writer{b: []byte{'{'}}
	for _, k := range slices.Sorted(maps.Keys(extra)) {
		w.field(k, extra[k])
	}
	return string(append(w.b, '}'))
}

// isOtherJSON tells whether a content type is JSON and says more than
// application/json does.
func isOtherJSON(contentType string) bool {
	return contentType != "" && contentType != contentTypeJSON && textFault(contentType, 0) == nil && isJSONType(contentType)
}

func isJSONType(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == contentTypeJSON || media == "text/json" || strings.HasSuffix(media, "+json"))
}

// isAttributeName holds CloudEvents' rule for names.
func isAttributeName(name string) bool {
	for i := 0; i < len(name); i++ {
		if c := name[i]; !isDigit(c) && (c < 'a' || c > 'z') {
			return false
		}
	}
	return name != ""
}

// isExtraAttribute tells whether an entry of Extra may be an attribute of its own.
func isExtraAttribute(name string) bool {
	switch name {
	case ceSpecVersion, ceID, ceSource, ceType, ceTime, ceContentType, ceVersion, ceCorrelation, ceCausation,
		ceTraceParent, ceTraceState, ceOrdering, ceExtra, ceData:
		return false
	}
	return isAttributeName(name)
}

// cloudReader collects attributes until the envelope is complete.
type cloudReader struct {
	assumed string
	attrs   map[string]string
	data    []byte
}

func newCloudReader(opts []CloudEventOption) *cloudReader {
	r := &cloudReader{attrs: make(map[string]string, 12)}
	for _, opt := range opts {
		opt(r)
	}
	return r
}

func (r *cloudReader) put(name, value string) error {
	if !isAttributeName(name) {
		return nil
	}
	if _, twice := r.attrs[name]; twice {
		return &DecodeError{Code: CodeDuplicate, Field: clip(name)}
	}
	r.attrs[name] = value
	return nil
}

func (r *cloudReader) take(name string) string {
	v := r.attrs[name]
	delete(r.attrs, name)
	return v
}

func (r *cloudReader) envelope(raw []byte) (Envelope, error) {
	switch v := r.take(ceSpecVersion); v {
	case specVersion:
	case "":
		return Envelope{}, &DecodeError{Code: CodeMissing, Field: ceSpecVersion}
	default:
		return Envelope{}, &DecodeError{Code: CodeUnsupported, Field: ceSpecVersion, Value: clip(v), Err: errors.New("want 1.0")}
	}
	if err := r.contentType(); err != nil {
		return Envelope{}, err
	}
	e := Envelope{
		ID: r.take(ceID), Source: r.take(ceSource), Type: r.take(ceType), raw: raw,
		Metadata: Metadata{
			CorrelationID: r.take(ceCorrelation), CausationID: r.take(ceCausation),
			TraceParent: r.take(ceTraceParent), TraceState: r.take(ceTraceState), OrderingKey: r.take(ceOrdering),
		},
	}
	if when := r.take(ceTime); when != "" {
		t, err := parseTime(ceTime, []byte(when))
		if err != nil {
			return Envelope{}, err
		}
		e.Timestamp = t
	}
	if e.Version = r.take(ceVersion); e.Version == "" {
		e.Version = schemaVersion(r.attrs[ceSchema])
	}
	if e.Version == "" {
		e.Version = r.assumed
	}
	if e.Metadata.OrderingKey == "" {
		e.Metadata.OrderingKey = r.attrs[cePartition]
	}
	if err := r.setData(&e); err != nil {
		return Envelope{}, err
	}
	r.setExtra(&e)
	if err := e.validateFields(); err != nil {
		return Envelope{}, cloudNames(err)
	}
	return e, nil
}

func (r *cloudReader) contentType() error {
	contentType := r.attrs[ceContentType]
	if contentType != "" && !isJSONType(contentType) {
		return &DecodeError{Code: CodeUnsupported, Field: ceContentType, Value: clip(contentType),
			Err: errors.New("an envelope holds JSON only: want application/json or a +json type")}
	}
	if contentType == "" || contentType == contentTypeJSON {
		delete(r.attrs, ceContentType)
	}
	return nil
}

func (r *cloudReader) setData(e *Envelope) error {
	if len(r.data) == 0 {
		e.Data = json.RawMessage("null")
		return nil
	}
	data, fault := trimJSON(r.data)
	if fault != nil {
		return inField(fault, ceData)
	}
	e.Data = data
	return nil
}

func (r *cloudReader) setExtra(e *Envelope) {
	if packed, ok := r.attrs[ceExtra]; ok {
		if extra, ok := decodeExtra(packed); ok {
			delete(r.attrs, ceExtra)
			for k, v := range extra {
				if _, taken := r.attrs[k]; !taken {
					r.attrs[k] = v
				}
			}
		}
	}
	if len(r.attrs) > 0 {
		e.Metadata.Extra = r.attrs
	}
}

// decodeExtra reads what encodeExtra wrote. Anything else is a stranger's
// attribute of the same name.
func decodeExtra(packed string) (map[string]string, bool) {
	var extra map[string]string
	if json.Unmarshal([]byte(packed), &extra) != nil || extra == nil {
		return nil, false
	}
	for k := range extra {
		if isMetadataKey(k) {
			return nil, false
		}
	}
	return extra, true
}

// schemaVersion finds the version that a schema's URI ends with.
func schemaVersion(schema string) string {
	if schema == "" {
		return ""
	}
	u, err := url.Parse(schema)
	if err != nil {
		return ""
	}
	for _, candidate := range [...]string{u.Fragment, path.Base(u.Path), path.Base(u.Opaque)} {
		candidate = strings.TrimPrefix(strings.TrimSuffix(candidate, ".json"), "v")
		if _, _, ok := parseVersion(candidate); ok {
			return candidate
		}
	}
	return ""
}

// cloudNames puts the CloudEvents name of a field into an error.
func cloudNames(err error) error {
	var d *DecodeError
	if !errors.As(err, &d) {
		return err
	}
	switch d.Field {
	case fieldTimestamp:
		d.Field = ceTime
	case fieldVersion:
		if d.Code == CodeMissing {
			return &DecodeError{Code: CodeMissing, Field: ceVersion,
				Err: fmt.Errorf("set %s or a %s that ends with the version, or read with events.AssumeVersion", ceVersion, ceSchema)}
		}
		d.Field = ceVersion
	case fieldMetadata + "." + KeyCorrelation:
		d.Field = ceCorrelation
	case fieldMetadata + "." + KeyCausation:
		d.Field = ceCausation
	case fieldMetadata + "." + KeyOrdering:
		d.Field = ceOrdering
	default:
		d.Field = strings.TrimPrefix(d.Field, fieldMetadata+".")
	}
	return d
}
