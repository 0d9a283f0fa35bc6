package config

import (
	"errors"
	"reflect"
	"sort"
	"time"
)

// Source says where a value comes from.
type Source string

// The sources of a value, the later over the earlier.
const (
	FromDefault     Source = "default"
	FromFile        Source = "file"
	FromEnvironment Source = "environment"
)

// Setting is one key with the value that it has.
type Setting struct {
	// Key is the path, "broker.url"; Env its variable, "HEADRACE_BROKER_URL".
	Key string `json:"key"`
	Env string `json:"env"`
	// Type is how a value is written, as in Key.Kind.
	Type string `json:"type"`
	// Value is the effective value; a secret is redacted, a duration its text.
	Value any `json:"value"`
	// Source is where the value comes from.
	Source Source `json:"source"`
}

// Explanation is what Explain found.
type Explanation struct {
	// Env is the profile's name, File the file that was read: "config/local.yaml",
	// or "" where the profile has none.
	Env, File string
	// Settings are all keys, sorted.
	Settings []Setting
	// Faults is the error with which Load would refuse this profile. The settings
	// are then what could be read of it. Of an environment without a profile it is
	// an *UnknownProfileError and nothing else: what more is wrong follows from it.
	Faults error
}

// Explain tells every key of target, its effective value and where that comes
// from, also for a profile that Load refuses. It fills target as Load does. The
// error is of target's type alone.
func Explain(target any, opts Options) (*Explanation, error) {
	src, err := gather(target, opts)
	if err != nil {
		return nil, err
	}
	x := &Explanation{Env: src.env, File: src.file, Faults: src.faults}
	if err := src.apply(target); err != nil {
		x.Faults = errors.Join(x.Faults, err)
	}
	x.Faults = errors.Join(x.Faults, src.schema.validate(target))
	var unknown *UnknownProfileError
	if errors.As(src.faults, &unknown) {
		x.Faults = unknown
	}
	v := reflect.ValueOf(target)
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	for _, l := range src.schema.leaves {
		s := Setting{Key: l.path, Env: EnvName(l.path), Type: l.kind.name, Value: plain(v.FieldByIndex(l.at)), Source: FromDefault}
		if _, ok := src.fromFile[l.path]; ok {
			s.Source = FromFile
		}
		if _, ok := src.fromEnv[l.path]; ok {
			s.Source = FromEnvironment
		}
		x.Settings = append(x.Settings, s)
	}
	sort.Slice(x.Settings, func(i, j int) bool { return x.Settings[i].Key < x.Settings[j].Key })
	return x, nil
}

// plain is a value as it may be shown.
func plain(v reflect.Value) any {
	switch value := v.Interface().(type) {
	case time.Duration:
		return value.String()
	case Secret:
		return value.String()
	case []time.Duration:
		texts := make([]string, len(value))
		for i, d := range value {
			texts[i] = d.String()
		}
		return texts
	default:
		return value
	}
}
