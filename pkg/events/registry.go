package events

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// Descriptor describes an event type without its Go type parameter. Only
// Type.Descriptor makes a useful one.
type Descriptor struct {
	Name, Version, Topic string

	words  []string
	goType reflect.Type
	check  func(Envelope) error
}

// Check tells whether the envelope decodes as this type, with Type.Decode's
// error if not.
func (d Descriptor) Check(e Envelope) error {
	if d.check == nil {
		return fmt.Errorf("events: descriptor of %q has no Go type: take it from Type.Descriptor", d.Name)
	}
	return d.check(e)
}

// GoType returns the Go type of the data, "" for a descriptor made by hand.
func (d Descriptor) GoType() string {
	if d.goType == nil {
		return ""
	}
	return d.goType.String()
}

// Validate reports everything that is wrong with the name, version and topic.
func (d Descriptor) Validate() error {
	var errs []error
	if err := checkTypeName(d.Name, d.words); err != nil {
		errs = append(errs, err)
	}
	if _, _, ok := parseVersion(d.Version); !ok {
		errs = append(errs, fmt.Errorf("events: type %q: version %q is not MAJOR.MINOR: write it as \"1.0\"", d.Name, d.Version))
	}
	if err := checkName("topic", d.Topic); err != nil || strings.ContainsAny(d.Topic, " \t") {
		errs = append(errs, fmt.Errorf("events: type %q: topic %q is unusable: give a name without blanks, or leave out events.Topic", d.Name, clip(d.Topic)))
	}
	if d.goType == nil {
		errs = append(errs, fmt.Errorf("events: type %q: no Go type: take the descriptor from Type.Descriptor", d.Name))
	}
	return errors.Join(errs...)
}

// Registry is the set of event types that a program knows. Make one with
// NewRegistry; it is safe for concurrent use.
type Registry struct {
	mu    sync.RWMutex
	types map[string][]Descriptor // by name, in ascending order of version
}

// NewRegistry makes an empty registry.
func NewRegistry() *Registry { return &Registry{types: map[string][]Descriptor{}} }

// Register adds types. It takes all of them or, with an error that lists every
// fault, none. A type may be registered again as it is; the same name and
// version with another Go type or topic is a conflict.
func (r *Registry) Register(ds ...Descriptor) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	added := make(map[string][]Descriptor, len(ds))
	for _, d := range ds {
		if err := d.Validate(); err != nil {
			errs = append(errs, err)
			continue
		}
		known, seen := added[d.Name]
		if !seen {
			known = slices.Clone(r.types[d.Name])
		}
		at := slices.IndexFunc(known, func(k Descriptor) bool { return k.Version == d.Version })
		if at >= 0 {
			if err := conflict(known[at], d); err != nil {
				errs = append(errs, err)
			}
			continue
		}
		known = append(known, d)
		slices.SortFunc(known, compareVersions)
		added[d.Name] = known
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for name, known := range added {
		r.types[name] = known
	}
	return nil
}

func conflict(a, b Descriptor) error {
	switch {
	case a.goType != b.goType:
		return fmt.Errorf("events: type %q %s is already registered with data %s, now with %s: give one of them another name or version",
			a.Name, a.Version, a.goType, b.goType)
	case a.Topic != b.Topic:
		return fmt.Errorf("events: type %q %s is already registered on topic %q, now on %q: give both the same",
			a.Name, a.Version, a.Topic, b.Topic)
	}
	return nil
}

func compareVersions(a, b Descriptor) int {
	aMajor, aMinor, _ := parseVersion(a.Version)
	bMajor, bMinor, _ := parseVersion(b.Version)
	return cmp.Or(cmp.Compare(aMajor, bMajor), cmp.Compare(aMinor, bMinor))
}

// Lookup returns the type that understands events of that name and version: the
// version itself where it is registered, else the highest of the same major
// version.
func (r *Registry) Lookup(name, version string) (Descriptor, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	known := r.types[name]
	for i := range known {
		if known[i].Version == version {
			return known[i], true
		}
	}
	for _, d := range slices.Backward(known) {
		if compatible(d.Version, version) {
			return d, true
		}
	}
	return Descriptor{}, false
}

// Known tells whether any version of that name is registered.
func (r *Registry) Known(name string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, ok := r.types[name]
	return ok
}

// Types returns all types, by name and version.
func (r *Registry) Types() []Descriptor {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var all []Descriptor
	for _, known := range r.types {
		all = append(all, known...)
	}
	slices.SortFunc(all, func(a, b Descriptor) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), compareVersions(a, b))
	})
	return all
}
