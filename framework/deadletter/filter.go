package deadletter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// minPrefix is the shortest prefix of a fingerprint that a Filter takes.
const minPrefix = 4

// Filter chooses letters. A letter must meet every field that is set; a field
// with several values is met by any of them. The zero Filter takes all.
type Filter struct {
	// IDs are message ids, event ids or positions.
	IDs []string
	// Types are event types, such as "order.placed".
	Types []string
	// Keys are ordering keys.
	Keys []string
	// CorrelationIDs are those of the event.
	CorrelationIDs []string
	// Fingerprints are fingerprints, or their first four characters and more.
	Fingerprints []string
	// Reasons are middleware's Reason constants.
	Reasons []string
	// Since and Until bound the time of the last failure: at or after Since,
	// before Until. Zero does not bound.
	Since, Until time.Time
}

// Validate reports every field that can't match anything.
func (f Filter) Validate() error {
	var errs []error
	for _, r := range f.Reasons {
		if !slices.Contains(reasons, r) {
			errs = append(errs, fmt.Errorf("deadletter: reason %q is none: use one of %s", r, strings.Join(reasons, ", ")))
		}
	}
	for _, p := range f.Fingerprints {
		if len(p) < minPrefix {
			errs = append(errs, fmt.Errorf("deadletter: fingerprint %q is too short: give at least %d characters", p, minPrefix))
		}
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		errs = append(errs, fmt.Errorf("deadletter: since %s is not before until %s", f.Since.Format(time.RFC3339), f.Until.Format(time.RFC3339)))
	}
	return errors.Join(errs...)
}

// Match tells whether the filter takes l.
func (f Filter) Match(l Letter) bool {
	any := func(wanted []string, has ...string) bool {
		return len(wanted) == 0 || slices.ContainsFunc(wanted, func(w string) bool { return slices.Contains(has, w) })
	}
	at := l.FailedAt()
	return any(f.IDs, l.ID, l.EventID, l.Position) &&
		any(f.Types, l.EventType) &&
		any(f.Keys, l.Key) &&
		any(f.CorrelationIDs, l.CorrelationID) &&
		any(f.Reasons, l.Reason) &&
		(len(f.Fingerprints) == 0 || slices.ContainsFunc(f.Fingerprints, func(p string) bool { return strings.HasPrefix(l.Fingerprint, p) })) &&
		(f.Since.IsZero() || !at.Before(f.Since)) &&
		(f.Until.IsZero() || at.Before(f.Until))
}

// Reasons returns the reasons that a Filter knows.
func Reasons() []string { return slices.Clone(reasons) }
