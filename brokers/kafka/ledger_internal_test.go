package kafka

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLedgerRoundTrip(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(time.Now().UnixMilli())
	for _, l := range []ledger{
		{next: 7},
		{next: 1 << 40, notes: []note{{offset: 7, count: 0}, {offset: 9, count: 300}, {offset: 1<<40 - 1, count: 1}}},
		{next: 20, notes: []note{
			{offset: 7, count: 2, holder: "a", until: now.Add(time.Minute)},
			{offset: 8, count: 1, holder: "b", until: now},
			{offset: 9, count: 1, holder: "a", until: now.Add(time.Second)},
			{offset: 12, count: 4, due: now.Add(1000 * time.Hour)},
			{offset: 13, settled: true},
		}},
	} {
		base := l.next
		if len(l.notes) > 0 {
			base = l.notes[0].offset
		}
		got, err := decodeLedger(base, l.encode(base))
		require.NoError(t, err)
		require.Equal(t, l.next, got.next)
		require.Equal(t, l.notes, got.notes)
	}
}

// The largest ledger that there can be fits into what Kafka takes by default.
func TestLedgerFits(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := ledger{}
	at := int64(1000)
	for i := range MaxUnsettled {
		n := note{offset: at, count: rand.IntN(1000)}
		if i%2 == 0 {
			n.due = now.Add(time.Duration(rand.Int64N(int64(365 * 24 * time.Hour))))
		} else {
			n.holder, n.until = fmt.Sprintf("member-%06d", i%8), now.Add(time.Duration(rand.Int64N(int64(12*time.Hour))))
		}
		l.notes = append(l.notes, n)
		at += 1 + rand.Int64N(1<<14)
	}
	l.next = at
	require.Less(t, len(l.encode(1000)), 4096, "offset.metadata.max.bytes")
}

func TestLedgerOfOthers(t *testing.T) {
	t.Parallel()
	for _, metadata := range []string{"", "sarama", "{}", "AQ", strings.Repeat("A", 5000), ledger{next: 9}.encode(7)[:2]} {
		l, err := decodeLedger(7, metadata)
		require.Error(t, err, metadata)
		require.Equal(t, ledger{next: 7}, l)
	}
}

func FuzzLedger(f *testing.F) {
	f.Add(ledger{next: 9, notes: []note{{offset: 8, count: 2}}}.encode(8))
	f.Fuzz(func(t *testing.T, metadata string) {
		l, err := decodeLedger(8, metadata)
		if err == nil {
			require.GreaterOrEqual(t, l.next, int64(8))
			last := int64(8)
			for _, n := range l.notes {
				require.GreaterOrEqual(t, n.offset, last)
				last = n.offset
			}
		}
	})
}

func TestNames(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for _, name := range []string{
		"order.placed", "Order.Placed", "order-placed", "order_placed", "svc.order_placed", "svc.order.placed", "svc-order_placed",
		".", "..", "a b", "a/b", "ä", strings.Repeat("x", 249), strings.Repeat("x", 250), strings.Repeat("x", 250) + "y",
		"payments.charge_order.dlq", deletedTopic,
	} {
		got := Config{}.TopicName(name)
		require.Regexp(t, `^[a-zA-Z0-9._-]{1,249}$`, got)
		require.NotEqual(t, deletedTopic, got)
		require.Empty(t, seen[got], "%q and %q", name, seen[got])
		seen[got] = name
		require.LessOrEqual(t, len(Config{Prefix: strings.Repeat("p", MaxPrefix)}.TopicName(name)), 249)
	}
	require.Equal(t, "staging.order.placed", Config{Prefix: "staging."}.TopicName("order.placed"))
}
