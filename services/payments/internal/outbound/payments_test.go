package outbound

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/payments"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

var (
	t0    = time.Date(2026, 3, 1, 12, 0, 0, 123_456_000, time.UTC)
	price = domain.Money{Amount: 4200, Currency: "EUR"}
)

func pending(t *testing.T, id, orderID string) domain.Payment {
	t.Helper()
	p, err := domain.New(id, orderID, price, t0)
	require.NoError(t, err)
	return p
}

func inTx(t *testing.T, db frameworktest.DB, fn func(ctx context.Context, tx *sql.Tx) error) error {
	t.Helper()
	return sqltx.Run(t.Context(), db.DB, sqltx.Options{Dialect: db.Dialect}, fn)
}

func open(t *testing.T, db frameworktest.DB, s *Payments, p domain.Payment) (domain.Payment, bool) {
	t.Helper()
	var found domain.Payment
	var added bool
	require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) (err error) {
		found, added, err = s.Open(ctx, tx, p)
		return err
	}))
	return found, added
}

func TestPaymentComesBackAsItWasSaved(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewPayments(db.DB, db.Dialect)
		p := pending(t, "pay-1", "order-1")
		got, added := open(t, db, s, p)
		require.True(t, added)
		require.Equal(t, p, got)

		save := func(changed bool, err error) {
			t.Helper()
			require.NoError(t, err)
			require.True(t, changed)
			require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error { return s.Save(ctx, tx, p) }))
			byID, err := s.Get(t.Context(), p.ID)
			require.NoError(t, err)
			require.Equal(t, p, byID)
			byOrder, err := s.GetByOrder(t.Context(), p.OrderID)
			require.NoError(t, err)
			require.Equal(t, p, byOrder)
		}
		save(p.Capture("ch-1", t0.Add(time.Second)))
		save(p.CancelOrder(t0.Add(2*time.Second)), nil)
		save(p.Refund("ref-1", "re-1", t0.Add(3*time.Second)))

		var err error
		p, err = domain.NewCancelled("pay-2", "order-2", domain.Money{}, t0)
		require.NoError(t, err)
		got, added = open(t, db, s, p)
		require.True(t, added)
		require.Equal(t, p, got)
		save(p.Agree(price, t0.Add(time.Second)))
		save(p.Fail(domain.ReasonOrderCancelled, t0.Add(2*time.Second)))
	})
}

func TestOpenKeepsTheFirstPaymentOfAnOrder(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewPayments(db.DB, db.Dialect)
		first, added := open(t, db, s, pending(t, "pay-1", "order-1"))
		require.True(t, added)
		second, added := open(t, db, s, pending(t, "pay-2", "order-1"))
		require.False(t, added)
		require.Equal(t, first, second)
		_, err := s.Get(t.Context(), "pay-2")
		require.ErrorIs(t, err, app.ErrNotFound)
	})
}

func TestOpenAtTheSameMoment(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewPayments(db.DB, db.Dialect)
		const writers = 8
		var wg sync.WaitGroup
		ids, errs := make([]string, writers), make([]error, writers)
		for i := range writers {
			wg.Go(func() {
				errs[i] = inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
					p, err := domain.New(fmt.Sprintf("pay-%d", i), "order-1", price, t0)
					if err != nil {
						return err
					}
					p, _, err = s.Open(ctx, tx, p)
					ids[i] = p.ID
					return err
				})
			})
		}
		wg.Wait()
		for i := range writers {
			require.NoError(t, errs[i])
			require.Equal(t, ids[0], ids[i])
		}
	})
}

// TestLockedPaymentsAreNotLost lets writers decide on what they read: each
// decision must see the one before it.
func TestLockedPaymentsAreNotLost(t *testing.T) {
	t.Parallel()
	locks := map[string]func(*Payments, context.Context, *sql.Tx) (domain.Payment, error){
		"by order": func(s *Payments, ctx context.Context, tx *sql.Tx) (domain.Payment, error) {
			return s.LockByOrder(ctx, tx, "order-1")
		},
		"by id": func(s *Payments, ctx context.Context, tx *sql.Tx) (domain.Payment, error) {
			return s.Lock(ctx, tx, "pay-1")
		},
		"by opening": func(s *Payments, ctx context.Context, tx *sql.Tx) (domain.Payment, error) {
			p, err := domain.New("pay-x", "order-1", price, t0)
			if err != nil {
				return p, err
			}
			p, _, err = s.Open(ctx, tx, p)
			return p, err
		},
	}
	for name, lock := range locks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
				s := NewPayments(db.DB, db.Dialect)
				open(t, db, s, pending(t, "pay-1", "order-1"))
				const writers, rounds = 4, 5
				var wg sync.WaitGroup
				errs := make([]error, writers)
				for i := range writers {
					wg.Go(func() {
						for range rounds {
							if err := inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
								p, err := lock(s, ctx, tx)
								if err != nil {
									return err
								}
								p.Amount.Amount++
								p.Version++
								return s.Save(ctx, tx, p)
							}); err != nil {
								errs[i] = err
								return
							}
						}
					})
				}
				wg.Wait()
				for _, err := range errs {
					require.NoError(t, err)
				}
				p, err := s.Get(t.Context(), "pay-1")
				require.NoError(t, err)
				require.Equal(t, price.Amount+writers*rounds, p.Amount.Amount)
			})
		})
	}
}

func TestSaveRefusesWhatWasChangedMeanwhile(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewPayments(db.DB, db.Dialect)
		p, _ := open(t, db, s, pending(t, "pay-1", "order-1"))
		other := p
		_, err := p.Fail("declined", t0)
		require.NoError(t, err)
		require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error { return s.Save(ctx, tx, p) }))
		_, err = other.Capture("ch-1", t0)
		require.NoError(t, err)
		err = inTx(t, db, func(ctx context.Context, tx *sql.Tx) error { return s.Save(ctx, tx, other) })
		require.ErrorIs(t, err, app.ErrChanged)
		got, err := s.Get(t.Context(), "pay-1")
		require.NoError(t, err)
		require.Equal(t, p, got)
	})
}

func TestUnknownPayments(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewPayments(db.DB, db.Dialect)
		_, err := s.Get(t.Context(), "nope")
		require.ErrorIs(t, err, app.ErrNotFound)
		_, err = s.GetByOrder(t.Context(), "nope")
		require.ErrorIs(t, err, app.ErrNotFound)
		require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
			_, err := s.Lock(ctx, tx, "nope")
			require.ErrorIs(t, err, app.ErrNotFound)
			_, err = s.LockByOrder(ctx, tx, "nope")
			require.ErrorIs(t, err, app.ErrNotFound)
			return nil
		}))
	})
}
