package app

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakePurger has so many rows of each kind and records from when on they go.
type fakePurger struct {
	rows   map[string]int
	before map[string]time.Time
	fail   string
	rounds chan struct{}
}

func (f *fakePurger) purge(kind string, before time.Time, limit int) (int, error) {
	if kind == "notifications" && f.rounds != nil {
		f.rounds <- struct{}{}
	}
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
		Store: f, Logger: slog.New(slog.DiscardHandler), Notifications: 90 * 24 * time.Hour, Contacts: 30 * 24 * time.Hour, CodeWindow: time.Hour,
		Clock: func() time.Time { return time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC) },
	}
}

func TestPurgeGoesOnUntilNothingIsDue(t *testing.T) {
	t.Parallel()
	f := &fakePurger{rows: map[string]int{"notifications": 2*purgeBatch + 1, "contacts": purgeBatch, "codes": 3}}
	n, err := purgeOf(f).Purge(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3*purgeBatch+4, n)
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	require.Equal(t, map[string]time.Time{
		"notifications": now.AddDate(0, 0, -90), "contacts": now.AddDate(0, 0, -30), "codes": now.Add(-24 * time.Hour), "limits": now.Add(-time.Hour),
	}, f.before)
}

func TestPurgeOfOneTableDoesNotWaitForAnother(t *testing.T) {
	t.Parallel()
	f := &fakePurger{rows: map[string]int{"notifications": 5}, fail: "codes"}
	n, err := purgeOf(f).Purge(t.Context())
	require.ErrorContains(t, err, "codes are locked")
	require.Equal(t, 5, n)
}

func TestPurgeComesBackAfterAFailedRoundAndEndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := &fakePurger{rows: map[string]int{}, fail: "notifications", rounds: make(chan struct{})}
	p := purgeOf(f)
	p.Every = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { p.Run(ctx); close(ended) }()
	<-f.rounds
	<-f.rounds
	cancel()
	for {
		select {
		case <-f.rounds: // a round that had begun
		case <-ended:
			return
		}
	}
}

func TestEventWaitsLongerTheOlderItIs(t *testing.T) {
	t.Parallel()
	require.Equal(t, 200*time.Millisecond, putOff(-time.Second), "a clock that is ahead")
	require.Equal(t, 200*time.Millisecond, putOff(0))
	require.Equal(t, 10*time.Second, putOff(40*time.Second))
	require.Equal(t, time.Minute, putOff(24*time.Hour))
}
