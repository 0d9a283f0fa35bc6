package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/program"
	"github.com/headrace-go/headrace/framework/testenv"
)

// TestOrders is what the system is for, on every broker and database: orders that
// are paid, orders whose payment is declined, and orders that are cancelled after
// the capture and refunded, while each service is killed once. HEADRACE_ENV alone
// moves the services from one to the next.
func TestOrders(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(string(k), func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			step := func(what string) { t.Logf("%6s  %s", time.Since(began).Round(10*time.Millisecond), what) }
			s := newSystem(t, k)
			box := newMailbox(t)
			s.start(box.env())
			step("started")
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			const n = 4 // of each sort
			var cancelled []string
			for i := range n {
				_, err := s.place(ctx, fmt.Sprintf("paid-%d", i), "tok_ok")
				require.NoError(t, err)
				_, err = s.place(ctx, fmt.Sprintf("declined-%d", i), "tok_declined")
				require.NoError(t, err)
				id, err := s.place(ctx, fmt.Sprintf("cancelled-%d", i), "tok_ok")
				require.NoError(t, err)
				cancelled = append(cancelled, id)
				// One after the other is killed, with work of the ones before under way.
				// The sender of mails only while none is on its way: SMTP can't tell
				// what became of one, so it would rightly wait for a person.
				switch i {
				case 1:
					s.procs["payments"].kill()
					s.start(box.env(), "payments")
				case 2:
					s.procs["orders"].kill()
					s.start(box.env(), "orders")
				}
			}
			step("all placed, payments and orders killed")
			for _, id := range cancelled {
				s.awaitState(id, "confirmed")
			}
			s.awaitMails(box, 2*n+2*n)
			step("first mails sent")
			s.procs["notifications"].kill()
			for _, id := range cancelled {
				require.NoError(t, s.cancel(ctx, id))
			}
			s.start(box.env(), "notifications")

			// A confirmation for each paid one; a failed payment and a cancellation for
			// each declined one; a cancellation and a refund for each cancelled one.
			s.awaitMails(box, 2*n+2*n+2*n)
			eventually(t, time.Minute, func() error {
				if got := s.count("orders", "/v1/orders?state=cancelled", "orders", 3*n); got != 2*n {
					return fmt.Errorf("%d of %d orders cancelled", got, 2*n)
				}
				return nil
			})
			require.Equal(t, n, s.count("orders", "/v1/orders?state=confirmed", "orders", 3*n))
			require.Zero(t, s.count("orders", "/v1/orders?state=placed", "orders", 3*n))
			sum := s.ledger()
			require.Equal(t, []int{2 * n, n, n, 0, 2 * n, 0},
				[]int{sum.Captured, sum.Refunded, sum.Declined, sum.Open, sum.OrdersCharged, sum.OrdersChargedTwice},
				"captured, refunded, declined, open, orders charged, orders charged twice: %+v", sum)
			step("all ended")
			for _, name := range names {
				s.procs[name].stop()
			}
			step("drained")
			ids := box.ids()
			slices.Sort(ids)
			require.Len(t, slices.Compact(slices.Clone(ids)), 6*n, "each event has one mail")
			require.Len(t, ids, 6*n, "no mail was sent twice")
		})
	}
}

// awaitState waits until the order is in the state.
func (s *system) awaitState(id, state string) {
	s.t.Helper()
	eventually(s.t, time.Minute, func() error {
		var o struct{ State string }
		s.get("orders", "/v1/orders/"+id, &o)
		if o.State != state {
			return fmt.Errorf("order %s is %s, not %s", id, o.State, state)
		}
		return nil
	})
}

func (s *system) awaitMails(box *mailbox, n int) {
	s.t.Helper()
	eventually(s.t, time.Minute, func() error {
		if got := len(box.ids()); got < n {
			return fmt.Errorf("%d of %d mails", got, n)
		}
		return nil
	})
	// The send is on record before its sender may be killed.
	eventually(s.t, time.Minute, func() error {
		if got := s.count("notifications", "/v1/notifications?state=sent", "notifications", n+1); got < n {
			return fmt.Errorf("%d of %d notifications sent", got, n)
		}
		return nil
	})
}

// cancel cancels an order, again while the service is away.
func (s *system) cancel(ctx context.Context, id string) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.procs["orders"].http+"/v1/orders/"+id+"/cancel",
			bytes.NewReader([]byte(`{"reason":"changed my mind"}`)))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			b, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			switch {
			case resp.StatusCode/100 == 2:
				return nil
			case resp.StatusCode < 500:
				return fmt.Errorf("cancel order %s: %s: %s", id, resp.Status, b)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cancel order %s: %w", id, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// TestProductionVerifies starts the orders service with the profile production on
// SNS and SQS: it creates nothing and refuses to start where a queue is missing;
// once they are there it runs.
func TestProductionVerifies(t *testing.T) {
	t.Parallel()
	endpoint := testenv.AWS(t).Endpoint()
	s := newSystem(t, aws)
	dsn := testenv.PostgresDSN(t)
	s.addresses["orders"] = []string{
		"HEADRACE_ENV=production", "HEADRACE_DATABASE_DSN=" + dsn, "HEADRACE_BROKER_AWS_ENDPOINT=" + endpoint, "HEADRACE_BROKER_AWS_WAIT_TIME=1s",
	}
	out, err := s.runOrders("migrate")
	require.NoError(t, err, "%s", out)
	out, err = s.runOrders()
	require.Error(t, err)
	require.Contains(t, out, "create topics and groups on broker \"sns\"")
	s.start([]string{"HEADRACE_BROKER_AWS_TOPOLOGY=ensure"}, "orders")
	s.procs["orders"].stop()
	s.start(nil, "orders")
	s.procs["orders"].stop()
}

// runOrders runs the orders program to its end.
func (s *system) runOrders(args ...string) (string, error) {
	cmd := exec.Command(bin(s.t, "orders"), args...)
	cmd.Dir, cmd.Env = s.dir, s.environ("orders")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestEnvCheck asks for the needs of every service in production, on a machine
// that has none of its secrets.
func TestEnvCheck(t *testing.T) {
	t.Parallel()
	out, err := command(t, "headrace", "env", "check", "--dir", "..", "--env", "production", "--json")
	require.NoError(t, err, "%s", out)
	var reports []program.NeedsReport
	require.NoError(t, json.Unmarshal(out, &reports), "%s", out)
	require.Len(t, reports, len(names))
	for _, r := range reports {
		require.Equal(t, []string{"production", "sns"}, []string{r.Env, r.Broker})
		require.NotEmpty(t, r.Needs)
		require.Empty(t, r.Refused)
		require.NotEmpty(t, r.Missing, "addresses and secrets are not in the profile")
	}
	// Standard queues keep no order, and the services need it.
	cmd := exec.Command(bin(t, "headrace"), "env", "check", "--dir", "..", "--env", "production")
	cmd.Env = append(environ(), "HEADRACE_BROKER_AWS_FIFO=false")
	out, err = cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "these would not start: orders, payments")
	require.Contains(t, string(out), "payments would not start: handler \"charge-order\": OrderByKey on broker \"sns\"")
}
