package rabbitmq

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"

	"github.com/headrace-go/headrace/framework/broker"
)

const (
	// maxPart is the longest topic or group that stands in a name as it is: prefix,
	// two of them and what joins them fit into the 255 bytes of a name.
	maxPart  = 100
	hashLen  = 32
	joint    = "~~"
	reserved = "amq."
)

// namer makes the names of exchanges and queues:
//
//	exchange, and the topic's own queue   <prefix><topic>
//	a group's queue                       <prefix><topic>~~<group>
//
// A topic or group that is too long, holds a tilde or odd bytes, or begins as
// RabbitMQ's own names do, is replaced by its readable beginning, a tilde and a
// hash of the exact name. Plain names hold no tilde, so the two never meet.
type namer struct{ prefix string }

func (n namer) exchange(topic string) string { return n.prefix + part(topic) }

func (n namer) own(topic string) string { return n.prefix + part(topic) }

func (n namer) queue(topic, group string) string {
	if ownOnly(topic) {
		return n.own(topic)
	}
	return n.prefix + part(topic) + joint + part(group)
}

func part(name string) string {
	if len(name) <= maxPart && utf8.ValidString(name) && !strings.ContainsAny(name, "~\r\n\x00") && !strings.HasPrefix(name, reserved) {
		return name
	}
	var b strings.Builder
	for _, r := range name {
		if b.Len() >= maxPart-hashLen-4 {
			break
		}
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' {
			b.WriteRune(r)
		} else {
			b.WriteByte('-')
		}
	}
	sum := sha256.Sum256([]byte(name))
	readable := b.String()
	if strings.HasPrefix(readable, reserved) {
		readable = "-" + readable
	}
	return readable + "~" + hex.EncodeToString(sum[:])[:hashLen]
}

// ownOnly tells whether a topic is one queue and nothing else: what is published
// to it must wait for a reader that may not be there yet.
func ownOnly(topic string) bool {
	return strings.HasSuffix(topic, broker.DeadLetterTopic("")) || strings.HasSuffix(topic, broker.RedriveTopic(""))
}
