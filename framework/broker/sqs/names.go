package sqs

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	maxQueueName = 80
	hashLen      = 10
	fifoSuffix   = ".fifo"
	// MaxPrefix is the longest Config.Prefix: what is left of a queue's 80
	// characters names the topic and the group.
	MaxPrefix = 24
)

// namer makes the names of queues and topics. A name is
//
//	<prefix><topic>-<hash of topic>_<group>-<hash of group>[.fifo]
//
// with topic and group cut and mapped to letters, digits and dashes, so that a
// person can read it; the hashes are over the exact names, so that names which
// differ only in case, dots, dashes or length never meet. Underscores stand
// nowhere but in the prefix and before the group, so the names of a topic's
// queues share a beginning that no other topic's have.
type namer struct {
	prefix string
	fifo   bool
}

// readable is how long the readable part of a topic or a group may be.
func (n namer) readable() int {
	return (maxQueueName - len(fifoSuffix) - len(n.prefix) - 2*(hashLen+1) - 1) / 2
}

func (n namer) part(name string) string {
	sum := sha256.Sum256([]byte(name))
	var b strings.Builder
	for _, r := range name {
		if b.Len() == n.readable() {
			break
		}
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else {
			b.WriteByte('-')
		}
	}
	return b.String() + "-" + hex.EncodeToString(sum[:])[:hashLen]
}

func (n namer) suffix() string {
	if n.fifo {
		return fifoSuffix
	}
	return ""
}

// own names the topic's own queue, and its SNS topic.
func (n namer) own(topic string) string { return n.prefix + n.part(topic) + n.suffix() }

// groups is how the names of all queues of the topic's groups begin.
func (n namer) groups(topic string) string { return n.prefix + n.part(topic) + "_" }

// queue names the queue of a group.
func (n namer) queue(topic, group string) string {
	return n.groups(topic) + n.part(group) + n.suffix()
}

// deadLetters tells whether topic holds dead letters: see broker.DeadLetterTopic.
func deadLetters(topic string) bool { return strings.HasSuffix(topic, ".dlq") }

// legalPrefix tells whether p can begin a queue's name.
func legalPrefix(p string) bool {
	for _, r := range p {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' {
			return false
		}
	}
	return len(p) <= MaxPrefix
}
