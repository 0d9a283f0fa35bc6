package kafka

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

const (
	// maxName is Kafka's bound of a topic's name.
	maxName = 249
	// maxReadable bounds the readable part of a hashed name.
	maxReadable = 120
	// deletedTopic holds what Admin.Delete removed. No topic's name becomes it,
	// since names of this form are hashed.
	deletedTopic = "headrace-deleted-h0000000000000000"
	// holderMark is in the name of the group that a holder reports through.
	holderMark = "~headrace~"
)

var (
	plainName  = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)
	hashedName = regexp.MustCompile(`-h[0-9a-f]{16}$`)
)

// TopicName is the Kafka topic of a topic: the prefix and the topic's name as they
// are, where Kafka takes them. Other names, and those with both dots and
// underscores (which Kafka's metrics can't tell apart), become a readable part
// and a hash.
func (c Config) TopicName(topic string) string {
	return c.Prefix + escape(topic, maxName-len(c.Prefix))
}

// GroupName is the consumer group of a group: the prefix and the group's name.
func (c Config) GroupName(group string) string { return c.Prefix + group }

// holderGroup is the group that a member reports through what it still holds of
// partitions that others have now.
func (c Config) holderGroup(group, member string) string {
	return c.GroupName(group) + holderMark + member
}

func escape(name string, limit int) string {
	mixed := strings.Contains(name, ".") && strings.Contains(name, "_")
	if len(name) <= limit && plainName.MatchString(name) && !hashedName.MatchString(name) && !mixed && strings.Trim(name, ".") != "" {
		return name
	}
	var b strings.Builder
	for i := 0; i < len(name) && b.Len() < maxReadable; i++ {
		c := name[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' {
			b.WriteByte(c)
		} else {
			b.WriteByte('-')
		}
	}
	// The name's end tells what it is, such as dead letters.
	suffix := ""
	if strings.HasSuffix(name, ".dlq") {
		suffix = ".dlq"
	}
	sum := sha256.Sum256([]byte(name))
	return strings.TrimSuffix(b.String(), suffix) + suffix + "-h" + hex.EncodeToString(sum[:])[:16]
}

// deadLetters tells whether topic holds dead letters: see broker.DeadLetterTopic.
func deadLetters(topic string) bool { return strings.HasSuffix(topic, ".dlq") }
