package outbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/pkg/events"
)

func (e env) admin(t testing.TB) *Admin {
	t.Helper()
	a, err := NewAdmin(AdminConfig{DB: e.db, Dialect: e.dialect})
	require.NoError(t, err)
	return a
}

func parkedRows(t testing.TB, a *Admin, f Filter) (all []ParkedRow) {
	t.Helper()
	for p, err := range a.Parked(t.Context(), f) {
		require.NoError(t, err)
		all = append(all, p)
	}
	return all
}

// Parked rows are listed and chosen by what operators know of them, and come
// back in order, far below where the relays read, before what is new.
func TestRetryParked(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		b := newFakeBroker()
		b.refuse = func(_ string, m *message.Message) error {
			if n := string(m.Payload); m.Metadata["ordering_key"] == "k" && (n == "1" || n == "3") {
				return fmt.Errorf("too odd: %w", broker.ErrRejected)
			}
			return nil
		}
		r := e.relay(t, b)
		w := e.writer(t, nil)
		a := e.admin(t)
		_, err := e.db.Exec(`INSERT INTO ` + schema.OutboxTable + ` (uuid, payload) VALUES ('corrupt', 'not json')`)
		require.NoError(t, err)
		var msgs []Message
		for i := range 5 {
			m := msg("orders", "k", i)
			m.Message.Metadata[events.KeyID], m.Message.Metadata[events.KeyType] = fmt.Sprint("event-", i), "order.placed"
			msgs = append(msgs, m)
		}
		e.write(t, w, msgs...)
		require.NoError(t, r.Flush(t.Context()))
		for i := range 100 { // the floor moves on
			e.write(t, w, msg("orders", "other", i))
		}
		require.NoError(t, r.Flush(t.Context()))
		for range 3 {
			require.NoError(t, r.store.maintain(t.Context()))
		}

		st, err := a.Status(t.Context())
		require.NoError(t, err)
		require.Equal(t, Status{Stats: Stats{Parked: 3}}, st)
		all := parkedRows(t, a, Filter{})
		require.Len(t, all, 3)
		require.Equal(t, "corrupt", all[0].ID)
		require.Contains(t, all[0].Reason, "corrupt envelope")
		one := all[1]
		require.Equal(t, []any{msgs[1].Message.UUID, "event-1", "order.placed", "orders", "k", 1, 1}, []any{one.ID, one.EventID, one.Type, one.Topic, one.Key, one.Bytes, one.Attempts})
		require.WithinDuration(t, time.Now(), one.ParkedAt, time.Minute)
		require.WithinDuration(t, time.Now(), one.CreatedAt, time.Minute)
		for want, f := range map[int]Filter{
			0: {IDs: []string{"nobody"}},
			1: {IDs: []string{"event-1", msgs[1].Message.UUID}},
			2: {Keys: []string{"k"}, Topics: []string{"orders"}, Reason: "odd", ParkedSince: time.Now().Add(-time.Hour)},
			3: {ParkedBefore: time.Now().Add(time.Hour), Limit: 3},
		} {
			require.Len(t, parkedRows(t, a, f), want, "%+v", f)
		}
		require.Len(t, parkedRows(t, a, Filter{Limit: 2}), 2)
		require.Empty(t, parkedRows(t, a, Filter{ParkedBefore: time.Now().Add(-time.Hour)}))

		n, err := a.Discard(t.Context(), Filter{Offsets: []int64{all[0].Offset}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		b.set(func(b *fakeBroker) { b.refuse = nil })
		n, err = a.Retry(t.Context(), Filter{Topics: []string{"orders"}})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		e.write(t, w, msg("orders", "k", 5))
		run(t, r)
		got := b.await(t, 106)
		requireOnce(t, got, 106)
		var late []string
		for _, p := range got[103:] {
			late = append(late, p.Payload)
		}
		require.Equal(t, []string{"1", "3", "5"}, late, "what was parked goes first, in its order")
		eventually(t, "the table is empty", func() bool { return e.count(t, "1=1") == 0 })
		n, err = a.Retry(t.Context(), Filter{})
		require.NoError(t, err)
		require.Zero(t, n)
	})
}

// Where order is strict, a row that is retried or discarded takes along what is
// parked only behind it, up to the next row that is parked for itself.
func TestRetryStrict(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		b := newFakeBroker()
		bad := map[string]bool{"1": true, "3": true}
		b.refuse = func(_ string, m *message.Message) error {
			if bad[string(m.Payload)] {
				return broker.ErrRejected
			}
			return nil
		}
		r := e.relay(t, b, func(c *RelayConfig) { c.StrictOrder = true })
		w := e.writer(t, nil)
		a := e.admin(t)
		for i := range 6 {
			e.write(t, w, msg("a", "k", i), msg("a", "other", i*0))
		}
		run(t, r)
		eventually(t, "the key is parked", func() bool { return e.count(t, "state = 2") == 5 })
		require.Len(t, parkedRows(t, a, Filter{Reason: behindParked}), 4)

		b.set(func(*fakeBroker) { delete(bad, "1") })
		first := parkedRows(t, a, Filter{Limit: 1})[0]
		require.False(t, first.Behind)
		n, err := a.Retry(t.Context(), Filter{Offsets: []int64{first.Offset}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		eventually(t, "it stops at the next bad row", func() bool {
			all := parkedRows(t, a, Filter{})
			return len(all) == 3 && !all[0].Behind && all[1].Behind && all[2].Behind
		})
		n, err = a.Discard(t.Context(), Filter{Limit: 1})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		eventually(t, "the rest is out", func() bool { return e.count(t, "1=1") == 0 })
		var order []string
		for _, p := range b.all() {
			if p.Key == "k" {
				order = append(order, p.Payload)
			}
		}
		require.Equal(t, []string{"0", "1", "2", "4", "5"}, order)
	})
}

// More rows than one page are all found and changed, and an outage is told.
func TestAdminPages(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		a := e.admin(t)
		w := e.writer(t, nil)
		var msgs []Message
		for i := range 2*adminPage + 7 {
			msgs = append(msgs, msg("a", "", i))
		}
		e.write(t, w, msgs...)
		_, err := e.db.Exec(`UPDATE ` + schema.OutboxTable + ` SET state = 2, parked_reason = 'x'`)
		require.NoError(t, err)
		n, err := a.Retry(t.Context(), Filter{Limit: adminPage + 1})
		require.NoError(t, err)
		require.Equal(t, adminPage+1, n)
		n, err = a.Discard(t.Context(), Filter{})
		require.NoError(t, err)
		require.Equal(t, adminPage+6, n)

		b := newFakeBroker()
		b.before = func(context.Context, string, []*message.Message) error { return errBroker }
		r := e.relay(t, b, func(c *RelayConfig) { c.OutageCap = time.Hour })
		run(t, r)
		eventually(t, "the outage is seen", func() bool {
			st, err := a.Status(t.Context())
			require.NoError(t, err)
			return st.Outage && st.ResumesIn > 0 && st.Backlog == adminPage+1
		})
	})
	_, err := NewAdmin(AdminConfig{Table: "a b"})
	for _, want := range []string{"unknown dialect", "DB is nil", "Table"} {
		require.ErrorContains(t, err, want)
	}
}
