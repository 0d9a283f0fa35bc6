package app

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakePurger has so many rows of each kind and records from when on they go.
type fakePurger struct {
	rows   map[string]int
	before map[string]time.Time
	fail   string
}

func (f *fakePurger) purge(kind string, before time.Time, limit int) (int, error) {
	if kind == f.fail {
		return 0, errors.New(kind + " are locked")
	}
	f.before[kind] = before
	n := min(f.rows[kind], limit)
	f.rows[kind] -= n
	return n, nil
}

func (f *fakePurger) PurgeNotifications(_ context.Context, before time.Time, limit int) (int, error) {
	return f.purge("notifications", before, limit)
}

func (f *fakePurger) PurgeContacts(_ context.Context, before time.Time, limit int) (int, error) {
	return f.purge("contacts", before, limit)
}

func (f *fakePurger) PurgeCodes(_ context.Context, before time.Time, limit int) (int, error) {
	return f.purge("codes", before, limit)
}

func (f *fakePurger) PurgeCodeLimits(_ context.Context, before time.Time, limit int) (int, error) {
	return f.purge("limits", before, limit)
}

func purgeOf(f *fakePurger) Purge {
	f.before = map[string]time.Time{}
	return Purge{
		Store: f, Notifications: 90 * 24 * time.Hour, Contacts: 30 * 24 * time.Hour, CodeWindow: time.Hour,
		Clock: func() time.Time { return time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC) },
	}
}

func TestPurgeGoesOnUntilNothingIsDue(t *testing.T) {
	t.Parallel()
	f := &fakePurger{rows: map[string]int{"notifications": 2*purgeBatch + 1, "contacts": purgeBatch, "codes": 3}}
	require.NoError(t, purgeOf(f).Purge(t.Context()))
	require.Equal(t, map[string]int{"notifications": 0, "contacts": 0, "codes": 0, "limits": 0}, f.rows)
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	require.Equal(t, map[string]time.Time{
		"notifications": now.AddDate(0, 0, -90), "contacts": now.AddDate(0, 0, -30), "codes": now.Add(-24 * time.Hour), "limits": now.Add(-time.Hour),
	}, f.before)
}

func TestPurgeOfOneTableDoesNotWaitForAnother(t *testing.T) {
	t.Parallel()
	f := &fakePurger{rows: map[string]int{"notifications": 5}, fail: "codes"}
	require.ErrorContains(t, purgeOf(f).Purge(t.Context()), "codes are locked")
	require.Zero(t, f.rows["notifications"])
}

func TestEventWaitsLongerTheOlderItIs(t *testing.T) {
	t.Parallel()
	require.Equal(t, 200*time.Millisecond, putOff(-time.Second), "a clock that is ahead")
	require.Equal(t, 200*time.Millisecond, putOff(0))
	require.Equal(t, 10*time.Second, putOff(40*time.Second))
	require.Equal(t, time.Minute, putOff(24*time.Hour))
}
