package config

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// kind is one way to write a value: from a YAML node and from an environment
// variable's text. Both give the Go type of the field, or an error that says
// what was wanted.
type kind struct {
	name       string
	secret     bool
	fromString func(string) (any, error)
	fromYAML   func(any) (any, error)
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	secretType   = reflect.TypeFor[Secret]()
)

// kindOf returns the kind of a leaf's type; false for a section.
func kindOf(t reflect.Type) (kind, bool) {
	switch t {
	case durationType:
		return durationKind(), true
	case secretType:
		k := stringKind(t)
		k.name, k.secret = "secret", true
		return k, true
	}
	switch t.Kind() {
	case reflect.String:
		return stringKind(t), true
	case reflect.Bool:
		return boolKind(), true
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return intKind(t), true
	case reflect.Float32, reflect.Float64:
		return floatKind(), true
	case reflect.Slice:
		elem, ok := kindOf(t.Elem())
		if !ok || elem.name == "list" || elem.name == "map" {
			return kind{}, false
		}
		return listKind(t, elem), true
	case reflect.Map:
		elem, ok := kindOf(t.Elem())
		if !ok || t.Key().Kind() != reflect.String || elem.name == "list" || elem.name == "map" {
			return kind{}, false
		}
		return mapKind(t, elem), true
	}
	return kind{}, false
}

func stringKind(t reflect.Type) kind {
	of := func(s string) any { return reflect.ValueOf(s).Convert(t).Interface() }
	return kind{
		name:       "string",
		fromString: func(s string) (any, error) { return of(s), nil },
		fromYAML: func(v any) (any, error) {
			switch v := v.(type) {
			case nil:
				return of(""), nil
			case string:
				return of(v), nil
			default:
				return nil, fmt.Errorf("it must be a text: put it in quotes")
			}
		},
	}
}

func boolKind() kind {
	wrong := fmt.Errorf("it must be true or false")
	return kind{
		name: "bool",
		fromString: func(s string) (any, error) {
			switch s {
			case "true":
				return true, nil
			case "false":
				return false, nil
			}
			return nil, wrong
		},
		fromYAML: func(v any) (any, error) {
			if b, ok := v.(bool); ok {
				return b, nil
			}
			return nil, wrong
		},
	}
}

func intKind(t reflect.Type) kind {
	parse := func(s string) (any, error) {
		out := reflect.New(t).Elem()
		if t.Kind() >= reflect.Uint {
			n, err := strconv.ParseUint(s, 10, t.Bits())
			if err != nil {
				return nil, fmt.Errorf("it must be a whole number from 0 to %d", uint64(math.MaxUint64)>>(64-t.Bits()))
			}
			out.SetUint(n)
			return out.Interface(), nil
		}
		n, err := strconv.ParseInt(s, 10, t.Bits())
		if err != nil {
			return nil, fmt.Errorf("it must be a whole number")
		}
		out.SetInt(n)
		return out.Interface(), nil
	}
	return kind{name: "integer", fromString: parse, fromYAML: func(v any) (any, error) {
		switch v.(type) {
		case int, int64, uint64:
			return parse(fmt.Sprint(v))
		}
		return nil, fmt.Errorf("it must be a whole number")
	}}
}

func floatKind() kind {
	wrong := fmt.Errorf("it must be a number")
	return kind{
		name: "number",
		fromString: func(s string) (any, error) {
			f, err := strconv.ParseFloat(s, 64)
			if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
				return nil, wrong
			}
			return f, nil
		},
		fromYAML: func(v any) (any, error) {
			switch v := v.(type) {
			case float64:
				if !math.IsNaN(v) && !math.IsInf(v, 0) {
					return v, nil
				}
			case int:
				return float64(v), nil
			}
			return nil, wrong
		},
	}
}

func durationKind() kind {
	parse := func(s string) (any, error) {
		d, err := time.ParseDuration(s)
		if err == nil {
			return d, nil
		}
		if _, numErr := strconv.ParseFloat(s, 64); numErr == nil {
			return nil, fmt.Errorf("a duration needs a unit: write %ss or %sms", s, s)
		}
		return nil, fmt.Errorf("it must be a duration such as 250ms, 30s or 1h30m")
	}
	return kind{name: "duration", fromString: parse, fromYAML: func(v any) (any, error) {
		if v == nil {
			return parse("")
		}
		return parse(fmt.Sprint(v))
	}}
}

func listKind(t reflect.Type, elem kind) kind {
	gather := func(n int, at func(int) (any, error)) (any, error) {
		out := reflect.MakeSlice(t, 0, n)
		for i := range n {
			v, err := at(i)
			if err != nil {
				return nil, fmt.Errorf("entry %d: %w", i+1, err)
			}
			out = reflect.Append(out, reflect.ValueOf(v).Convert(t.Elem()))
		}
		return out.Interface(), nil
	}
	return kind{
		name:   "list",
		secret: elem.secret,
		fromString: func(s string) (any, error) {
			parts := split(s)
			return gather(len(parts), func(i int) (any, error) { return elem.fromString(parts[i]) })
		},
		fromYAML: func(v any) (any, error) {
			if v == nil {
				return reflect.MakeSlice(t, 0, 0).Interface(), nil
			}
			list, ok := v.([]any)
			if !ok {
				return nil, fmt.Errorf("it must be a list: write [a, b]")
			}
			return gather(len(list), func(i int) (any, error) { return elem.fromYAML(list[i]) })
		},
	}
}

func mapKind(t reflect.Type, elem kind) kind {
	set := func(out reflect.Value, key string, v any, err error) error {
		if err != nil {
			return fmt.Errorf("entry %s: %w", key, err)
		}
		out.SetMapIndex(reflect.ValueOf(key).Convert(t.Key()), reflect.ValueOf(v).Convert(t.Elem()))
		return nil
	}
	return kind{
		name:   "map",
		secret: elem.secret,
		fromString: func(s string) (any, error) {
			out := reflect.MakeMap(t)
			for _, part := range split(s) {
				key, value, ok := strings.Cut(part, "=")
				if !ok || key == "" {
					return nil, fmt.Errorf("it must be name=value pairs, comma separated")
				}
				v, err := elem.fromString(strings.TrimSpace(value))
				if err := set(out, strings.TrimSpace(key), v, err); err != nil {
					return nil, err
				}
			}
			return out.Interface(), nil
		},
		fromYAML: func(v any) (any, error) {
			out := reflect.MakeMap(t)
			if v == nil {
				return out.Interface(), nil
			}
			entries, ok := v.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("it must be a map: write name: value lines")
			}
			for key, value := range entries {
				v, err := elem.fromYAML(value)
				if err := set(out, key, v, err); err != nil {
					return nil, err
				}
			}
			return out.Interface(), nil
		},
	}
}

// split cuts a comma separated list; nothing but blanks is no entry.
func split(s string) []string {
	if strings.TrimSpace(s) == "" {
		return nil
	}
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}
