package events

import (
	"encoding/json"
	"errors"
	"unicode/utf8"
)

// maxDepth is encoding/json's own limit, so both accept the same documents.
const maxDepth = 10000

var errTooDeep = errors.New("nested too deeply")

// scanner walks JSON once, without building anything. encoding/json would find
// the fields too, but matches their names regardless of case, takes the last of
// two and reads the payload twice.
type scanner struct {
	b     []byte
	i     int
	depth int
}

// text is the inside of a JSON string: b[start:end], without the quotes.
type text struct {
	start, end int
	escaped    bool
}

func (s *scanner) fault() *DecodeError {
	if s.i >= len(s.b) {
		return &DecodeError{Code: CodeTruncated, Offset: len(s.b)}
	}
	return &DecodeError{Code: CodeMalformed, Offset: s.i}
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// peek skips blanks and returns the next byte, or 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

// kind names the JSON type that a value beginning with c has; "" for none.
func kind(c byte) string {
	switch c {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	if c == '-' || c >= '0' && c <= '9' {
		return "number"
	}
	return ""
}

// open enters the object or array that starts here.
func (s *scanner) open() *DecodeError {
	if s.depth++; s.depth > maxDepth {
		return &DecodeError{Code: CodeMalformed, Offset: s.i, Err: errTooDeep}
	}
	s.i++
	return nil
}

// member moves to the next member of the object that was opened and returns its
// name, standing before its value; more is false after the closing brace.
func (s *scanner) member(first bool) (name text, more bool, err *DecodeError) {
	c := s.peek()
	if c == '}' {
		s.i++
		s.depth--
		return text{}, false, nil
	}
	if !first {
		if c != ',' {
			return text{}, false, s.fault()
		}
		s.i++
		c = s.peek()
	}
	if c != '"' {
		return text{}, false, s.fault()
	}
	if name, err = s.str(); err != nil {
		return text{}, false, err
	}
	if s.peek() != ':' {
		return text{}, false, s.fault()
	}
	s.i++
	s.space()
	return name, true, nil
}

// str reads the string that starts here.
func (s *scanner) str() (text, *DecodeError) {
	t := text{start: s.i + 1}
	b, i := s.b, s.i+1
	for i < len(b) {
		c := b[i]
		switch {
		case c == '"':
			t.end = i
			s.i = i + 1
			return t, nil
		case c == '\\':
			t.escaped = true
			i++
			if i >= len(b) {
				s.i = i
				return t, s.fault()
			}
			switch b[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				i++
			case 'u':
				i++
				for n := 0; n < 4; n++ {
					if i >= len(b) || !isHex(b[i]) {
						s.i = i
						return t, s.fault()
					}
					i++
				}
			default:
				s.i = i
				return t, s.fault()
			}
		case c < 0x20:
			s.i = i
			return t, s.fault()
		default:
			i++
		}
	}
	s.i = i
	return t, s.fault()
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// value skips the value that starts here.
func (s *scanner) value() *DecodeError {
	if s.i >= len(s.b) {
		return s.fault()
	}
	switch c := s.b[s.i]; c {
	case '"':
		_, err := s.str()
		return err
	case '{':
		if err := s.open(); err != nil {
			return err
		}
		for first := true; ; first = false {
			_, more, err := s.member(first)
			if err != nil || !more {
				return err
			}
			if err = s.value(); err != nil {
				return err
			}
		}
	case '[':
		return s.array()
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		return s.number()
	}
}

func (s *scanner) array() *DecodeError {
	if err := s.open(); err != nil {
		return err
	}
	for first := true; ; first = false {
		c := s.peek()
		if c == ']' {
			s.i++
			s.depth--
			return nil
		}
		if !first {
			if c != ',' {
				return s.fault()
			}
			s.i++
			if s.peek() == ']' {
				return s.fault()
			}
		}
		if err := s.value(); err != nil {
			return err
		}
	}
}

func (s *scanner) literal(word string) *DecodeError {
	for n := 0; n < len(word); n++ {
		if s.i >= len(s.b) || s.b[s.i] != word[n] {
			return s.fault()
		}
		s.i++
	}
	return nil
}

func (s *scanner) number() *DecodeError {
	if s.b[s.i] == '-' {
		s.i++
	}
	switch {
	case s.i >= len(s.b):
		return s.fault()
	case s.b[s.i] == '0':
		s.i++
	case isDigit(s.b[s.i]):
		s.digits()
	default:
		return s.fault()
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !s.digits() {
			return s.fault()
		}
	}
	if s.i < len(s.b) && (s.b[s.i] == 'e' || s.b[s.i] == 'E') {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if !s.digits() {
			return s.fault()
		}
	}
	return nil
}

func (s *scanner) digits() bool {
	from := s.i
	for s.i < len(s.b) && isDigit(s.b[s.i]) {
		s.i++
	}
	return s.i > from
}

// end reports anything but blanks after the document.
func (s *scanner) end() *DecodeError {
	if s.space(); s.i < len(s.b) {
		return s.fault()
	}
	return nil
}

// is compares the text with a name, escapes resolved.
func (s *scanner) is(t text, name string) bool {
	if t.escaped {
		return s.unquote(t) == name
	}
	return string(s.b[t.start:t.end]) == name
}

// unquote returns the string that t stands for.
func (s *scanner) unquote(t text) string {
	if !t.escaped {
		return string(s.b[t.start:t.end])
	}
	var out string
	// The scanner has checked the literal, so this can't fail.
	_ = json.Unmarshal(s.b[t.start-1:t.end+1], &out)
	return out
}

// document checks that b is UTF-8 and begins like an object, and enters it.
func (s *scanner) document() *DecodeError {
	c := s.peek()
	switch {
	case s.i >= len(s.b):
		return &DecodeError{Code: CodeEmpty}
	case c != '{' && kind(c) != "":
		return &DecodeError{Code: CodeNotObject, Value: kind(c)}
	case c != '{':
		return s.fault()
	case !utf8.Valid(s.b):
		return &DecodeError{Code: CodeMalformed, Offset: invalidUTF8At(s.b), Err: errNotUTF8}
	}
	return s.open()
}

func invalidUTF8At(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(b)
}

// trimJSON checks that b is exactly one JSON value and returns it without the
// blanks around it.
func trimJSON(b []byte) ([]byte, *DecodeError) {
	s := scanner{b: b, depth: 1} // it will stand inside an object
	s.space()
	from := s.i
	if err := s.value(); err != nil {
		return nil, err
	}
	to := s.i
	if err := s.end(); err != nil {
		return nil, err
	}
	if !utf8.Valid(b) {
		return nil, &DecodeError{Code: CodeMalformed, Offset: invalidUTF8At(b), Err: errNotUTF8}
	}
	return b[from:to:to], nil
}

// inField names the field of a fault in a value that stood alone.
func inField(err *DecodeError, field string) *DecodeError {
	err.Field = field
	return err
}
