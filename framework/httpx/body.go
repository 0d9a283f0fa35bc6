package httpx

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"

	"github.com/headrace-go/headrace/framework"
)

// DefaultMaxBytes bounds a JSON body where the caller sets no limit. The App's
// own limit (http.max_body_bytes) holds as well.
const DefaultMaxBytes = 1 << 20

// DecodeJSON reads one JSON value of at most maxBytes (0: DefaultMaxBytes) into
// v. Its error is a *Problem that says what is wrong and never repeats a value of
// the body: 415 for another content type, 413 for too many bytes, 400 for what is
// not one JSON value, and 422 with the field's name for a field that is not known,
// stands twice or has the wrong type. Names are exact, upper and lower case too.
func DecodeJSON(w http.ResponseWriter, r *http.Request, v any, maxBytes int64) error {
	_, err := decode(w, r, v, maxBytes, false)
	return err
}

// DecodeOptionalJSON is DecodeJSON for a body that may be left out: it tells
// whether there was one.
func DecodeOptionalJSON(w http.ResponseWriter, r *http.Request, v any, maxBytes int64) (bool, error) {
	return decode(w, r, v, maxBytes, true)
}

func decode(w http.ResponseWriter, r *http.Request, v any, maxBytes int64, optional bool) (bool, error) {
	if maxBytes <= 0 {
		maxBytes = DefaultMaxBytes
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return false, &Problem{Code: framework.CodeTooLarge, Detail: fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit)}
	case err != nil:
		return false, malformed("the body can't be read")
	case len(raw) == 0 && optional:
		return false, nil
	}
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "application/json" && !strings.HasSuffix(media, "+json") {
		return false, &Problem{Code: framework.CodeUnsupportedMedia, Detail: "the body must be application/json"}
	}
	if len(raw) == 0 {
		return false, malformed("the body is empty: send a JSON value")
	}
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return false, bodyProblem(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return false, malformed("something follows the JSON value")
	}
	if fault := checkKeys(string(raw), v); fault != nil {
		return false, Invalid("the body can't be used", *fault)
	}
	return true, nil
}

func malformed(detail string) *Problem {
	return &Problem{Code: framework.CodeMalformed, Detail: detail}
}

func bodyProblem(err error) *Problem {
	const unusable = "the body can't be used"
	var (
		syntax *json.SyntaxError
		typ    *json.UnmarshalTypeError
	)
	switch {
	case errors.As(err, &typ) && typ.Field != "":
		return Invalid(unusable, FieldError{Field: typ.Field, Code: "wrong_type", Message: "must be " + kindOf(typ.Type)})
	case errors.As(err, &typ):
		return malformed("the body must be " + kindOf(typ.Type))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return malformed("the body ends in the middle of a JSON value")
	case errors.As(err, &syntax):
		return malformed(fmt.Sprintf("the body is not valid JSON at byte %d", syntax.Offset))
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		field = strings.Trim(field, `"`)
		return Invalid(unusable, FieldError{Field: field[:min(len(field), maxFieldBytes)], Code: "unknown", Message: "is not a field of this request"})
	}
	return malformed("the body can't be read") // a type's own UnmarshalJSON said why, perhaps with the value
}

// maxFieldBytes bounds how much of a caller's own field name is repeated.
const maxFieldBytes = 64

func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number in range"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	}
	return "an object"
}
