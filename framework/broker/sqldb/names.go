package sqldb

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/headrace-go/headrace/framework/sqltx"
)

// Tables of the delivery state.
const (
	groupsTable = "headrace_sql_groups"
	claimsTable = "headrace_sql_claims"
	gapsTable   = "headrace_sql_gaps"
)

const (
	tablePrefix   = "watermill_"
	offsetsPrefix = "offsets_"
	// maxPlain leaves room for the longest name that a stock subscriber makes of
	// a topic, watermill_offsets_<topic>, in Postgres's 63 bytes.
	maxPlain = 63 - len(tablePrefix) - len(offsetsPrefix)
)

// MessagesTable returns the name, unquoted, of the table that holds a topic's
// messages. It is the stock one, "watermill_" and the topic, where the topic is
// plain: at most 45 letters, digits and "$-.:_", on MySQL and SQLite no capitals
// (their names may not tell case), and not starting with "offsets_". Any other
// topic has a name that ends in a hash, so that no two topics ever share a
// table. For those, give this function to the GenerateMessagesTableName of a
// stock schema adapter, quoted.
func MessagesTable(d sqltx.Dialect, topic string) string {
	if isPlain(d, topic) {
		return tablePrefix + topic
	}
	sum := sha256.Sum256([]byte(topic))
	readable := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
			return r
		case 'A' <= r && r <= 'Z':
			return r + 'a' - 'A'
		default:
			return '_'
		}
	}, topic[:min(len(topic), 20)])
	// No plain topic has a "~".
	return tablePrefix + readable + "~" + hex.EncodeToString(sum[:16])
}

func isPlain(d sqltx.Dialect, topic string) bool {
	if topic == "" || len(topic) > maxPlain || strings.HasPrefix(topic, offsetsPrefix) {
		return false
	}
	for i := range len(topic) {
		switch c := topic[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', strings.IndexByte("$-.:_", c) >= 0:
		case 'A' <= c && c <= 'Z' && d == sqltx.Postgres:
		default:
			return false
		}
	}
	return true
}

// groupKey identifies a group on a topic, whatever bytes and length their names
// have.
func groupKey(topic, group string) string {
	sum := sha256.Sum256([]byte(strconv.Itoa(len(topic)) + ":" + topic + group))
	return hex.EncodeToString(sum[:])
}

// shown keeps a name to what fits into a column that only people read.
func shown(name string) string {
	if len(name) > 200 {
		name = name[:200] + "…"
	}
	return strings.ToValidUTF8(strings.ReplaceAll(name, "\x00", ""), "?")
}
