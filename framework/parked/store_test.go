package parked_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework/parked"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/middleware"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var databases = map[sqltx.Dialect]func(testing.TB) *sql.DB{
	sqltx.Postgres: testenv.Postgres, sqltx.MySQL: testenv.MySQL, sqltx.SQLite: testenv.SQLite,
}

func open(t testing.TB, db *sql.DB, d sqltx.Dialect, group string) *parked.Store {
	t.Helper()
	s, err := parked.NewStore(parked.Config{DB: db, Dialect: d, Group: group})
	require.NoError(t, err)
	return s
}

func eachDialect(t *testing.T, fn func(t *testing.T, db *sql.DB, d sqltx.Dialect)) {
	t.Parallel()
	for d, database := range databases {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			db := database(t)
			require.NoError(t, schema.Ensure(t.Context(), db, d, slog.New(slog.DiscardHandler)))
			fn(t, db, d)
		})
	}
}

func TestLines(t *testing.T) {
	eachDialect(t, func(t *testing.T, db *sql.DB, d sqltx.Dialect) {
		ctx := t.Context()
		s, other := open(t, db, d, "things.count"), open(t, db, d, "things.other")
		head, err := s.Head(ctx, "a", "a1", 0)
		require.NoError(t, err)
		require.Zero(t, head)

		add := func(s *parked.Store, key, id string, seq int64) int64 {
			own, _, err := s.Add(ctx, key, id, seq)
			require.NoError(t, err)
			return own
		}
		a1 := add(s, "a", "a1", 0)
		b1 := add(s, "b", "b1", 0)
		a2, head, err := s.Add(ctx, "a", "a2", 0)
		require.NoError(t, err)
		require.Equal(t, middleware.ParkHead{Parked: true, Seq: a1, ID: "a1"}, head)
		require.Greater(t, a2, a1)
		require.Equal(t, a1, add(s, "a", "a1", 0), "it keeps its place")
		require.Equal(t, a2, add(s, "a", "edited", a2), "and is known by it")
		add(other, "a", "a1", 0)

		for _, c := range []struct {
			key, id string
			seq     int64
			want    middleware.ParkHead
		}{
			{"a", "a1", 0, middleware.ParkHead{Parked: true, Mine: true, Seq: a1, ID: "a1"}},
			{"a", "edited", a1, middleware.ParkHead{Parked: true, Mine: true, Seq: a1, ID: "a1"}},
			{"a", "a2", a2, middleware.ParkHead{Parked: true, Seq: a1, ID: "a1"}},
			{"b", "x", 0, middleware.ParkHead{Parked: true, Seq: b1, ID: "b1"}},
			{"A", "a1", 0, middleware.ParkHead{}},
			{"c", "a1", a1, middleware.ParkHead{}},
		} {
			head, err := s.Head(ctx, c.key, c.id, c.seq)
			require.NoError(t, err)
			require.Equal(t, c.want, head, "%+v", c)
		}
		count := func(messages, keys int64) {
			m, k, err := s.Count(ctx)
			require.NoError(t, err)
			require.Equal(t, []int64{messages, keys}, []int64{m, k})
		}
		count(3, 2)

		rollback := errors.New("no")
		err = sqltx.Run(ctx, db, sqltx.Options{Dialect: d}, func(ctx context.Context, tx *sql.Tx) error {
			return errors.Join(s.RemoveIn(ctx, tx, a1), rollback)
		})
		require.ErrorIs(t, err, rollback)
		count(3, 2)
		require.NoError(t, sqltx.Run(ctx, db, sqltx.Options{Dialect: d}, func(ctx context.Context, tx *sql.Tx) error { return s.RemoveIn(ctx, tx, a1) }))
		count(2, 2)
		head, err = s.Head(ctx, "a", "a2", 0)
		require.NoError(t, err)
		require.True(t, head.Mine)
		require.NoError(t, s.Remove(ctx, "a", "", a2))
		require.NoError(t, s.Remove(ctx, "a", "", a2), "one that is gone is no error")
		require.NoError(t, s.Remove(ctx, "a", "b1", 0), "another key's")
		count(1, 1)
		require.NoError(t, s.Remove(ctx, "b", "b1", 0))
		count(0, 0)
		require.Greater(t, add(s, "a", "a3", 0), a2, "no place is given twice")
		n, err := s.Clear(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		head, err = other.Head(ctx, "a", "a1", 0)
		require.NoError(t, err)
		require.True(t, head.Mine, "the other group's stays")
	})
}

// Keys and ids that a column could not hold are no others' and no failure.
func TestOddKeysAndIDs(t *testing.T) {
	eachDialect(t, func(t *testing.T, db *sql.DB, d sqltx.Dialect) {
		s := open(t, db, d, "things.count")
		long := strings.Repeat("ä", 300)
		odd := []string{"k", "K", "k ", "ключ", "a\x00b", "\xff\xfe", long, long + "x", "ab\n"}
		for _, v := range odd {
			_, head, err := s.Add(t.Context(), v, v, 0)
			require.NoError(t, err, "%q", v)
			require.True(t, head.Mine)
		}
		for _, v := range odd {
			head, err := s.Head(t.Context(), v, v, 0)
			require.NoError(t, err)
			require.True(t, head.Mine, "%q", v)
			require.NoError(t, s.Remove(t.Context(), v, v, 0))
		}
		messages, _, err := s.Count(t.Context())
		require.NoError(t, err)
		require.Zero(t, messages)
	})
}

// However many replicas put a message into its line at once, it stands there once.
func TestManyAtOnce(t *testing.T) {
	eachDialect(t, func(t *testing.T, db *sql.DB, d sqltx.Dialect) {
		if d != sqltx.SQLite {
			db.SetMaxOpenConns(8)
		}
		s := open(t, db, d, "things.count")
		var wg sync.WaitGroup
		var mu sync.Mutex
		got := map[string]map[int64]bool{}
		for i := range 40 {
			wg.Go(func() {
				id := fmt.Sprint(i % 4)
				own, head, err := s.Add(t.Context(), "a", id, 0)
				mu.Lock()
				defer mu.Unlock()
				if err != nil || !head.Parked {
					t.Errorf("add %s: %+v, %v", id, head, err)
				}
				if got[id] == nil {
					got[id] = map[int64]bool{}
				}
				got[id][own] = true
			})
		}
		wg.Wait()
		for id, places := range got {
			require.Len(t, places, 1, id)
		}
		messages, keys, err := s.Count(t.Context())
		require.NoError(t, err)
		require.Equal(t, []int64{4, 1}, []int64{messages, keys})
	})
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	_, err := parked.NewStore(parked.Config{Dialect: "oracle"})
	for _, want := range []string{"unknown dialect", "DB is nil", "Group has 0 bytes"} {
		require.ErrorContains(t, err, want)
	}
}

// What each message with a key costs while nothing is parked.
func BenchmarkHead(b *testing.B) {
	for d, database := range databases {
		for _, rows := range []int{0, 10_000} {
			b.Run(fmt.Sprintf("%s/%d parked", d, rows), func(b *testing.B) {
				db := database(b)
				require.NoError(b, schema.Ensure(b.Context(), db, d, slog.New(slog.DiscardHandler)))
				s := open(b, db, d, "things.count")
				tx, err := db.Begin()
				require.NoError(b, err)
				for i := range rows {
					_, err := tx.Exec(d.Rebind(`INSERT INTO headrace_parked_keys (handler, ordering_key, event_id, parked_at) VALUES ($1, $2, $3, $4)`), "things.count", fmt.Sprint(i%1000), fmt.Sprint(i), 1)
					require.NoError(b, err)
				}
				require.NoError(b, tx.Commit())
				for b.Loop() {
					if _, err := s.Head(b.Context(), "none", "id", 0); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
