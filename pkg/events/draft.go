package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"
)

// Draft is an event that has been written but not yet sent: it lacks what only
// the place of sending knows (Stamp). Type.New makes one.
type Draft struct {
	// Type, Version and Topic are those of the event type.
	Type, Version, Topic string
	// Key is the ordering key: the id of the entity that the event is about.
	// Empty means that order doesn't matter.
	Key string
	// ID is the event's id if the author chose one (WithID), else empty.
	ID string
	// Timestamp is when the fact happened if the author said so (At), else zero.
	Timestamp time.Time
	// Data is the encoded data.
	Data json.RawMessage
	// Extra is additional metadata (WithExtra), or nil.
	Extra map[string]string

	err error
}

// DraftOption adjusts a Draft in Type.New.
type DraftOption func(*Draft)

var errZeroTime = errors.New("events.At was given the zero time; leave it out for the time of sending")

// At says when the fact happened. Default: the time at which the event is
// stamped for sending.
func At(when time.Time) DraftOption {
	return func(d *Draft) {
		if when.IsZero() {
			d.err = errors.Join(d.err, errZeroTime)
			return
		}
		d.Timestamp = when.UTC()
	}
}

// WithID sets the event's id, where it must be the same in every attempt and no
// handler derives it. Default: chosen at sending.
func WithID(id string) DraftOption { return func(d *Draft) { d.ID = id } }

// WithExtra adds an entry to the event's metadata. The names of Metadata's own
// fields are refused when the draft is sealed.
func WithExtra(key, value string) DraftOption {
	return func(d *Draft) {
		d.Extra = with(d.Extra, key, value)
	}
}

// New writes an event about the entity with that key. Data is encoded, and
// validated if it has a method Validate() error, at once, so later changes to it
// don't matter; a failure is kept in the draft (Err) and returned by Seal.
func (t Type[T]) New(key string, data T, opts ...DraftOption) Draft {
	d := Draft{Type: t.name, Version: t.version, Topic: t.topic, Key: key}
	d.Data, d.err = encodeData(t.shape, data)
	for _, opt := range opts {
		opt(&d)
	}
	if d.err != nil {
		d.err = fmt.Errorf("events: new %s: %w", t.name, d.err)
	}
	return d
}

// Err returns why the draft can't be sent, or nil: its data could not be encoded
// or did not pass its Validate.
func (d Draft) Err() error { return d.err }

// String names the draft without its data.
func (d Draft) String() string { return "draft of " + d.Type + " " + d.Version }

// GoString is String: %#v leaks no data either.
func (d Draft) GoString() string { return "events.Draft(" + d.String() + ")" }

// Stamp is what the place of sending adds to a draft.
type Stamp struct {
	// ID is used if the draft has none. Default: NewID().
	ID string
	// Source is the sending service. Required.
	Source string
	// The metadata of the same names.
	CorrelationID, CausationID, TraceParent, TraceState string
	// Now is used if the draft has no time of its own. Default: time.Now().
	Now time.Time
}

// Seal makes the envelope that is sent. The draft's own id and time win over the
// stamp's. The error is the draft's Err, or a *DecodeError that names the field
// which a consumer would refuse.
func (d Draft) Seal(s Stamp) (Envelope, error) {
	if d.err != nil {
		return Envelope{}, d.err
	}
	e := Envelope{
		ID: d.ID, Source: s.Source, Type: d.Type, Timestamp: d.Timestamp, Version: d.Version, Data: d.Data,
		Metadata: Metadata{
			CorrelationID: s.CorrelationID, CausationID: s.CausationID,
			TraceParent: s.TraceParent, TraceState: s.TraceState,
			OrderingKey: d.Key, Extra: maps.Clone(d.Extra),
		},
	}
	if e.ID == "" {
		e.ID = s.ID
	}
	if e.ID == "" {
		e.ID = NewID()
	}
	if e.Timestamp.IsZero() {
		e.Timestamp = s.Now
	}
	if e.Timestamp.IsZero() {
		e.Timestamp = time.Now()
	}
	e.Timestamp = e.Timestamp.UTC().Round(0) // no monotonic reading: it doesn't travel
	if err := e.validateFields(); err != nil {
		return Envelope{}, fmt.Errorf("seal %s: %w", d.Type, err)
	}
	return e, nil
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxPooledBuffer keeps one huge event from staying in memory for ever.
const maxPooledBuffer = 64 << 10

func encodeData[T any](s shape, data T) (json.RawMessage, error) {
	if v, ok := any(&data).(validator); ok {
		if err := v.Validate(); err != nil {
			return nil, err
		}
	} else if v, ok := any(data).(validator); ok && !isNil(v) {
		if err := v.Validate(); err != nil {
			return nil, err
		}
	}
	if s.raw {
		raw, _ := any(data).(json.RawMessage)
		trimmed, fault := trimJSON(raw)
		if fault != nil {
			return nil, inField(fault, fieldData)
		}
		return bytes.Clone(trimmed), nil
	}
	buf, _ := buffers.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= maxPooledBuffer {
			buf.Reset()
			buffers.Put(buf)
		}
	}()
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(data); err != nil {
		return nil, err
	}
	out := bytes.Clone(bytes.TrimSuffix(buf.Bytes(), []byte("\n")))
	if !s.takesNull && string(out) == "null" {
		return nil, errNull
	}
	return out, nil
}
