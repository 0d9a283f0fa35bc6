package app

import (
	"context"
	"errors"
	"time"
)

// Purge deletes what is no longer needed, in small batches: personal data is
// not kept for ever.
type Purge struct {
	// Store is required.
	Store Purger
	// Notifications and Contacts are how long each is kept. Those that wait for
	// an attempt or for a person are kept longer.
	Notifications, Contacts time.Duration
	// CodeWindow is the rate limit's window.
	CodeWindow time.Duration
	Clock      Clock
}

const (
	purgeBatch = 500
	// codeGrace keeps an expired code for a while, for whoever looks into a
	// complaint.
	codeGrace = 24 * time.Hour
)

// Purge deletes all that is due by now. A kind that can't be deleted keeps none
// of the others.
func (p Purge) Purge(ctx context.Context) error {
	now := p.Clock.now()
	var errs []error
	for _, step := range []struct {
		purge  func(context.Context, time.Time, int) (int, error)
		before time.Time
	}{
		{p.Store.PurgeCodes, now.Add(-codeGrace)},
		{p.Store.PurgeCodeLimits, now.Add(-p.CodeWindow)},
		{p.Store.PurgeContacts, now.Add(-p.Contacts)},
		{p.Store.PurgeNotifications, now.Add(-p.Notifications)},
	} {
		for {
			n, err := step.purge(ctx, step.before, purgeBatch)
			errs = append(errs, err)
			if err != nil || n < purgeBatch {
				break
			}
		}
	}
	return errors.Join(errs...)
}
