package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Type is an event type: its name, the version of its schema and the Go type of
// its data. It is a plain value, made by Define and meant for a package-level
// variable; it is safe for concurrent use.
type Type[T any] struct {
	name, version, topic string
	words                []string
	shape                shape
}

// Option adjusts a Type in Define.
type Option func(*options)

type options struct {
	topic string
	words []string
}

// Topic sets the topic that events of the type are published to. Default: the
// type's name.
func Topic(name string) Option { return func(o *options) { o.topic = name } }

// PastTense tells the registry that these words are past tense, where its own
// list of irregular verbs doesn't know them.
func PastTense(words ...string) Option {
	return func(o *options) { o.words = append(o.words, words...) }
}

// Define makes an event type. Name is domain.past_tense_fact in lower snake
// case ("order.placed"), version is MAJOR.MINOR ("1.0"). It never fails: a
// wrong name or version is reported by Registry.Register.
func Define[T any](name, version string, opts ...Option) Type[T] {
	o := options{topic: name}
	for _, opt := range opts {
		opt(&o)
	}
	return Type[T]{name: name, version: version, topic: o.topic, words: slices.Clone(o.words), shape: shapeOf(reflect.TypeFor[T]())}
}

// Name returns the type's name.
func (t Type[T]) Name() string { return t.name }

// Version returns the version of the schema that New publishes.
func (t Type[T]) Version() string { return t.version }

// Topic returns the topic that events of the type are published to.
func (t Type[T]) Topic() string { return t.topic }

// String returns the name and the version.
func (t Type[T]) String() string { return t.name + " " + t.version }

// Accepts tells whether Decode takes events of that name and version: those of
// the type's own name and major version.
func (t Type[T]) Accepts(name, version string) bool {
	return name == t.name && compatible(t.version, version)
}

// Descriptor returns what a Registry needs to know of the type.
func (t Type[T]) Descriptor() Descriptor {
	return Descriptor{
		Name: t.name, Version: t.version, Topic: t.topic,
		words:  t.words,
		goType: reflect.TypeFor[T](),
		check: func(e Envelope) error {
			_, err := t.Decode(e)
			return err
		},
	}
}

// Event is an event whose data has been decoded. Data is the typed value;
// Envelope.Data is the raw bytes.
type Event[T any] struct {
	Envelope
	Data T
}

// MarshalJSON writes the envelope, as Envelope.MarshalJSON does.
func (e Event[T]) MarshalJSON() ([]byte, error) { return e.Encode() }

// UnmarshalJSON reads an envelope and its data, of whatever type and version.
func (e *Event[T]) UnmarshalJSON(b []byte) error {
	var env Envelope
	if err := env.UnmarshalJSON(b); err != nil {
		return err
	}
	data, err := decodeData[T](shapeOf(reflect.TypeFor[T]()), env.Data)
	if err != nil {
		return err
	}
	e.Envelope, e.Data = env, data
	return nil
}

// Decode turns the envelope's data into a T. Numbers that land in an
// interface become json.Number and keep all their digits; fields that T doesn't
// have are ignored. If T, or a pointer to it, has a method Validate() error, that decides
// whether something is missing. Another type, another major version and data
// that doesn't fit are a *DecodeError.
func (t Type[T]) Decode(e Envelope) (Event[T], error) {
	if e.Type != t.name {
		return Event[T]{}, &DecodeError{Code: CodeUnknownType, Field: fieldType, Value: clip(e.Type), Err: fmt.Errorf("want %q", t.name)}
	}
	if !compatible(t.version, e.Version) {
		return Event[T]{}, &DecodeError{Code: CodeUnknownVersion, Field: fieldVersion, Value: clip(e.Version),
			Err: fmt.Errorf("this consumer of %s knows %s and versions that only add to it", t.name, t.version)}
	}
	data, err := decodeData[T](t.shape, e.Data)
	if err != nil {
		return Event[T]{}, err
	}
	return Event[T]{Envelope: e, Data: data}, nil
}

// shape is what decoding needs to know of a data type.
type shape struct {
	// hasInterface: a number may land in an interface.
	hasInterface bool
	// takesNull: null is a value of the type.
	takesNull bool
	// raw: the type is json.RawMessage.
	raw bool
}

func shapeOf(t reflect.Type) shape {
	s := shape{hasInterface: holdsInterface(t, map[reflect.Type]bool{}), raw: t == reflect.TypeFor[json.RawMessage]()}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Map, reflect.Slice:
		s.takesNull = true
	}
	return s
}

func holdsInterface(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return holdsInterface(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if holdsInterface(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}

type validator interface{ Validate() error }

var errNull = errors.New("it is null")

func decodeData[T any](s shape, raw json.RawMessage) (T, error) {
	var data T
	if !s.takesNull && string(raw) == "null" {
		return data, &DecodeError{Code: CodeBadData, Field: fieldData, Value: "null", Err: errNull}
	}
	var err error
	switch {
	case s.raw:
		// The zero capacity beyond keeps an append from reaching the payload.
		data, _ = any(raw[:len(raw):len(raw)]).(T)
	case s.hasInterface:
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.UseNumber()
		err = dec.Decode(&data)
	default:
		err = json.Unmarshal(raw, &data)
	}
	if err != nil {
		return data, dataError(err)
	}
	if v, ok := any(&data).(validator); ok {
		err = v.Validate()
	} else if v, ok := any(data).(validator); ok && !isNil(v) {
		err = v.Validate()
	}
	if err != nil {
		return data, &DecodeError{Code: CodeBadData, Field: fieldData, Err: err}
	}
	return data, nil
}

func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}

// dataError tells where data doesn't fit, without what stands there: errors end
// in logs, payloads don't.
func dataError(err error) error {
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		found, _, _ := strings.Cut(mismatch.Value, " ")
		field := fieldData
		if mismatch.Field != "" {
			field += "." + mismatch.Field
		}
		return &DecodeError{Code: CodeBadData, Field: field, Value: found,
			Err: fmt.Errorf("it is %s, want %s", article(found), mismatch.Type)}
	}
	var badTime *time.ParseError
	if errors.As(err, &badTime) {
		return &DecodeError{Code: CodeBadData, Field: fieldData, Err: errors.New("a time in it is not RFC 3339")}
	}
	var inner *DecodeError
	if errors.As(err, &inner) {
		return &DecodeError{Code: CodeBadData, Field: fieldData, Value: inner.Value, Err: err}
	}
	return &DecodeError{Code: CodeBadData, Field: fieldData, Err: err}
}

// parseVersion reads MAJOR.MINOR without leading zeros.
func parseVersion(v string) (major, minor int, ok bool) {
	a, b, found := strings.Cut(v, ".")
	if !found {
		return 0, 0, false
	}
	major, ok = parseNumber(a)
	if !ok {
		return 0, 0, false
	}
	minor, ok = parseNumber(b)
	return major, minor, ok
}

func parseNumber(s string) (int, bool) {
	if s == "" || len(s) > 6 || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	for i := 0; i < len(s); i++ {
		if !isDigit(s[i]) {
			return 0, false
		}
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}

// compatible tells whether a consumer of version own understands version other:
// within one major version, fields are only added.
func compatible(own, other string) bool {
	if own == other {
		return true
	}
	a, _, ok := parseVersion(own)
	b, _, ok2 := parseVersion(other)
	return ok && ok2 && a == b
}
