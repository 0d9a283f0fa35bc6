package config

import (
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strings"
	"unicode"
)

// schema is what a target's type says about its keys.
type schema struct {
	leaves   []leaf
	byPath   map[string]leaf
	byEnv    map[string]leaf
	sections map[string]bool
	profiles [][]int
}

type leaf struct {
	path string
	kind kind
	at   []int // of the field in the target
}

// shown is a value as an error may print it.
func (l leaf) shown(value any) string {
	if l.kind.secret {
		return Redacted
	}
	return fmt.Sprintf("%#v", value)
}

func schemaOf(target any) (*schema, error) {
	t := reflect.TypeOf(target)
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("config: target is %T: pass a pointer to a struct that embeds config.Profile", target)
	}
	s := &schema{byPath: map[string]leaf{}, byEnv: map[string]leaf{}, sections: map[string]bool{}}
	if t == profileType {
		s.profiles = append(s.profiles, nil)
	}
	if err := s.walk(t, "", nil); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *schema) walk(t reflect.Type, prefix string, index []int) error {
	for i := range t.NumField() {
		f := t.Field(i)
		at := append(append([]int(nil), index...), i)
		name, squash, skip := fieldName(f)
		if skip {
			continue
		}
		if squash {
			if f.Type == profileType {
				s.profiles = append(s.profiles, at)
			}
			if err := s.walk(f.Type, prefix, at); err != nil {
				return err
			}
			continue
		}
		path := name
		if prefix != "" {
			path = prefix + "." + name
		}
		if k, ok := kindOf(f.Type); ok {
			if err := s.add(leaf{path: path, kind: k, at: at}); err != nil {
				return err
			}
			continue
		}
		if f.Type.Kind() != reflect.Struct {
			return fmt.Errorf("config: key %s has type %s, which no environment variable can hold: use a string, number, bool, duration, list or map of strings, config.Secret or a section", path, f.Type)
		}
		s.sections[path] = true
		if err := s.walk(f.Type, path, at); err != nil {
			return err
		}
	}
	return nil
}

func (s *schema) add(l leaf) error {
	env := EnvName(l.path)
	if other, ok := s.byEnv[env]; ok {
		return fmt.Errorf("config: keys %s and %s share the environment variable %s: rename one", other.path, l.path, env)
	}
	if steers(env) {
		return fmt.Errorf("config: key %s would have the environment variable %s, which is reserved: rename it", l.path, env)
	}
	s.leaves = append(s.leaves, l)
	s.byPath[l.path], s.byEnv[env] = l, l
	return nil
}

func fieldName(f reflect.StructField) (name string, squash, skip bool) {
	tag, _, _ := strings.Cut(f.Tag.Get("koanf"), ",")
	switch {
	case tag == "-" || !f.IsExported():
		return "", false, true
	case f.Anonymous && f.Type.Kind() == reflect.Struct && tag == "":
		return "", true, false
	case strings.Contains(f.Tag.Get("koanf"), ",squash"):
		return "", true, false
	case tag != "":
		return tag, false, false
	default:
		return snake(f.Name), false, false
	}
}

// snake turns MaxOpenConns into max_open_conns and SMTPHost into smtp_host.
func snake(name string) string {
	runes := []rune(name)
	var b strings.Builder
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 {
			prevLower := !unicode.IsUpper(runes[i-1])
			nextLower := i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if prevLower || nextLower {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// collect checks a parsed file against the schema and gathers its leaves by
// path.
func (s *schema) collect(node map[string]any, prefix, where string, into map[string]any) error {
	var errs []error
	names := make([]string, 0, len(node))
	for name := range node {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		value, path := node[name], name
		if prefix != "" {
			path = prefix + "." + name
		}
		if l, ok := s.byPath[path]; ok {
			v, err := l.kind.fromYAML(value)
			if err != nil {
				errs = append(errs, fmt.Errorf("config: %s is %s (%s): %w", path, l.shown(value), where, err))
				continue
			}
			into[path] = v
			continue
		}
		if !s.sections[path] {
			errs = append(errs, fmt.Errorf("config: %s (%s) is no key of this service%s", path, where, didYouMean(path, s.paths())))
			continue
		}
		if value == nil {
			continue
		}
		section, ok := value.(map[string]any)
		if !ok {
			errs = append(errs, fmt.Errorf("config: %s (%s) is a section: nest its keys below it", path, where))
			continue
		}
		errs = append(errs, s.collect(section, path, where, into))
	}
	return errors.Join(errs...)
}

func (s *schema) paths() []string {
	all := make([]string, 0, len(s.byPath)+len(s.sections))
	for p := range s.byPath {
		all = append(all, p)
	}
	for p := range s.sections {
		all = append(all, p)
	}
	sort.Strings(all)
	return all
}

func (s *schema) envNames() []string {
	all := make([]string, 0, len(s.byEnv)+2)
	for name := range s.byEnv {
		all = append(all, name)
	}
	all = append(all, EnvEnv, EnvConfigDir)
	sort.Strings(all)
	return all
}

// eachProfile calls fn with the target's Profile.
func (s *schema) eachProfile(target any, fn func(*Profile)) {
	v := reflect.ValueOf(target)
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	for _, at := range s.profiles {
		fv := v
		if len(at) > 0 {
			fv = v.FieldByIndex(at)
		}
		if fv.CanAddr() {
			fn(fv.Addr().Interface().(*Profile))
		}
	}
}

func (s *schema) setDefaults(target any, opts Options) {
	s.eachProfile(target, func(p *Profile) {
		if reflect.ValueOf(p).Elem().IsZero() {
			*p = Default()
		}
		*p = p.WithDefaults()
		p.Env, p.Broker.Others = opts.Env, opts.Brokers
	})
}

func (s *schema) validate(target any) error {
	var errs []error
	s.eachProfile(target, func(p *Profile) { errs = append(errs, p.Validate()) })
	profile := errors.Join(errs...)
	v, ok := target.(interface{ Validate() error })
	if !ok {
		return profile
	}
	own := v.Validate()
	switch {
	case own == nil:
		return profile
	case profile == nil || strings.Contains(own.Error(), profile.Error()):
		// A target without a Validate of its own inherits the Profile's, and one
		// with its own may well call it: the same faults are told once.
		return own
	default:
		return errors.Join(profile, own)
	}
}
