package events

import (
	"strings"
	"time"
)

// Decode reads an event. Unknown fields are ignored, unknown metadata is kept in
// Metadata.Extra, a time with an offset becomes UTC. Everything else that is not
// as the envelope wants it is a *DecodeError; see the package comment.
//
// Data and Raw share payload's memory: don't change payload afterwards.
func Decode(payload []byte) (Envelope, error) {
	d := decoder{scanner: scanner{b: payload}}
	e, err := d.envelope()
	if err != nil {
		return Envelope{}, err
	}
	if err := e.validateFields(); err != nil {
		return Envelope{}, err
	}
	e.raw = payload
	return e, nil
}

// Slots of the envelope's and the metadata's strings.
const (
	slotID = iota
	slotSource
	slotType
	slotVersion
	slotTimestamp
	slotCorrelation
	slotCausation
	slotTraceParent
	slotTraceState
	slotOrdering
	slotCount
)

var slotFields = [slotCount]string{
	fieldID, fieldSource, fieldType, fieldVersion, fieldTimestamp,
	fieldMetadata + "." + KeyCorrelation, fieldMetadata + "." + KeyCausation,
	fieldMetadata + "." + KeyTraceParent, fieldMetadata + "." + KeyTraceState,
	fieldMetadata + "." + KeyOrdering,
}

type decoder struct {
	scanner
	slots [slotCount]text
	seen  [slotCount]bool
}

func (d *decoder) envelope() (Envelope, error) {
	var e Envelope
	var hasData, hasMetadata bool
	if err := d.document(); err != nil {
		return e, err
	}
	for first := true; ; first = false {
		name, more, err := d.member(first)
		if err != nil {
			return e, err
		}
		if !more {
			break
		}
		switch field := d.name(name); field {
		case fieldID:
			err = d.slot(slotID)
		case fieldSource:
			err = d.slot(slotSource)
		case fieldType:
			err = d.slot(slotType)
		case fieldVersion:
			err = d.slot(slotVersion)
		case fieldTimestamp:
			err = d.slot(slotTimestamp)
		case fieldData:
			if hasData {
				return e, &DecodeError{Code: CodeDuplicate, Field: fieldData}
			}
			hasData = true
			from := d.i
			err = d.value()
			e.Data = d.b[from:d.i:d.i]
		case fieldMetadata:
			if hasMetadata {
				return e, &DecodeError{Code: CodeDuplicate, Field: fieldMetadata}
			}
			hasMetadata = true
			e.Metadata.Extra, err = d.metadata()
		default:
			err = d.value()
		}
		if err != nil {
			return e, err
		}
	}
	if err := d.end(); err != nil {
		return e, err
	}
	if d.seen[slotTimestamp] {
		t := d.slots[slotTimestamp]
		when, err := d.time(t)
		if err != nil {
			return e, err
		}
		e.Timestamp = when
	}
	d.fill(&e)
	return e, nil
}

// name returns a member's name; the compiler keeps the conversion in a switch
// free of allocation.
func (d *decoder) name(t text) string {
	if t.escaped {
		return d.unquote(t)
	}
	switch string(d.b[t.start:t.end]) {
	case fieldID:
		return fieldID
	case fieldSource:
		return fieldSource
	case fieldType:
		return fieldType
	case fieldTimestamp:
		return fieldTimestamp
	case fieldVersion:
		return fieldVersion
	case fieldData:
		return fieldData
	case fieldMetadata:
		return fieldMetadata
	}
	return ""
}

// slot reads the string of one field; null is as good as absent.
func (d *decoder) slot(n int) *DecodeError {
	if d.seen[n] {
		return &DecodeError{Code: CodeDuplicate, Field: slotFields[n]}
	}
	d.seen[n] = true
	switch c := d.peek(); {
	case c == '"':
		t, err := d.str()
		d.slots[n] = t
		return err
	case c == 'n':
		return d.value()
	default:
		if err := d.value(); err != nil {
			return err
		}
		return &DecodeError{Code: CodeWrongType, Field: slotFields[n], Value: kind(c)}
	}
}

func (d *decoder) metadata() (map[string]string, *DecodeError) {
	switch c := d.peek(); c {
	case '{':
		if err := d.open(); err != nil {
			return nil, err
		}
	case 'n':
		return nil, d.value()
	default:
		if err := d.value(); err != nil {
			return nil, err
		}
		return nil, &DecodeError{Code: CodeWrongType, Field: fieldMetadata, Value: kind(c)}
	}
	var extra map[string]string
	for first := true; ; first = false {
		name, more, err := d.member(first)
		if err != nil || !more {
			return extra, err
		}
		if n := d.metadataSlot(name); n >= 0 {
			if err := d.slot(n); err != nil {
				return nil, err
			}
			continue
		}
		value, ok, err := d.loose()
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		key := d.unquote(name)
		if _, twice := extra[key]; twice {
			return nil, &DecodeError{Code: CodeDuplicate, Field: fieldMetadata + "." + clip(key)}
		}
		if extra == nil {
			extra = make(map[string]string)
		}
		extra[key] = value
	}
}

func (d *decoder) metadataSlot(name text) int {
	key := d.b[name.start:name.end]
	if name.escaped {
		key = []byte(d.unquote(name))
	}
	switch string(key) {
	case KeyCorrelation:
		return slotCorrelation
	case KeyCausation:
		return slotCausation
	case KeyTraceParent:
		return slotTraceParent
	case KeyTraceState:
		return slotTraceState
	case KeyOrdering:
		return slotOrdering
	}
	return -1
}

// loose reads any value as text: a string as itself, null as nothing, the rest
// as its JSON.
func (s *scanner) loose() (value string, ok bool, err *DecodeError) {
	switch c := s.peek(); c {
	case '"':
		t, err := s.str()
		if err != nil {
			return "", false, err
		}
		return s.unquote(t), true, nil
	default:
		from := s.i
		if err := s.value(); err != nil {
			return "", false, err
		}
		return string(s.b[from:s.i]), c != 'n', nil
	}
}

func (d *decoder) time(t text) (time.Time, error) {
	if t.start == t.end {
		return time.Time{}, nil // null or empty: missing
	}
	b := d.b[t.start:t.end]
	if t.escaped {
		b = []byte(d.unquote(t))
	}
	return parseTime(fieldTimestamp, b)
}

// fill puts the strings into the envelope. They are cut out of one allocation.
func (d *decoder) fill(e *Envelope) {
	size := 0
	for n, t := range d.slots {
		if n != slotTimestamp && !t.escaped {
			size += t.end - t.start
		}
	}
	var all strings.Builder
	all.Grow(size)
	var out [slotCount]string
	for n, t := range d.slots {
		if n == slotTimestamp {
			continue
		}
		if t.escaped {
			out[n] = d.unquote(t)
			continue
		}
		from := all.Len()
		all.Write(d.b[t.start:t.end])
		out[n] = all.String()[from:]
	}
	e.ID, e.Source, e.Type, e.Version = out[slotID], out[slotSource], out[slotType], out[slotVersion]
	e.Metadata.CorrelationID = out[slotCorrelation]
	e.Metadata.CausationID = out[slotCausation]
	e.Metadata.TraceParent = out[slotTraceParent]
	e.Metadata.TraceState = out[slotTraceState]
	e.Metadata.OrderingKey = out[slotOrdering]
}
