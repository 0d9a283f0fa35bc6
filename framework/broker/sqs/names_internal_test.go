package sqs

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNames(t *testing.T) {
	t.Parallel()
	legal := regexp.MustCompile(`^[A-Za-z0-9_-]{1,75}(\.fifo)?$`)
	long := strings.Repeat("long.topic.", 30)
	names := []string{
		"", "a", "A", "a.b", "a-b", "a_b", "ab", "a..b", "a--b", "ä", "a b", "a/b", "order.placed", "Order.Placed", "order.placed.fifo",
		"a-" + strings.Repeat("0", hashLen) + "_b", long, long + "x", long + "X", strings.Repeat("x", 64), strings.Repeat("x", 65),
	}
	for _, prefix := range []string{"", "prod_", strings.Repeat("p", MaxPrefix)} {
		for _, fifo := range []bool{false, true} {
			n := namer{prefix: prefix, fifo: fifo}
			seen := map[string]string{}
			note := func(name, what string) {
				require.Regexp(t, legal, name, what)
				require.True(t, strings.HasPrefix(name, prefix))
				require.Equal(t, fifo, strings.HasSuffix(name, ".fifo"))
				require.Empty(t, seen[name], "%s and %s share %s", what, seen[name], name)
				seen[name] = what
			}
			for _, topic := range names {
				note(n.own(topic), "topic "+topic)
				for _, group := range names {
					queue := n.queue(topic, group)
					note(queue, "topic "+topic+", group "+group)
					require.True(t, strings.HasPrefix(queue, n.groups(topic)))
					for _, other := range names {
						if other != topic {
							require.False(t, strings.HasPrefix(queue, n.groups(other)), "%q is no queue of %q", queue, other)
						}
					}
				}
			}
		}
	}
	require.Equal(t, "order-placed-"+namer{}.part("order.placed")[len("order-placed-"):], namer{}.own("order.placed"), "readable")
	require.False(t, legalPrefix("a.b"))
	require.False(t, legalPrefix(strings.Repeat("p", MaxPrefix+1)))
}

func TestPolicyIsMerged(t *testing.T) {
	t.Parallel()
	const queue, a, b = "arn:aws:sqs:r:1:q", "arn:aws:sns:r:1:a", "arn:aws:sns:r:1:b"
	first, changed, err := allowTopic("", queue, a)
	require.NoError(t, err)
	require.True(t, changed)
	same, changed, err := allowTopic(first, queue, a)
	require.NoError(t, err)
	require.False(t, changed)
	require.Equal(t, first, same)
	both, changed, err := allowTopic(first, queue, b)
	require.NoError(t, err)
	require.True(t, changed)
	require.Contains(t, both, a, "a second topic does not shut the first out")
	require.Contains(t, both, b)

	// What others wrote stays, a single statement and unknown fields too.
	theirs := `{"Version":"2008-10-17","Id":"x","Statement":{"Sid":"theirs","Effect":"Deny","Principal":"*","Action":"sqs:*","Resource":"` + queue + `","Condition":{"Bool":{"aws:SecureTransport":"false"}}}}`
	merged, changed, err := allowTopic(theirs, queue, a)
	require.NoError(t, err)
	require.True(t, changed)
	var doc struct {
		Version, ID string
		Statement   []map[string]any
	}
	require.NoError(t, json.Unmarshal([]byte(merged), &doc))
	require.Equal(t, "2008-10-17", doc.Version)
	require.Equal(t, "x", doc.ID)
	require.Len(t, doc.Statement, 2)
	require.Equal(t, "theirs", doc.Statement[0]["Sid"])
	require.Equal(t, map[string]any{"Bool": map[string]any{"aws:SecureTransport": "false"}}, doc.Statement[0]["Condition"])

	for _, broken := range []string{"{", "[]", `{"Statement":"x"}`} {
		_, _, err := allowTopic(broken, queue, a)
		require.ErrorContains(t, err, "by hand", broken)
	}
}

// B16: extensions never ask for more than what is left of the twelve hours.
func TestTwelveHours_B16(t *testing.T) {
	t.Parallel()
	now := time.Now()
	require.Equal(t, 12*3600-5, capSeconds(now, now))
	require.Equal(t, 55, capSeconds(now.Add(-12*time.Hour+time.Minute), now))
	require.Less(t, capSeconds(now.Add(-12*time.Hour), now), 1)
	require.Equal(t, 1, wholeSeconds(time.Millisecond))
	require.Equal(t, 30, wholeSeconds(30*time.Second))
	require.Zero(t, wholeSeconds(0))
}
