package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/schema"
)

// B11: an oversize, an unknown-topic and a corrupt row ahead of 50 good ones.
func TestBadRowsParkAndGoodOnesFlow(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		b := newFakeBroker()
		b.refuse = func(topic string, m *message.Message) error {
			switch {
			case string(m.Payload) == "777":
				return fmt.Errorf("777 bytes: %w", broker.ErrRejected)
			case topic == "nowhere":
				return fmt.Errorf("no such topic")
			}
			return nil
		}
		reg := prometheus.NewRegistry()
		r := e.relay(t, b, func(c *RelayConfig) {
			c.MaxAttempts, c.Metrics, c.StatsInterval = 3, reg, 20*time.Millisecond
			c.Probe = func(context.Context) error { return nil }
		})
		w := e.writer(t, r.Wake)
		_, err := e.db.Exec(`INSERT INTO ` + schema.OutboxTable + ` (uuid, payload, shard) VALUES ('c', 'not json', 3), ('n', NULL, 4), ('t', '{"uuid":"x"}', 5)`)
		require.NoError(t, err)
		e.write(t, w, msg("orders", "big", 777), msg("orders", "big", 0), msg("nowhere", "lost", 0))
		for i := range 49 {
			e.write(t, w, msg("orders", fmt.Sprint("k", i%7), i/7))
		}
		run(t, r)

		requireOnce(t, b.await(t, 50), 50)
		requireOrder(t, b.all())
		// Nothing else is there while the last one of them backs off.
		eventually(t, "five rows are parked", func() bool { return e.count(t, "state = 2") == 5 })
		require.NoError(t, r.Flush(t.Context()))
		reasons := map[string]string{}
		rows, err := e.db.Query(`SELECT uuid, parked_reason, attempts FROM ` + schema.OutboxTable + ` WHERE state = 2`)
		require.NoError(t, err)
		defer rows.Close()
		for rows.Next() {
			var id, reason string
			var attempts int
			require.NoError(t, rows.Scan(&id, &reason, &attempts))
			reasons[reason] = id
			if strings.Contains(reason, "no such topic") {
				require.GreaterOrEqual(t, attempts, 3, "it backed off before it was parked")
			} else {
				require.Equal(t, 1, attempts, reason)
			}
		}
		all := fmt.Sprint(reasons)
		for _, want := range []string{"777 bytes", "no such topic", "corrupt envelope: invalid character", "no destination topic", "unexpected end"} {
			require.Contains(t, all, want)
		}
		st, err := r.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, Stats{Parked: 5}, st)
		requireOrder(t, b.all())
		eventually(t, "the metrics say so", func() bool {
			return testutil.ToFloat64(r.metrics.relayed) == 50 &&
				testutil.ToFloat64(r.metrics.failed.WithLabelValues("rejected")) == 1 &&
				testutil.ToFloat64(r.metrics.failed.WithLabelValues("corrupt")) == 3
		})
		require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP headrace_outbox_parked Rows that were given up and wait for an operator.
# TYPE headrace_outbox_parked gauge
headrace_outbox_parked 5
# HELP headrace_outbox_backlog Rows that wait to be published, those held back included.
# TYPE headrace_outbox_backlog gauge
headrace_outbox_backlog 0
`), "headrace_outbox_parked", "headrace_outbox_backlog"))
	})
}

// A row that is all alone is parked for failing only when the broker is known to
// be up, has answered, and too few rows wait for it to be the broker's fault.
func TestLoneRow(t *testing.T) {
	up := func(context.Context) error { return nil }
	for name, c := range map[string]struct {
		probe  func(context.Context) error
		err    error
		rows   int
		parked int
	}{
		"up":             {up, errors.New("no such topic"), 1, 1},
		"several":        {up, errors.New("no such topic"), 5, 5},
		"nobody to ask":  {nil, errors.New("no such topic"), 1, 0},
		"down":           {func(context.Context) error { return errBroker }, errors.New("no such topic"), 1, 0},
		"no answer":      {up, fmt.Errorf("dial: %w", syscall.ECONNREFUSED), 1, 0},
		"out of time":    {up, context.DeadlineExceeded, 1, 0},
		"takes nothing":  {up, errors.New("OOM"), loneRows + 1, 0},
		"never for that": {up, errors.New("no such topic"), 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, "sqlite")
			b := newFakeBroker()
			b.refuse = func(string, *message.Message) error { return c.err }
			r := e.relay(t, b, func(cfg *RelayConfig) {
				cfg.MaxAttempts, cfg.Probe, cfg.OutageCap, cfg.BackoffBase, cfg.BackoffCap = 3, c.probe, time.Millisecond, time.Millisecond, 2*time.Millisecond
				if name == "never for that" {
					cfg.MaxAttempts = -1
				}
			})
			w := e.writer(t, r.Wake)
			for i := range c.rows {
				e.write(t, w, msg("orders", fmt.Sprint("k", i), 0))
			}
			run(t, r)
			if c.parked > 0 {
				eventually(t, "the row is parked", func() bool { return e.count(t, "state = 2") == c.parked })
				require.Zero(t, e.count(t, "attempts < 3"))
			} else {
				eventually(t, "it is tried on", func() bool { return e.count(t, "attempts > 8") == c.rows })
				require.Zero(t, e.count(t, "state = 2"))
			}
		})
	}
}

// A row that fails holds back its own key, in order, and nobody else.
func TestFailedRowHoldsItsKeyAlone(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		b := newFakeBroker()
		b.refuse = func(_ string, m *message.Message) error {
			if m.Metadata.Get("ordering_key") == "sick" {
				return fmt.Errorf("not now")
			}
			return nil
		}
		r := e.relay(t, b)
		w := e.writer(t, r.Wake)
		run(t, r)
		e.write(t, w, msg("orders", "sick", 0), msg("orders", "sick", 1), msg("orders", "well", 0))
		b.await(t, 1)
		eventually(t, "the sick rows are held", func() bool { return e.count(t, "state = 1") == 2 })
		for i := 2; i < 20; i++ { // later rows of the key queue behind
			e.write(t, w, msg("orders", "sick", i), msg("orders", "well", i-1))
		}
		b.await(t, 19)
		eventually(t, "all sick rows wait", func() bool { return e.count(t, "acked = FALSE") == 20 })
		b.set(func(b *fakeBroker) { b.refuse = nil })
		got := b.await(t, 39)
		requireOnce(t, got, 39)
		requireOrder(t, got)
	})
}

// A message in the middle of a call fails and comes good later: no later one of
// its key is published before it, whether the publisher keeps the order within a
// call or confirms what it can; and only the former gets several of a key in one.
func TestMiddleEntryFails(t *testing.T) {
	for _, keeps := range []bool{true, false} {
		t.Run(fmt.Sprintf("keeps=%t", keeps), func(t *testing.T) {
			eachDialect(t, func(t *testing.T, e env) {
				b := newFakeBroker()
				b.keepsOrder = keeps
				b.before = func(_ context.Context, _ string, msgs []*message.Message) error {
					seen := map[string]bool{}
					for _, m := range msgs {
						key := m.Metadata.Get("ordering_key")
						if seen[key] && !keeps {
							t.Errorf("two messages of key %s in one call", key)
						}
						seen[key] = true
					}
					return nil
				}
				tries := map[string]int{}
				b.refuse = func(_ string, m *message.Message) error {
					if n := string(m.Payload); n == "2" || n == "5" {
						if tries[m.UUID]++; tries[m.UUID] < 3 {
							return fmt.Errorf("throttled")
						}
					}
					return nil
				}
				r := e.relay(t, b, func(c *RelayConfig) { c.Parallelism = 1 })
				w := e.writer(t, r.Wake)
				var msgs []Message
				for i := range 40 {
					topic := "a"
					if i/4 == 7 { // another topic in the middle of each key
						topic = "b"
					}
					msgs = append(msgs, msg(topic, fmt.Sprint("k", i%4), i/4))
				}
				e.write(t, w, msgs...)
				run(t, r)
				got := b.await(t, 40)
				requireOnce(t, got, 40)
				requireOrder(t, got)
				eventually(t, "the table is empty", func() bool { return e.count(t, "1=1") == 0 })
			})
		})
	}
}

// A key's rows go in as few calls as their order allows.
func TestWaves(t *testing.T) {
	t.Parallel()
	rows := []row{{key: "a", topic: "x"}, {topic: "x"}, {key: "a", topic: "x"}, {key: "b", topic: "x"}, {key: "a", topic: "y"}, {topic: "y"}, {key: "a", topic: "y"}}
	require.Equal(t, [][]int{{0, 1, 2, 3, 5}, {4, 6}}, waves(rows, true))
	require.Equal(t, [][]int{{0, 1, 3, 5}, {2}, {4}, {6}}, waves(rows, false))
}

// With StrictOrder a parked row parks its key's later rows; without it they go.
func TestStrictOrder(t *testing.T) {
	for _, strict := range []bool{true, false} {
		t.Run(fmt.Sprint(strict), func(t *testing.T) {
			eachDialect(t, func(t *testing.T, e env) {
				b := newFakeBroker()
				b.refuse = func(_ string, m *message.Message) error {
					if m.Metadata.Get("ordering_key") == "k" && string(m.Payload) == "1" {
						return broker.ErrRejected
					}
					return nil
				}
				r := e.relay(t, b, func(c *RelayConfig) { c.StrictOrder = strict })
				w := e.writer(t, r.Wake)
				e.write(t, w, msg("a", "k", 0), msg("a", "k", 1), msg("b", "k", 2), msg("a", "other", 0))
				run(t, r)
				want := 3
				if strict {
					want = 2
				}
				b.await(t, want)
				require.NoError(t, r.Flush(t.Context()))
				e.write(t, w, msg("a", "k", 3), msg("a", "other", 1))
				require.NoError(t, r.Flush(t.Context()))
				if strict {
					requireOnce(t, b.all(), 3)
					require.Equal(t, 3, e.count(t, "state = 2"))
					require.Equal(t, 2, e.count(t, "state = 2 AND parked_reason LIKE 'behind %'"))
				} else {
					requireOnce(t, b.all(), 5)
					require.Equal(t, 1, e.count(t, "state = 2"))
				}
			})
		})
	}
}

// An outage parks nothing, however long, and what it held back goes out as soon
// as the broker takes messages again.
func TestOutageParksNothing(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		b := newFakeBroker()
		b.before = func(context.Context, string, []*message.Message) error { return errBroker }
		r := e.relay(t, b, func(c *RelayConfig) {
			c.MaxAttempts, c.BatchSize, c.BackoffCap, c.OutageCap = 2, 20, time.Hour, 20*time.Millisecond
		})
		w := e.writer(t, r.Wake)
		for i := range 300 {
			e.write(t, w, msg("orders", fmt.Sprint("k", i%30), i/30))
		}
		run(t, r)
		eventually(t, "many attempts fail", func() bool { return b.attempts() > 8 })
		require.Zero(t, e.count(t, "state = 2"))
		require.Empty(t, b.all())
		b.set(func(b *fakeBroker) { b.before = nil })
		got := b.await(t, 300)
		requireOnce(t, got, 300)
		requireOrder(t, got)
		require.NoError(t, r.Flush(t.Context()))

		require.Zero(t, e.count(t, "1=1"))
	})
}

// B27: a broker that accepts and never answers. Publishing has a deadline, the
// rate of attempts is that of one relay however many there are, and the pool
// serves others meanwhile.
func TestSilentBroker(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		const deadline = 100 * time.Millisecond
		b := newFakeBroker()
		b.before = func(ctx context.Context, _ string, _ []*message.Message) error {
			<-ctx.Done()
			return ctx.Err()
		}
		var w *Writer
		for range 4 {
			r := e.relay(t, b, func(c *RelayConfig) {
				c.BatchSize, c.PublishTimeout, c.OutageCap, c.BackoffCap = 10, deadline, 200*time.Millisecond, time.Hour
			})
			w = e.writer(t, r.Wake)
			run(t, r)
		}
		for i := range 200 {
			e.write(t, w, msg("orders", fmt.Sprint("k", i%100), i/100))
		}
		eventually(t, "the relays notice", func() bool {
			var failures int
			_ = e.db.QueryRow(`SELECT failures FROM ` + schema.ControlTable).Scan(&failures)
			return failures >= 3
		})
		before := b.attempts()
		window := time.NewTimer(time.Second)
		defer window.Stop()
		queries, slowest := 0, time.Duration(0)
		for open := true; open; {
			select {
			case <-window.C:
				open = false
			default:
				began := time.Now()
				var one int
				require.NoError(t, e.db.QueryRow(`SELECT 1`).Scan(&one))
				slowest = max(slowest, time.Since(began))
				queries++
			}
		}
		require.Less(t, slowest, time.Second, "the pool has connections for others")
		// A pause of 100 to 200 ms and a deadline of 100 ms: 5 a second at most for
		// all four; free running they would be 40.
		require.LessOrEqual(t, b.attempts()-before, 8)
		require.Zero(t, e.count(t, "state = 2"))

		b.set(func(b *fakeBroker) { b.before = nil })
		got := b.await(t, 200)
		requireOrder(t, got)
	})
}

// A publisher that returns neither at its deadline nor later is left to itself.
func TestPublisherThatIgnoresItsContext(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "sqlite")
	release := make(chan struct{})
	defer close(release)
	b := newFakeBroker()
	b.before = func(_ context.Context, topic string, _ []*message.Message) error {
		if topic == "hung" {
			<-release
			return errBroker
		}
		return nil
	}
	r := e.relay(t, b, func(c *RelayConfig) {
		c.PublishTimeout, c.BackoffBase, c.BackoffCap = 50*time.Millisecond, time.Hour, time.Hour
	})
	w := e.writer(t, r.Wake)
	stop := run(t, r)
	e.write(t, w, msg("hung", "", 0), msg("orders", "", 0))
	b.await(t, 1)
	eventually(t, "the hung row is held back", func() bool { return e.count(t, "state = 1 AND last_error LIKE '%did not return%'") == 1 })
	stop()
}

func TestPublisherPanic(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "sqlite")
	b := newFakeBroker()
	b.before = func(context.Context, string, []*message.Message) error { panic("no") }
	r := e.relay(t, b)
	w := e.writer(t, r.Wake)
	run(t, r)
	e.write(t, w, msg("orders", "", 0))
	eventually(t, "the panic is an error", func() bool { return e.count(t, "last_error LIKE '%panicked: no%'") == 1 })
	b.set(func(b *fakeBroker) { b.before = nil })
	b.await(t, 1)
}

// An adapter that rejects a batch without saying which entry costs only that one.
func TestRejectionWithoutIndex(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		b := newFakeBroker()
		b.before = func(_ context.Context, _ string, msgs []*message.Message) error {
			for _, m := range msgs {
				if string(m.Payload) == "13" {
					return fmt.Errorf("one of %d: %w", len(msgs), broker.ErrRejected)
				}
			}
			return nil
		}
		r := e.relay(t, b)
		w := e.writer(t, r.Wake)
		for i := range 20 {
			e.write(t, w, msg("orders", "", i))
		}
		require.NoError(t, r.Flush(t.Context()))
		requireOnce(t, b.all(), 19)
		require.Equal(t, 1, e.count(t, "state = 2"))
	})
}
