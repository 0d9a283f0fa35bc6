package events

import (
	"fmt"
	"unicode/utf8"
)

// DecodeCode says in one bounded word what is wrong with an event; it may serve
// as a metric label.
type DecodeCode string

// The codes of a DecodeError.
const (
	// CodeEmpty: there are no bytes, or only blanks.
	CodeEmpty DecodeCode = "empty"
	// CodeNotObject: JSON, but null, an array or a scalar.
	CodeNotObject DecodeCode = "not_object"
	// CodeTruncated: the JSON ends before it is complete.
	CodeTruncated DecodeCode = "truncated"
	// CodeMalformed: not JSON, not UTF-8, or something after the end.
	CodeMalformed DecodeCode = "malformed"
	// CodeMissing: a required field is absent, null or empty.
	CodeMissing DecodeCode = "missing"
	// CodeWrongType: a field holds another JSON type than its own.
	CodeWrongType DecodeCode = "wrong_type"
	// CodeDuplicate: a field occurs twice, so its value is a guess.
	CodeDuplicate DecodeCode = "duplicate"
	// CodeBadTime: the timestamp is no RFC 3339 time.
	CodeBadTime DecodeCode = "bad_time"
	// CodeInvalid: a value breaks another rule of its field, such as a control
	// character in an id.
	CodeInvalid DecodeCode = "invalid"
	// CodeUnknownType: the event is of another type than the one asked for.
	CodeUnknownType DecodeCode = "unknown_type"
	// CodeUnknownVersion: the event's major version is another one.
	CodeUnknownVersion DecodeCode = "unknown_version"
	// CodeBadData: data does not fit the Go type, or its Validate refused it.
	CodeBadData DecodeCode = "bad_data"
	// CodeUnsupported: valid, but not something an Envelope can hold, such as a
	// CloudEvent with an image as its data.
	CodeUnsupported DecodeCode = "unsupported"
)

// DecodeError says why bytes are no valid event, or why an envelope can't be
// encoded (the rules are the same). No retry mends it.
type DecodeError struct {
	// Code is the kind of fault.
	Code DecodeCode
	// Field is the faulty field, with dots for nesting ("metadata.ordering_key",
	// "data.total.amount"); empty where the fault is the payload's.
	Field string
	// Value is what was found: the (clipped) text of an envelope field, or the
	// JSON type where that is the fault. It never holds anything out of data.
	Value string
	// Offset is the byte at which the JSON broke, for CodeTruncated and
	// CodeMalformed; otherwise 0.
	Offset int
	// Err is the cause, where there is one.
	Err error
}

// Error names the field, what was found and what was wanted.
func (e *DecodeError) Error() string {
	switch e.Code {
	case CodeEmpty:
		return "events: the payload is empty, want a JSON object"
	case CodeNotObject:
		return fmt.Sprintf("events: %s is %s, want a JSON object", e.subject(), article(e.Value))
	case CodeTruncated:
		return fmt.Sprintf("events: %s: the JSON ends too early, at byte %d", e.subject(), e.Offset)
	case CodeMalformed:
		return fmt.Sprintf("events: %s is not valid JSON at byte %d%s", e.subject(), e.Offset, e.because())
	case CodeMissing:
		return fmt.Sprintf("events: field %q is missing or empty%s", e.Field, e.because())
	case CodeWrongType:
		return fmt.Sprintf("events: field %q has the wrong type: it is %s", e.Field, article(e.Value))
	case CodeDuplicate:
		return fmt.Sprintf("events: field %q occurs twice%s", e.Field, e.because())
	case CodeBadTime:
		return fmt.Sprintf("events: field %q is %q, want an RFC 3339 time such as 2026-07-01T12:00:00Z", e.Field, e.Value)
	case CodeUnknownType, CodeUnknownVersion:
		return fmt.Sprintf("events: field %q is %q: %v", e.Field, e.Value, e.Err)
	case CodeBadData:
		return fmt.Sprintf("events: field %q does not fit its type: %v", e.Field, e.Err)
	default:
		return fmt.Sprintf("events: field %q is %q: %v", e.Field, e.Value, e.Err)
	}
}

// Unwrap returns the cause.
func (e *DecodeError) Unwrap() error { return e.Err }

func (e *DecodeError) because() string {
	if e.Err == nil {
		return ""
	}
	return ": " + e.Err.Error()
}

func (e *DecodeError) subject() string {
	if e.Field == "" {
		return "the payload"
	}
	return fmt.Sprintf("field %q", e.Field)
}

func article(kind string) string {
	switch kind {
	case "array", "object":
		return "an " + kind
	case "null":
		return kind
	default:
		return "a " + kind
	}
}

// maxErrorValue bounds what an error repeats of a producer's text.
const maxErrorValue = 64

func clip(s string) string {
	if len(s) <= maxErrorValue {
		return s
	}
	cut := maxErrorValue
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// Require returns an error that names the field if value is empty; it is meant
// for the Validate method of a data type:
//
//	return errors.Join(events.Require("order_id", d.OrderID), d.Total.Validate())
func Require(field, value string) error {
	if value == "" {
		return fmt.Errorf("%s is missing or empty", field)
	}
	return nil
}
