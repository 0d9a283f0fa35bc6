package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"reflect"
	"sort"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"
)

// Variables that steer loading itself.
const (
	// EnvEnv names the profile.
	EnvEnv = "HEADRACE_ENV"
	// EnvConfigDir names a folder of profiles that replaces the embedded one.
	EnvConfigDir = "HEADRACE_CONFIG_DIR"

	prefix = "HEADRACE_"
)

// Options says where a profile is read from.
type Options struct {
	// FS holds the profiles as <env>.yaml, at its root or under config/: a
	// service embeds its config folder.
	FS fs.FS
	// Dir is a folder that replaces FS. Default: HEADRACE_CONFIG_DIR.
	Dir string
	// Env names the profile. Default: HEADRACE_ENV, else "local".
	Env string
	// Environ is the environment as os.Environ gives it. Nil: os.Environ().
	Environ []string
	// Brokers are the kinds of broker that the program brings, besides Headrace's
	// own: broker.kind may name them.
	Brokers []string
}

// Load fills target, a pointer to a struct that is or embeds Profile, from its
// present values, the defaults of Profile, the profile's file and the
// environment, the later over the earlier. What the file or the environment
// sets counts even when it is false, 0 or empty; lists are comma separated in
// the environment.
//
// A target with a method Validate() error is validated at the end, and its
// Profile always is. Every fault found is in the error, joined.
func Load(target any, opts Options) error {
	src, err := gather(target, opts)
	if err != nil {
		return err
	}
	if src.faults != nil {
		return src.faults
	}
	if err := src.apply(target); err != nil {
		return err
	}
	return src.schema.validate(target)
}

// sources are the values of a profile by where they come from, each by its key's
// path.
type sources struct {
	schema            *schema
	env               string
	file              string // "" where there is none
	fromFile, fromEnv map[string]any
	// faults are all that could not be read.
	faults error
}

// gather reads the file and the environment, and fills target with the defaults.
// What can't be read is in the sources' faults; the error is of the target.
func gather(target any, opts Options) (*sources, error) {
	sch, err := schemaOf(target)
	if err != nil {
		return nil, err
	}
	if opts.Environ == nil {
		opts.Environ = os.Environ()
	}
	environ := lookup(opts.Environ)
	def(&opts.Env, environ[EnvEnv])
	def(&opts.Env, "local")
	def(&opts.Dir, environ[EnvConfigDir])

	sch.setDefaults(target, opts)
	src := &sources{schema: sch, env: opts.Env}
	var fileErr, envErr error
	src.fromFile, src.file, fileErr = readFile(sch, opts)
	src.fromEnv, envErr = readEnv(sch, environ)
	src.faults = errors.Join(fileErr, envErr)
	return src, nil
}

// apply writes the values to target.
func (s *sources) apply(target any) error {
	k := koanf.New(".")
	for _, values := range []map[string]any{s.fromFile, s.fromEnv} {
		if err := k.Load(confmap.Provider(values, "."), nil); err != nil {
			return fmt.Errorf("config: merge profile %q: %w", s.env, err)
		}
	}
	err := k.UnmarshalWithConf("", target, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result:      target,
		TagName:     "koanf",
		ErrorUnused: true,
		ZeroFields:  true,
		Squash:      true,
		MatchName:   func(key, field string) bool { return key == field || key == snake(field) },
	}})
	if err != nil {
		return fmt.Errorf("config: read profile %q: %w", s.env, err)
	}
	return nil
}

// Key is one configurable value.
type Key struct {
	// Path is the key as the YAML nests it, dot separated: "broker.url".
	Path string
	// Env is its environment variable: "HEADRACE_BROKER_URL".
	Env string
	// Kind is how a value is written: "string", "secret", "bool", "integer",
	// "number", "duration", "list" or "map".
	Kind string
}

// Keys lists every key of target, a struct or a pointer to one, sorted by path.
func Keys(target any) ([]Key, error) {
	sch, err := schemaOf(target)
	if err != nil {
		return nil, err
	}
	keys := make([]Key, 0, len(sch.leaves))
	for _, l := range sch.leaves {
		keys = append(keys, Key{Path: l.path, Env: EnvName(l.path), Kind: l.kind.name})
	}
	sort.Slice(keys, func(i, j int) bool { return keys[i].Path < keys[j].Path })
	return keys, nil
}

// EnvName returns the environment variable of a key's path.
func EnvName(path string) string {
	return prefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(path))
}

// steers tells whether a HEADRACE_ variable is one that is no key of a profile.
func steers(name string) bool {
	return name == EnvEnv || name == EnvConfigDir ||
		strings.HasPrefix(name, prefix+"TEST_") || strings.HasPrefix(name, prefix+"FAILPOINT")
}

func lookup(environ []string) map[string]string {
	vars := map[string]string{}
	for _, kv := range environ {
		name, value, ok := strings.Cut(kv, "=")
		if ok && strings.HasPrefix(name, prefix) {
			vars[name] = value
		}
	}
	return vars
}

func readEnv(sch *schema, environ map[string]string) (map[string]any, error) {
	names := make([]string, 0, len(environ))
	for name := range environ {
		if !steers(name) {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	var errs []error
	values := map[string]any{}
	for _, name := range names {
		l, ok := sch.byEnv[name]
		if !ok {
			errs = append(errs, fmt.Errorf("config: environment variable %s is no key of this service%s", name, didYouMean(name, sch.envNames())))
			continue
		}
		v, err := l.kind.fromString(environ[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("config: %s is %s (environment variable %s): %w", l.path, l.shown(environ[name]), name, err))
			continue
		}
		values[l.path] = v
	}
	return values, errors.Join(errs...)
}

func readFile(sch *schema, opts Options) (values map[string]any, where string, err error) {
	raw, where, err := profileBytes(opts)
	if err != nil {
		return nil, "", err
	}
	nested, err := yaml.Parser().Unmarshal(raw)
	if err != nil {
		return nil, where, fmt.Errorf("config: %s is no valid YAML: %w", where, err)
	}
	values = map[string]any{}
	err = sch.collect(nested, "", where, values)
	return values, where, err
}

// profileBytes returns the profile's file and its name for messages.
func profileBytes(opts Options) (raw []byte, where string, err error) {
	fsys, place := opts.FS, "the embedded profiles"
	if opts.Dir != "" {
		fsys, place = os.DirFS(opts.Dir), opts.Dir
	}
	if fsys == nil {
		return nil, "", fmt.Errorf("config: no profiles: set Options.FS, Options.Dir or %s", EnvConfigDir)
	}
	var known []string
	for _, dir := range []string{".", "config"} {
		found, _ := fs.Glob(fsys, path.Join(dir, "*.yaml"))
		for _, name := range found {
			env := strings.TrimSuffix(path.Base(name), ".yaml")
			if env == opts.Env {
				raw, err := fs.ReadFile(fsys, name)
				if err != nil {
					return nil, "", fmt.Errorf("config: read profile %q from %s: %w", opts.Env, place, err)
				}
				return raw, name, nil
			}
			known = append(known, env)
		}
	}
	sort.Strings(known)
	return nil, "", &UnknownProfileError{Env: opts.Env, Place: place, Known: known}
}

// UnknownProfileError is the fault of an environment that has no profile.
type UnknownProfileError struct {
	// Env is the environment that was asked for.
	Env string
	// Place is where its profile was looked for: a folder, or "the embedded profiles".
	Place string
	// Known are the profiles that are there, sorted.
	Known []string
}

// Error names the file that is missing and those that are there.
func (e *UnknownProfileError) Error() string {
	return fmt.Sprintf("config: environment %q (%s): no %s.yaml in %s, there are: %s%s",
		e.Env, EnvEnv, e.Env, e.Place, quoted(e.Known), didYouMean(e.Env, e.Known))
}

var profileType = reflect.TypeFor[Profile]()
