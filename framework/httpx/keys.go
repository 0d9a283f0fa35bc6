package httpx

import (
	"encoding/json"
	"reflect"
	"strings"
)

// checkKeys refuses what encoding/json lets pass in the keys of a body that it
// has decoded into v: a key that stands twice, of which it takes the last, and one
// in another case than the field's name. The decoder has bounded the depth.
func checkKeys(raw string, v any) *FieldError {
	return keysOf(json.NewDecoder(strings.NewReader(raw)), reflect.TypeOf(v), "")
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// keysOf reads one value, of the type t where that is known.
func keysOf(dec *json.Decoder, t reflect.Type, path string) *FieldError {
	token, err := dec.Token()
	open, nested := token.(json.Delim)
	if err != nil || !nested {
		return nil
	}
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var fields map[string]reflect.Type
	var element reflect.Type
	switch {
	case t == nil || reflect.PointerTo(t).Implements(unmarshaler): // its keys are its own affair
	case t.Kind() == reflect.Struct:
		fields = map[string]reflect.Type{}
		fieldsOf(t, fields)
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Array || t.Kind() == reflect.Map:
		element = t.Elem()
	}
	seen := map[string]bool{}
	for dec.More() {
		if open == '[' {
			if fault := keysOf(dec, element, path); fault != nil {
				return fault
			}
			continue
		}
		token, err := dec.Token()
		if err != nil {
			return nil
		}
		key, _ := token.(string)
		name := strings.TrimPrefix(path+"."+key, ".")
		name = name[:min(len(name), maxFieldBytes)]
		if seen[key] {
			return &FieldError{Field: name, Code: "duplicate", Message: "stands more than once"}
		}
		seen[key] = true
		of := element
		if fields != nil {
			known := false
			if of, known = fields[key]; !known {
				return &FieldError{Field: name, Code: "unknown", Message: "is not a field of this request: mind upper and lower case"}
			}
		}
		if fault := keysOf(dec, of, name); fault != nil {
			return fault
		}
	}
	_, _ = dec.Token() // the end of this value
	return nil
}

// fieldsOf adds the fields of a struct by their names in JSON.
func fieldsOf(t reflect.Type, fields map[string]reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		of := f.Type
		for of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		switch {
		case f.Anonymous && name == "" && of.Kind() == reflect.Struct:
			fieldsOf(of, fields)
		case f.IsExported() && name == "":
			fields[f.Name] = f.Type
		case f.IsExported() && name != "-":
			fields[name] = f.Type
		}
	}
}
