package config

import (
	"fmt"
	"io"
	"log/slog"
)

// Redacted is what a Secret prints instead of its value.
const Redacted = "[redacted]"

// Secret is a configured value that no log, error or dump may show: every verb
// of fmt, slog, encoding/json and YAML print Redacted in its place, or nothing
// where it is empty. Reveal is the one way to the value.
//
// Keep a Secret in exported fields, and never make it a map's key: fmt cannot
// reach the methods of an unexported field, nor encoding/json those of a key.
type Secret string

// Reveal returns the value. Hand it to the client that needs it and to nothing
// that prints.
func (s Secret) Reveal() string { return string(s) }

// String returns Redacted, or "" for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return Redacted
}

// GoString is String, for %#v.
func (s Secret) GoString() string { return fmt.Sprintf("%q", s.String()) }

// Format prints String under every verb, %x and %q included.
func (s Secret) Format(f fmt.State, verb rune) {
	if verb == 'q' || verb == 'v' && f.Flag('#') {
		_, _ = io.WriteString(f, s.GoString())
		return
	}
	_, _ = io.WriteString(f, s.String())
}

// MarshalText is String, for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue is String, for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
