package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestKill sends each service a SIGKILL at the moments where a careless system
// loses an order, charges twice or mails twice: after a handler's commit and
// before its ack, after the call to the outside and before its commit, and after
// the relay's publish and before its mark. Requirement: no lost order, one
// charge, one mail.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		service, point string
		everywhere     bool // on all kinds; else on the two that hold the broker's and the database's part
	}{
		{"orders", "relay.published", true},
		{"orders", "handler.committed.confirm-order", false},
		{"payments", "handler.called.charge-order", true},
		{"payments", "handler.committed.charge-order", true},
		{"payments", "relay.published", false},
		{"notifications", "handler.committed.order-confirmed-email", false},
		{"notifications", "relay.published", false},
	} {
		on := []kind{embedded, servers}
		if c.everywhere {
			on = kinds
		}
		for _, k := range on {
			t.Run(fmt.Sprintf("%s/%s/%s", k, c.service, c.point), func(t *testing.T) {
				t.Parallel()
				s := newSystem(t, k)
				box := newMailbox(t)
				marker := filepath.Join(s.dir, "killed")
				armed := append([]string{"HEADRACE_FAILPOINT=" + c.point, "HEADRACE_FAILPOINT_MARKER=" + marker}, box.env()...)
				others := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == c.service })
				s.start(box.env(), others...)
				s.start(armed, c.service)

				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
				defer cancel()
				const orders = 5
				// A mail that is on its way when its sender dies has no known
				// outcome (see the next test), so there only one is on its way.
				first := orders
				if c.service == "notifications" {
					first = 1
				}
				placed := make(chan error, 1)
				go func() { placed <- s.placeMany(ctx, 0, first) }()
				s.procs[c.service].awaitDeath()
				s.start(box.env(), c.service)
				require.NoError(t, <-placed)
				require.NoError(t, s.placeMany(ctx, first, orders))
				require.FileExists(t, marker)
				s.requireExactlyOnce(orders)
				eventually(t, 30*time.Second, func() error {
					if n := len(box.ids()); n < orders {
						return fmt.Errorf("%d of %d mails", n, orders)
					}
					return nil
				})
				for _, n := range names {
					s.procs[n].stop()
				}
				ids := box.ids()
				slices.Sort(ids)
				require.Len(t, slices.Compact(ids), orders, "each order has one mail")
				require.Len(t, box.ids(), orders, "no mail was sent twice")
			})
		}
	}
}

// TestKillBetweenSendAndCommit kills the notifications service after the mail
// server took a mail and before that is on record. SMTP can't tell whether a mail
// was sent: it must not be sent again, and a human must see it.
func TestKillBetweenSendAndCommit(t *testing.T) {
	t.Parallel()
	s := newSystem(t, embedded)
	box := newMailbox(t)
	s.start(box.env(), "orders", "payments")
	s.start(append([]string{"HEADRACE_FAILPOINT=handler.called.order-confirmed-email"}, box.env()...), "notifications")

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := s.place(ctx, "order", "tok_ok")
	require.NoError(t, err)
	s.procs["notifications"].awaitDeath()
	s.start(box.env(), "notifications")

	var page struct {
		Notifications []struct{ State, Reason string }
	}
	eventually(t, 30*time.Second, func() error {
		s.get("notifications", "/v1/notifications?state=unknown", &page)
		if len(page.Notifications) != 1 {
			return fmt.Errorf("%d notifications with an unknown outcome", len(page.Notifications))
		}
		return nil
	})
	require.Equal(t, "outcome_unknown", page.Notifications[0].Reason)
	require.Len(t, box.ids(), 1)
}

// placeMany places the orders from..to-1, one after the other.
func (s *system) placeMany(ctx context.Context, from, to int) error {
	for i := from; i < to; i++ {
		if _, err := s.place(ctx, fmt.Sprintf("order-%d", i), "tok_ok"); err != nil {
			return err
		}
	}
	return nil
}

// requireExactlyOnce waits until every one of n placed orders is confirmed, and
// checks the gateway's ledger: one charge each.
func (s *system) requireExactlyOnce(n int) {
	s.t.Helper()
	eventually(s.t, 2*time.Minute, func() error {
		if left := s.count("orders", "/v1/orders?state=placed", "orders", 1); left > 0 {
			return fmt.Errorf("orders are still placed and not confirmed")
		}
		return nil
	})
	require.Equal(s.t, n, s.count("orders", "/v1/orders?state=confirmed", "orders", n+1), "confirmed orders")
	sum := s.ledger()
	require.Equal(s.t, n, sum.Captured, "charges")
	require.Equal(s.t, n, sum.OrdersCharged, "orders charged")
	require.Zero(s.t, sum.OrdersChargedTwice, "orders charged twice")
	require.Zero(s.t, sum.Open, "charges that were begun and not ended")
}

// summary is what the sandbox gateway's ledger holds.
type summary struct {
	Captured           int `json:"captured"`
	Refunded           int `json:"refunded"`
	Declined           int `json:"declined"`
	Open               int `json:"open"`
	OrdersCharged      int `json:"orders_charged"`
	OrdersChargedTwice int `json:"orders_charged_twice"`
}

func (s *system) ledger() summary {
	s.t.Helper()
	var ledger struct{ Summary summary }
	s.get("payments", "/v1/sandbox/charges?limit=0", &ledger)
	return ledger.Summary
}

// count reads a list page by page, up to limit entries.
func (s *system) count(service, path, field string, limit int) int {
	s.t.Helper()
	total, cursor := 0, ""
	for {
		page := map[string]any{}
		p := path + "&limit=100"
		if cursor != "" {
			p += "&cursor=" + cursor
		}
		s.get(service, p, &page)
		entries, _ := page[field].([]any)
		total += len(entries)
		cursor, _ = page["next_cursor"].(string)
		if cursor == "" || total >= limit {
			return total
		}
	}
}
