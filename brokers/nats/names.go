package nats

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// maxSubject bounds the escaped name of a topic in its subject.
	maxSubject = 256
	// maxReadable bounds the readable part of a stream's or a consumer's name.
	maxReadable = 80
	hashLen     = 16
	hexDigits   = "0123456789ABCDEF"
)

// Subject is the subject that carries a topic: the prefix and the topic's name.
// Bytes other than letters, digits, '-', '_' and single inner dots are written as
// %XX, so is a '_' in front; a name that gets too long is cut and ends in a hash.
func (c Config) Subject(topic string) string { return c.Prefix + escape(topic) }

// StreamName is the name of a topic's own stream: a readable part and a hash of
// the subject.
func (c Config) StreamName(topic string) string { return assetName(c.Subject(topic)) }

// ConsumerName is the name of a group's durable consumer: a readable part and a
// hash of the group.
func (c Config) ConsumerName(group string) string { return assetName(group) }

// countsSubject is where the counts of a group's messages are; no topic's
// subject has a '%' that no two hex digits follow.
func (c Config) countsSubject() string { return c.Prefix + "%counts" }

// escape never makes one of two names.
func escape(topic string) string {
	var b strings.Builder
	for i := range len(topic) {
		c := topic[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-'
		switch {
		case plain,
			c == '_' && i > 0,
			c == '.' && i > 0 && i < len(topic)-1 && topic[i-1] != '.':
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	s := b.String()
	if len(s) <= maxSubject {
		return s
	}
	sum := sha256.Sum256([]byte(topic))
	cut := s[:maxSubject-2-hex.EncodedLen(len(sum))]
	if i := strings.LastIndexByte(cut, '%'); i >= len(cut)-2 {
		cut = cut[:i]
	}
	return strings.TrimRight(cut, ".") + "%~" + hex.EncodeToString(sum[:])
}

// assetName names a stream or a consumer: NATS takes no dots and no slashes
// there, and a server on a file system without case needs more than case to
// tell two names apart.
func assetName(name string) string {
	var b strings.Builder
	for i := 0; i < len(name) && b.Len() < maxReadable; i++ {
		c := name[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' {
			b.WriteByte(c)
		} else {
			b.WriteByte('-')
		}
	}
	sum := sha256.Sum256([]byte(name))
	return b.String() + "-" + hex.EncodeToString(sum[:])[:hashLen]
}

// deadLetters tells whether topic holds dead letters: see broker.DeadLetterTopic.
func deadLetters(topic string) bool { return strings.HasSuffix(topic, ".dlq") }

// legalPrefix tells whether p can begin a subject.
func legalPrefix(p string) bool {
	for i := range len(p) {
		c := p[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-'
		if !plain && (i == 0 || c != '_' && (c != '.' || p[i-1] == '.')) {
			return false
		}
	}
	return len(p) <= MaxPrefix
}
