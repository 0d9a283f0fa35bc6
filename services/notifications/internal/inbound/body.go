package inbound

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
)

// readBody decodes the request's JSON object into target. An empty body is fine
// unless it is required. When it returns false it has answered the request.
func readBody(w http.ResponseWriter, r *http.Request, target any, required bool) bool {
	raw, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		writeProblem(w, problem{Status: http.StatusRequestEntityTooLarge, Code: codeTooLarge, Detail: "the body is too large"})
		return false
	case err != nil:
		writeProblem(w, problem{Status: http.StatusBadRequest, Code: codeMalformed, Detail: "the body could not be read"})
		return false
	case len(raw) == 0 && !required:
		return true
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		writeProblem(w, problem{
			Status: http.StatusUnsupportedMediaType, Code: codeUnsupportedMedia, Detail: "the body must be application/json",
		})
		return false
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	err = dec.Decode(target)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the JSON object")
		}
	}
	if err == nil {
		return true
	}
	writeProblem(w, decodeProblem(err))
	return false
}

// decodeProblem names the field that could not be decoded. It never repeats a
// value from the body.
func decodeProblem(err error) problem {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) && wrongType.Field != "" {
		return problem{
			Status: http.StatusUnprocessableEntity, Code: codeInvalid, Detail: "the body can't be used",
			Errors: []fieldError{{Field: wrongType.Field, Code: "wrong_type", Message: "must be " + jsonKind(wrongType)}},
		}
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return problem{
			Status: http.StatusUnprocessableEntity, Code: codeInvalid, Detail: "the body can't be used",
			Errors: []fieldError{{Field: clip(strings.Trim(field, `"`), 64), Code: "unknown", Message: "is not a field of this request"}},
		}
	}
	return problem{Status: http.StatusBadRequest, Code: codeMalformed, Detail: "the body must be one JSON object"}
}

func jsonKind(e *json.UnmarshalTypeError) string {
	switch e.Type.Kind().String() {
	case "int", "int64":
		return "a whole number in range"
	case "string":
		return "a string"
	case "slice":
		return "a list"
	default:
		return "an object"
	}
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
