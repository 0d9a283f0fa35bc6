package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/headrace-go/headrace/framework/deadletter"
)

// filterFlags choose dead letters.
type filterFlags struct {
	f            deadletter.Filter
	since, until string
}

func (f *filterFlags) bind(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.f.IDs, "id", nil, "only these: message ids, event ids or positions")
	flags.StringSliceVar(&f.f.Types, "type", nil, "only these event types, such as order.placed")
	flags.StringSliceVar(&f.f.Keys, "key", nil, "only these ordering keys")
	flags.StringSliceVar(&f.f.CorrelationIDs, "correlation", nil, "only these correlation ids")
	flags.StringSliceVar(&f.f.Fingerprints, "fingerprint", nil, "only these fingerprints, or the beginnings of them")
	flags.StringSliceVar(&f.f.Reasons, "reason", nil, "only these reasons: "+strings.Join(deadletter.Reasons(), ", "))
	flags.StringVar(&f.since, "since", "", "only what failed at or after this time: RFC 3339, or an age such as 2h")
	flags.StringVar(&f.until, "until", "", "only what failed before this time: RFC 3339, or an age")
}

func (f *filterFlags) filter(now time.Time) (deadletter.Filter, error) {
	var err error
	if f.f.Since, err = when("since", f.since, now); err != nil {
		return f.f, err
	}
	if f.f.Until, err = when("until", f.until, now); err != nil {
		return f.f, err
	}
	if err := f.f.Validate(); err != nil {
		return f.f, usageError{err}
	}
	return f.f, nil
}

func when(flag, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(s); err == nil && age >= 0 {
		return now.Add(-age), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, usageError{fmt.Errorf("--%s is %q: write a time such as 2026-01-31T08:00:00Z, or an age such as 2h", flag, s)}
	}
	return t, nil
}
