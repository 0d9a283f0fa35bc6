package config

import (
	"errors"
	"fmt"
)

// Faults gathers what is wrong with settings, so that all of it is told at once.
// The zero value is ready.
type Faults struct{ errs []error }

// Add notes that the key's value can't work and what to do about it. Give no
// secret as the value.
func (f *Faults) Add(key string, value any, remedy string) {
	f.errs = append(f.errs, fmt.Errorf("config: %s is %v: %s (%s)", key, value, remedy, EnvName(key)))
}

// Join notes another error; nil is none.
func (f *Faults) Join(err error) { f.errs = append(f.errs, err) }

// Err is nil, or all faults joined.
func (f *Faults) Err() error { return errors.Join(f.errs...) }
