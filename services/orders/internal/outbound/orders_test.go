package outbound

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/services/orders"
	"github.com/headrace-go/headrace/services/orders/internal/app"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 123_456_000, time.UTC)

func newOrder(t *testing.T, id, customer string, at time.Time) domain.Order {
	t.Helper()
	o, err := domain.Place(id, domain.Request{
		Customer:     domain.Customer{ID: customer, Email: "ada@example.com", Phone: "+441632960961", Language: "en"},
		Lines:        []domain.Line{{SKU: "BOOK", Quantity: 2, UnitPrice: domain.Money{Amount: 1250, Currency: "EUR"}}, {SKU: "PEN", Quantity: 1, UnitPrice: domain.Money{Amount: 99, Currency: "EUR"}}},
		PaymentToken: "tok_ok",
	}, domain.Rules{Currencies: []string{"EUR"}, MaxLines: 10}, at)
	require.NoError(t, err)
	return o
}

func inTx(t *testing.T, db frameworktest.DB, fn func(ctx context.Context, tx *sql.Tx) error) error {
	t.Helper()
	return sqltx.Run(t.Context(), db.DB, sqltx.Options{Dialect: db.Dialect}, fn)
}

func insert(t *testing.T, db frameworktest.DB, s *Orders, orders ...domain.Order) {
	t.Helper()
	require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
		for _, o := range orders {
			if err := s.Insert(ctx, tx, o); err != nil {
				return err
			}
		}
		return nil
	}))
}

// change is what the use cases do: lock, change, save.
func change(ctx context.Context, tx *sql.Tx, s *Orders, id string, fn func(*domain.Order) (bool, error)) (bool, error) {
	o, err := s.Lock(ctx, tx, id)
	if err != nil {
		return false, err
	}
	changed, err := fn(&o)
	if err != nil || !changed {
		return false, err
	}
	return true, s.Save(ctx, tx, o)
}

func TestOrdersRoundTrip(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, orders.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewOrders(db.DB, db.Dialect)
		o := newOrder(t, "o1", "cus_1", t0)
		insert(t, db, s, o)
		got, err := s.Get(t.Context(), "o1")
		require.NoError(t, err)
		require.Equal(t, o, got)

		_, err = o.Confirm("pay_1", o.Total, t0.Add(time.Second))
		require.NoError(t, err)
		require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error { return s.Save(ctx, tx, o) }))
		_, err = o.Cancel("größer wäre besser", t0.Add(2*time.Second))
		require.NoError(t, err)
		require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error { return s.Save(ctx, tx, o) }))
		_, err = o.Refund("pay_1", "ref_1", o.Total, t0.Add(3*time.Second))
		require.NoError(t, err)
		require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error { return s.Save(ctx, tx, o) }))
		got, err = s.Get(t.Context(), "o1")
		require.NoError(t, err)
		require.Equal(t, o, got)
	})
}

func TestOrdersUnknownID(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, orders.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewOrders(db.DB, db.Dialect)
		_, err := s.Get(t.Context(), "none")
		require.ErrorIs(t, err, app.ErrNotFound)
		err = inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
			_, err := s.Lock(ctx, tx, "none")
			return err
		})
		require.ErrorIs(t, err, app.ErrNotFound)
	})
}

func TestOrdersSaveRefusesAStaleVersion(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, orders.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewOrders(db.DB, db.Dialect)
		stale := newOrder(t, "o1", "cus_1", t0)
		insert(t, db, s, stale)
		require.NoError(t, inTx(t, db, func(ctx context.Context, tx *sql.Tx) error {
			_, err := change(ctx, tx, s, "o1", func(o *domain.Order) (bool, error) { return o.Cancel("first", t0) })
			return err
		}))
		_, err := stale.Confirm("pay_1", stale.Total, t0)
		require.NoError(t, err)
		err = inTx(t, db, func(ctx context.Context, tx *sql.Tx) error { return s.Save(ctx, tx, stale) })
		require.ErrorIs(t, err, ErrChanged)
		got, err := s.Get(t.Context(), "o1")
		require.NoError(t, err)
		require.Equal(t, domain.Cancelled, got.State)
	})
}

// Writers of one order at the same moment go one after the other: no change is
// lost and only one of two equal ones counts.
func TestOrdersConcurrentChanges(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, orders.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewOrders(db.DB, db.Dialect)
		const orders = 10
		for i := range orders {
			insert(t, db, s, newOrder(t, fmt.Sprint("o", i), "cus_1", t0))
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		cancels := map[string]int{}
		confirms := map[string]int{}
		errs := make(chan error, 4*orders)
		run := func(id string, count map[string]int, fn func(*domain.Order) (bool, error)) {
			wg.Go(func() {
				var changed bool
				err := sqltx.Run(context.Background(), db.DB, sqltx.Options{Dialect: db.Dialect}, func(ctx context.Context, tx *sql.Tx) error {
					var err error
					changed, err = change(ctx, tx, s, id, fn)
					return err
				})
				mu.Lock()
				defer mu.Unlock()
				if changed {
					count[id]++
				}
				errs <- err
			})
		}
		for i := range orders {
			id := fmt.Sprint("o", i)
			for range 2 {
				run(id, cancels, func(o *domain.Order) (bool, error) { return o.Cancel("r", t0.Add(time.Second)) })
				run(id, confirms, func(o *domain.Order) (bool, error) { return o.Confirm("pay", o.Total, t0.Add(time.Second)) })
			}
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		for i := range orders {
			id := fmt.Sprint("o", i)
			got, err := s.Get(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, domain.Cancelled, got.State, "a cancellation is final in either order")
			require.Equal(t, "pay", got.PaymentID, "and the capture is not lost")
			require.EqualValues(t, 3, got.Version)
			require.Equal(t, 1, cancels[id])
			require.Equal(t, 1, confirms[id])
		}
	})
}

func TestOrdersListPages(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, orders.Files, func(t *testing.T, db frameworktest.DB) {
		s := NewOrders(db.DB, db.Dialect)
		// Three share one moment, so that the id must break the tie.
		var all []domain.Order
		for i, at := range []time.Duration{0, 1, 1, 1, 2, 3} {
			all = append(all, newOrder(t, fmt.Sprint("o", i), fmt.Sprint("cus_", i%2), t0.Add(at*time.Second)))
		}
		_, err := all[4].Cancel("", t0.Add(time.Minute))
		require.NoError(t, err)
		insert(t, db, s, all...)

		ids := func(q app.Query) []string {
			var got []string
			for {
				page, err := s.List(t.Context(), q)
				require.NoError(t, err)
				require.LessOrEqual(t, len(page), q.Limit)
				for _, o := range page {
					got = append(got, o.ID)
					i := slices.IndexFunc(all, func(a domain.Order) bool { return a.ID == o.ID })
					require.Equal(t, all[i], o, "a listed order is whole")
				}
				if len(page) < q.Limit {
					return got
				}
				last := page[len(page)-1]
				q.After = app.Position{PlacedAt: last.PlacedAt, ID: last.ID}
			}
		}
		want := []string{"o5", "o4", "o3", "o2", "o1", "o0"}
		for limit := 1; limit <= 7; limit++ {
			require.Equal(t, want, ids(app.Query{Limit: limit}), "limit %d", limit)
		}
		require.Equal(t, []string{"o4", "o2", "o0"}, ids(app.Query{CustomerID: "cus_0", Limit: 2}))
		require.Equal(t, []string{"o4"}, ids(app.Query{State: domain.Cancelled, Limit: 2}))
		require.Equal(t, []string{"o5", "o3", "o1"}, ids(app.Query{CustomerID: "cus_1", State: domain.Placed, Limit: 1}))
		require.Empty(t, ids(app.Query{CustomerID: "nobody", Limit: 2}))
	})
}
