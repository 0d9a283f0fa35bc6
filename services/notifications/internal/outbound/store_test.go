package outbound

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/notifications"
	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 123_456_000, time.UTC)

func inTx(t *testing.T, db frameworktest.DB, fn func(ctx context.Context, tx *sql.Tx) error) error {
	t.Helper()
	return sqltx.Run(t.Context(), db.DB, sqltx.Options{Dialect: db.Dialect}, fn)
}

func notification(n int) domain.Notification {
	at := t0.Add(time.Duration(n) * time.Second)
	return domain.Notification{
		ID: fmt.Sprintf("n-%03d", n), EventID: fmt.Sprintf("e-%03d", n), EventType: "order.confirmed", Channel: domain.Email,
		Template: "order_confirmed", OrderID: "o-1", Recipient: "jané@example.com", Language: "de",
		Facts: domain.Facts{OrderID: "o-1", Amount: 9007199254740993, Currency: "EUR", Reason: "größer"},
		State: domain.Sending, Attempts: 1, CreatedAt: at, UpdatedAt: at,
	}
}

func add(t *testing.T, db frameworktest.DB, s *Store, list ...domain.Notification) {
	t.Helper()
	require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
		for _, n := range list {
			added, err := s.Add(ctx, tx, n)
			if err == nil && !added {
				err = errors.New("was there already")
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

func TestNotificationsRoundTrip(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, notifications.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewStore(db.DB, db.Dialect)
		n := notification(1)
		add(t, db, s, n)
		got, err := s.Get(t.Context(), n.ID)
		require.NoError(t, err)
		require.Equal(t, n, got)
		got, err = s.ForEvent(t.Context(), n.EventID, domain.Email)
		require.NoError(t, err)
		require.Equal(t, n, got)

		require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
			locked, err := s.Lock(ctx, tx, n.ID)
			if err != nil {
				return err
			}
			locked.MarkSent("250 ok", t0.Add(time.Minute))
			n = locked
			return s.Save(ctx, tx, locked)
		}))
		got, err = s.Get(t.Context(), n.ID)
		require.NoError(t, err)
		require.Equal(t, n, got)

		_, err = s.Get(t.Context(), "none")
		require.ErrorIs(t, err, app.ErrNotFound)
		_, err = s.ForEvent(t.Context(), n.EventID, domain.SMS)
		require.ErrorIs(t, err, app.ErrNotFound)
		require.ErrorIs(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
			_, err := s.LockForEvent(ctx, tx, "none", domain.SMS)
			return err
		}), app.ErrNotFound)
		require.ErrorIs(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
			return s.Save(ctx, tx, domain.Notification{ID: "none", State: domain.Sent})
		}), app.ErrNotFound)
	})
}

func TestOneNotificationForAnEventAndChannel(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, notifications.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewStore(db.DB, db.Dialect)
		const writers = 8
		added := make([]bool, writers)
		errs := make([]error, writers)
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				n := notification(1)
				n.ID = fmt.Sprintf("n-%d", i)
				errs[i] = inTx(t, db, func(ctx context.Context, tx *sql.Tx) (err error) {
					added[i], err = s.Add(ctx, tx, n)
					return err
				})
			})
		}
		wg.Wait()
		wrote := 0
		for i := range writers {
			require.NoError(t, errs[i])
			if added[i] {
				wrote++
			}
		}
		require.Equal(t, 1, wrote)
		other := notification(1)
		other.ID, other.Channel = "n-sms", domain.SMS
		add(t, db, s, other)
	})
}

func TestListFiltersAndPages(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, notifications.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewStore(db.DB, db.Dialect)
		var all []domain.Notification
		for i := range 6 {
			n := notification(i)
			n.CreatedAt, n.UpdatedAt = t0.Add(time.Duration(i/2)*time.Second), t0 // ties in time
			if i == 3 {
				n.State, n.OrderID = domain.Unknown, "o-2"
			}
			all = append(all, n)
		}
		add(t, db, s, all...)
		ids := func(q app.Query) []string {
			t.Helper()
			list, err := s.List(t.Context(), q)
			require.NoError(t, err)
			var ids []string
			for _, n := range list {
				ids = append(ids, n.ID)
			}
			return ids
		}
		require.Equal(t, []string{"n-005", "n-004", "n-003", "n-002", "n-001", "n-000"}, ids(app.Query{Limit: 10}))
		require.Equal(t, []string{"n-003"}, ids(app.Query{State: domain.Unknown, Limit: 10}))
		require.Equal(t, []string{"n-003"}, ids(app.Query{OrderID: "o-2", State: domain.Unknown, Limit: 10}))
		require.Empty(t, ids(app.Query{OrderID: "o-2", State: domain.Sent, Limit: 10}))
		require.Equal(t, []string{"n-002", "n-001"}, ids(app.Query{Limit: 2, Before: app.Position{CreatedAt: all[3].CreatedAt, ID: "n-003"}}))
	})
}

func TestContactKeepsTheNewest(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, notifications.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewStore(db.DB, db.Dialect)
		c := domain.Contact{OrderID: "o-1", Email: "a@example.com", Phone: "+4915112345678", Language: "de", KnownAt: t0}
		older := c
		older.Email, older.KnownAt = "old@example.com", t0.Add(-time.Hour)
		require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
			return errors.Join(s.SaveContact(ctx, tx, c), s.SaveContact(ctx, tx, older), s.SaveContact(ctx, tx, c))
		}))
		require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
			got, err := s.Contact(ctx, tx, "o-1")
			require.Equal(t, c, got)
			_, missing := s.Contact(ctx, tx, "o-2")
			require.ErrorIs(t, missing, app.ErrNotFound)
			return err
		}))
	})
}

func issue(t *testing.T, db frameworktest.DB, s *Store, id string) domain.Code {
	t.Helper()
	k, err := domain.NewCodeKeeper([]byte(strings.Repeat("s", domain.MinSecretBytes)))
	require.NoError(t, err)
	c, err := k.Issue(domain.Code{
		ID: id, Channel: domain.SMS, Recipient: "+4915112345678", Language: "en", Purpose: "login", CreatedAt: t0, ExpiresAt: t0.Add(10 * time.Minute),
	})
	require.NoError(t, err)
	require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error { return s.AddCode(ctx, tx, c) }))
	return c
}

func TestCodesAreTriedAndUsedUpUnderConcurrency(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, notifications.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewStore(db.DB, db.Dialect)
		c := issue(t, db, s, "c-1")
		require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
			got, err := s.Code(ctx, tx, "c-1")
			require.Equal(t, c, got)
			return err
		}))

		try := func(id string, now time.Time, use bool) error {
			return inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
				if _, err := s.CountAttempt(ctx, tx, id, now, 3); err != nil || !use {
					return err
				}
				return s.Consume(ctx, tx, id, now)
			})
		}
		count := func(id string, use bool) (ok int) {
			errs := make([]error, 8)
			var wg sync.WaitGroup
			for i := range errs {
				wg.Go(func() { errs[i] = try(id, t0, use) })
			}
			wg.Wait()
			for _, err := range errs {
				if err == nil {
					ok++
				} else {
					require.ErrorIs(t, err, app.ErrNotFound)
				}
			}
			return ok
		}
		require.Equal(t, 3, count("c-1", false), "three attempts, however many try at once")
		issue(t, db, s, "c-2")
		require.Equal(t, 1, count("c-2", true), "one use")
		issue(t, db, s, "c-3")
		require.ErrorIs(t, try("c-3", t0.Add(10*time.Minute), false), app.ErrNotFound, "expired")
		require.ErrorIs(t, try("none", t0, false), app.ErrNotFound)

		require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
			used, err := s.Code(ctx, tx, "c-2")
			require.Empty(t, used.Sealed)
			require.Equal(t, t0, used.ConsumedAt)
			return errors.Join(err, s.Wipe(ctx, tx, "c-3"))
		}))
	})
}

func TestIssueLimitCountsAWindow(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, notifications.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewStore(db.DB, db.Dialect)
		at := func(now time.Time) (issued int, since time.Time) {
			t.Helper()
			require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) (err error) {
				issued, since, err = s.CountIssue(ctx, tx, "hash", now, now.Add(-time.Hour))
				return err
			}))
			return issued, since
		}
		n, since := at(t0)
		require.Equal(t, 1, n)
		require.Equal(t, t0, since)
		n, since = at(t0.Add(59 * time.Minute))
		require.Equal(t, 2, n)
		require.Equal(t, t0, since)
		n, since = at(t0.Add(time.Hour))
		require.Equal(t, 1, n, "a new window")
		require.Equal(t, t0.Add(time.Hour), since)

		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				_ = inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
					_, _, err := s.CountIssue(ctx, tx, "other", t0, t0.Add(-time.Hour))
					return err
				})
			})
		}
		wg.Wait()
		var total int
		require.NoError(t, db.QueryRowContext(t.Context(), `SELECT issued FROM notification_code_limits WHERE recipient_hash = 'other'`).Scan(&total))
		require.Equal(t, 8, total, "none is lost")
	})
}

// B46, this service's tables: in batches, and never what still waits.
func TestPurgeKeepsWhatIsNeeded(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, notifications.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewStore(db.DB, db.Dialect)
		for i, state := range []domain.State{domain.Sent, domain.Failed, domain.Sent, domain.Unknown, domain.Pending, domain.Sending} {
			n := notification(i)
			n.State = state
			add(t, db, s, n)
		}
		recent := notification(100)
		recent.State = domain.Sent
		add(t, db, s, recent)
		limit := t0.Add(time.Minute)
		for _, want := range []int{2, 1, 0} {
			n, err := s.PurgeNotifications(t.Context(), limit, 2)
			require.NoError(t, err)
			require.Equal(t, want, n)
		}
		left, err := s.List(t.Context(), app.Query{Limit: 10})
		require.NoError(t, err)
		require.Len(t, left, 4)

		issue(t, db, s, "c-1")
		require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
			_, _, err := s.CountIssue(ctx, tx, "hash", t0, t0)
			return errors.Join(err, s.SaveContact(ctx, tx, domain.Contact{OrderID: "o-1", Language: "en", KnownAt: t0}))
		}))
		for name, purge := range map[string]func(context.Context, time.Time, int) (int, error){
			"codes": s.PurgeCodes, "limits": s.PurgeCodeLimits, "contacts": s.PurgeContacts,
		} {
			n, err := purge(t.Context(), t0, 10)
			require.NoError(t, err)
			require.Zero(t, n, name)
			n, err = purge(t.Context(), t0.Add(time.Hour), 10)
			require.NoError(t, err)
			require.Equal(t, 1, n, name)
		}
	})
}
