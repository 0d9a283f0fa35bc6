package e2e

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// TestTenThousandOrders sends 10,000 orders through the three services on Redis
// and Postgres, and kills each service once on the way, at a third, at half and
// at two thirds. Every order ends with exactly one charge and one confirmation.
func TestTenThousandOrders(t *testing.T) {
	orders := 10_000
	if testing.Short() {
		orders = 500
	}
	s := newSystem(t, servers)
	s.start(nil)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()

	kills := map[int64]string{
		int64(orders / 3):     "payments",
		int64(orders / 2):     "notifications",
		int64(orders * 2 / 3): "orders",
	}
	began := time.Now()
	victims := make(chan string, len(kills))
	var placed atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	ended := make(chan error, 1)
	go func() {
		for i := range orders {
			g.Go(func() error {
				_, err := s.place(gctx, fmt.Sprintf("order-%d", i), "tok_ok")
				if victim, ok := kills[placed.Add(1)]; ok {
					victims <- victim
				}
				return err
			})
		}
		ended <- g.Wait()
	}()
	for range kills {
		victim := <-victims
		s.procs[victim].kill()
		s.start(nil, victim)
	}
	require.NoError(t, <-ended)
	t.Logf("placed %d orders in %s", orders, time.Since(began).Round(time.Millisecond))

	s.requireExactlyOnce(orders)
	eventually(t, 2*time.Minute, func() error {
		if n := len(s.mails()); n != orders {
			return fmt.Errorf("%d of %d mails", n, orders)
		}
		return nil
	})
	t.Logf("all %d confirmed, charged once and mailed once after %s", orders, time.Since(began).Round(time.Millisecond))
	require.Equal(t, orders, s.count("notifications", "/v1/notifications?state=sent", "notifications", orders+1), "notifications sent")
	for _, n := range names {
		s.procs[n].stop()
	}
}
