package sqldb

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/sqltx"
)

func TestItemsRoundTrip(t *testing.T) {
	t.Parallel()
	for range 200 {
		n := 1 + rand.IntN(200)
		items := make([]item, n)
		keys := rand.IntN(2) == 0
		for i := range items {
			items[i] = item{off: rand.Int64N(1 << 62), count: rand.IntN(1000)}
			if keys && rand.IntN(3) > 0 {
				items[i].key = rand.Uint64()
			}
		}
		sortItems(items)
		got, err := decodeItems(nil, encodeItems(items))
		require.NoError(t, err)
		require.Equal(t, items, got)
	}
}

func TestItemsAreSmall(t *testing.T) {
	t.Parallel()
	items := make([]item, claimItems)
	for i := range items {
		items[i] = item{off: int64(1_000_000 + i), count: 1}
	}
	require.Less(t, len(encodeItems(items)), 300)
}

func FuzzItems(f *testing.F) {
	f.Add(encodeItems([]item{{off: 5, count: 1}, {off: 9, count: 300, key: 7}}))
	f.Add([]byte{})
	f.Add([]byte{9, 1, 2})
	f.Add([]byte{2, 1, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		items, err := decodeItems(nil, b)
		if err != nil {
			require.ErrorIs(t, err, errClaimBytes)
			return
		}
		if len(items) > 0 {
			again, err := decodeItems(nil, encodeItems(items))
			require.NoError(t, err)
			require.Equal(t, items, again)
		}
	})
}

// FuzzMetadata: the fast reader and the standard one agree.
func FuzzMetadata(f *testing.F) {
	for _, s := range []string{`{}`, ` { } `, `{"a":"b"}`, `{"a": "b", "c":"d"}`, `{"a":"\u0041"}`, `{"a":1}`, `{"a":"b",}`, `[1]`, `null`, `{"a":"b"}x`, `{"ä":"ö"}`, "{\"a\":\"b\tc\"}", `{"a":"1","a":"2"}`, `{`, `{"a`, `{"a":"b"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := parseFlat(b)
		if !ok {
			return
		}
		var want message.Metadata
		require.NoError(t, json.Unmarshal(b, &want), "%q", b)
		require.Equal(t, want, got, "%q", b)
	})
}

func TestEncodeRefuses(t *testing.T) {
	t.Parallel()
	for name, msg := range map[string]*message.Message{
		"long id":            message.NewMessage(strings.Repeat("x", maxUUIDBytes+1), nil),
		"NUL in id":          message.NewMessage("a\x00b", nil),
		"id is not UTF-8":    message.NewMessage("a\xff", nil),
		"metadata not UTF-8": {UUID: "a", Metadata: message.Metadata{"k": "\xff"}},
		"key not UTF-8":      {UUID: "a", Metadata: message.Metadata{"\xff": "v"}},
		"too large":          message.NewMessage("a", make([]byte, 101)),
	} {
		_, err := encode(msg, 100)
		require.ErrorIs(t, err, broker.ErrRejected, name)
	}
	e, err := encode(message.NewMessage("a", nil), 100)
	require.NoError(t, err)
	require.Equal(t, "{}", e.metadata)
	require.NotNil(t, e.payload, "no NULL for an empty payload")
}

func TestMessagesTable(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 64)
	topics := []string{
		"order.placed", "order-placed", "order_placed", "orderplaced", "Order.placed", "ORDER.PLACED", "order..placed",
		"order placed", "order/placed", "ordér", "offsets_order.placed", "offsets_", "a\"b", "a`b", "a;b", "a\x00b", "\xff", "%", "~",
		long, long + "a", long + "b", strings.Repeat("x", 45), strings.Repeat("x", 46), "payments.charge-order.dlq",
	}
	for _, d := range []sqltx.Dialect{sqltx.Postgres, sqltx.MySQL, sqltx.SQLite} {
		seen := make(map[string]string)
		for _, topic := range topics {
			name := MessagesTable(d, topic)
			require.LessOrEqual(t, len(name), 63, topic)
			folded := name
			if d != sqltx.Postgres {
				folded = strings.ToLower(name)
			}
			require.Empty(t, seen[folded], "%s: %q and %q share %s", d, seen[folded], topic, name)
			seen[folded] = topic
			require.NotEqual(t, "watermill_offsets_order.placed", name, "a stock group's table")
		}
		require.Equal(t, "watermill_order.placed", MessagesTable(d, "order.placed"), "the stock name")
		require.Equal(t, "watermill_"+strings.Repeat("x", 45), MessagesTable(d, strings.Repeat("x", 45)))
	}
	require.Equal(t, "watermill_Order", MessagesTable(sqltx.Postgres, "Order"))
	require.NotEqual(t, groupKey("ab", "c"), groupKey("a", "bc"))
}

func TestGapWithout(t *testing.T) {
	t.Parallel()
	g := gap{first: 5, last: 9, seen: 1}
	at := func(first, last int64) gap { return gap{first: first, last: last, seen: 1} }
	for _, c := range []struct {
		offs    []int64
		rest    []gap
		touched bool
	}{
		{[]int64{1, 4, 10}, []gap{at(5, 9)}, false},
		{[]int64{5}, []gap{at(6, 9)}, true},
		{[]int64{9}, []gap{at(5, 8)}, true},
		{[]int64{7}, []gap{at(5, 6), at(8, 9)}, true},
		{[]int64{5, 6, 7, 8, 9}, nil, true},
		{[]int64{4, 6, 8, 12}, []gap{at(5, 5), at(7, 7), at(9, 9)}, true},
	} {
		rest, touched := g.without(c.offs)
		require.Equal(t, c.rest, rest)
		require.Equal(t, c.touched, touched)
	}
}

func TestMySQLVersion(t *testing.T) {
	t.Parallel()
	for v, want := range map[string]bool{
		"8.0.36": true, "8.4.0": true, "9.1.0": true, "5.7.44": false,
		"10.11.19-MariaDB-0+deb12u1": true, "10.6.0-MariaDB": true, "10.5.20-MariaDB": false, "11.4.2-MariaDB": true,
		"5.5.5-10.11.6-MariaDB": true, "5.5.5-10.3.39-MariaDB": false, "": false, "x": false,
	} {
		require.Equal(t, want, mysqlVersion(v), v)
	}
}
