package httpx

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// ValidID tells whether id has 1 to maxBytes bytes, all of them printable ASCII
// without blanks. It keeps out what no id of a service's contains and a database
// may refuse.
func ValidID(id string, maxBytes int) bool {
	if id == "" || len(id) > maxBytes {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] >= 0x7f {
			return false
		}
	}
	return true
}

// PathID returns the id that the route's wildcard took. False means that it can
// be no id (ValidID), so nothing has it: answer as if it was not found.
func PathID(r *http.Request, name string, maxBytes int) (string, bool) {
	id := r.PathValue(name)
	return id, ValidID(id, maxBytes)
}

// Query reads a request's query and gathers what is wrong with it, so that the
// caller learns all of it at once. A parameter that nobody read is wrong too: a
// filter with a typing error would else find everything.
type Query struct {
	values url.Values
	read   map[string]bool
	faults []FieldError
}

// ParseQuery begins with a request.
func ParseQuery(r *http.Request) *Query {
	return &Query{values: r.URL.Query(), read: map[string]bool{}}
}

// String returns a parameter as it came, or "" where there is none.
func (q *Query) String(name string) string {
	q.read[name] = true
	return q.values.Get(name)
}

// Fail notes that a field can't be used.
func (q *Query) Fail(field, message string) {
	q.faults = append(q.faults, FieldError{Field: field, Code: "invalid", Message: message})
}

// ID returns an id that may be left out.
func (q *Query) ID(name string, maxBytes int) string {
	id := q.String(name)
	if id != "" && !ValidID(id, maxBytes) {
		q.Fail(name, fmt.Sprintf("must be printable ASCII without blanks, of at most %d bytes", maxBytes))
	}
	return id
}

// OneOf returns the one of the allowed words that the query names, or "" where it
// names none.
func OneOf[T ~string](q *Query, name string, allowed ...T) T {
	word := T(q.String(name))
	if word != "" && !slices.Contains(allowed, word) {
		words := make([]string, len(allowed))
		for i, w := range allowed {
			words[i] = string(w)
		}
		q.Fail(name, "must be "+oneOf(words))
	}
	return word
}

func oneOf(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// Int returns a number from least to most, or absent where there is none.
func (q *Query) Int(name string, least, most, absent int) int {
	text := q.String(name)
	if text == "" {
		return absent
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		q.Fail(name, fmt.Sprintf("must be a number from %d to %d", least, most))
		return absent
	}
	return n
}

// Cursor returns a place in a list, or the zero Cursor, its start.
func (q *Query) Cursor(name string) Cursor {
	text := q.String(name)
	if text == "" {
		return Cursor{}
	}
	c, err := ParseCursor(text)
	if err != nil {
		q.Fail(name, "must be the next_cursor of an earlier page")
	}
	return c
}

// maxUnknown bounds how many unknown parameters are named.
const maxUnknown = 10

// Err is nil, or a *Problem with all that was wrong. Read every parameter before:
// those that were not read are refused as unknown.
func (q *Query) Err() error {
	faults := slices.Clone(q.faults)
	unknown := 0
	for _, name := range slices.Sorted(maps.Keys(q.values)) {
		if q.read[name] {
			continue
		}
		if unknown++; unknown > maxUnknown {
			break
		}
		faults = append(faults, FieldError{Field: name[:min(len(name), maxFieldBytes)], Code: "unknown", Message: "is not a parameter of this request"})
	}
	if len(faults) == 0 {
		return nil
	}
	return Invalid("the query can't be used", faults...)
}
