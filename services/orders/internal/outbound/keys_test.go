package outbound

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/orders"
	"github.com/headrace-go/headrace/services/orders/internal/app"
)

func key(value, order string, at time.Time) app.Key {
	return app.Key{Value: value, Fingerprint: "f", OrderID: order, CreatedAt: at, ExpiresAt: at.Add(time.Hour)}
}

func claim(t *testing.T, db frameworktest.DB, s *Keys, k app.Key, now time.Time) (held app.Key, fresh bool) {
	t.Helper()
	require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
		var err error
		held, fresh, err = s.Claim(ctx, tx, k, now)
		return err
	}))
	return held, fresh
}

func TestKeysAreHeldUntilTheyExpire(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, orders.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewKeys(db.DB, db.Dialect)
		first := key("k", "o1", t0)
		held, fresh := claim(t, db, s, first, t0)
		require.True(t, fresh)
		require.Equal(t, first, held)

		later := t0.Add(59 * time.Minute)
		held, fresh = claim(t, db, s, key("k", "o2", later), later)
		require.False(t, fresh)
		require.Equal(t, first, held)

		later = t0.Add(time.Hour)
		held, fresh = claim(t, db, s, key("k", "o3", later), later)
		require.True(t, fresh)
		require.Equal(t, "o3", held.OrderID)
		held, fresh = claim(t, db, s, key("k", "o4", later), later)
		require.False(t, fresh)
		require.Equal(t, "o3", held.OrderID)
	})
}

func TestKeysOfARolledBackTransactionAreFree(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, orders.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewKeys(db.DB, db.Dialect)
		boom := errors.New("boom")
		err := inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
			if _, fresh, err := s.Claim(ctx, tx, key("k", "o1", t0), t0); err != nil || !fresh {
				return fmt.Errorf("fresh %t: %w", fresh, err)
			}
			return boom
		})
		require.ErrorIs(t, err, boom)
		_, fresh := claim(t, db, s, key("k", "o2", t0), t0)
		require.True(t, fresh)
	})
}

func TestKeysConcurrentClaimsHaveOneWinner(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, orders.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewKeys(db.DB, db.Dialect)
		const claimants = 12
		type outcome struct {
			held  app.Key
			fresh bool
			err   error
		}
		outcomes := make([]outcome, claimants)
		var wg sync.WaitGroup
		for i := range claimants {
			wg.Go(func() {
				o := &outcomes[i]
				o.err = sqltx.Run(context.Background(), db.DB, sqltx.Options{Dialect: db.Dialect}, func(ctx context.Context, tx *sql.Tx) error {
					var err error
					o.held, o.fresh, err = s.Claim(ctx, tx, key("k", fmt.Sprint("o", i), t0), t0)
					return err
				})
			})
		}
		wg.Wait()
		winners := 0
		for _, o := range outcomes {
			require.NoError(t, o.err)
			require.Equal(t, outcomes[0].held.OrderID, o.held.OrderID)
			if o.fresh {
				winners++
			}
		}
		require.Equal(t, 1, winners)
	})
}

func TestKeysDeleteExpiredInBatches(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, orders.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewKeys(db.DB, db.Dialect)
		for i := range 5 {
			claim(t, db, s, key(fmt.Sprint("old", i), "o", t0), t0)
		}
		claim(t, db, s, key("new", "o", t0.Add(time.Minute)), t0)
		now := t0.Add(time.Hour)
		for _, want := range []int{2, 2, 1, 0} {
			n, err := s.DeleteExpired(t.Context(), now, 2)
			require.NoError(t, err)
			require.Equal(t, want, n)
		}
		_, fresh := claim(t, db, s, key("new", "o2", now), now)
		require.False(t, fresh, "a key that has not expired stays")
	})
}
