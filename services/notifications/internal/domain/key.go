package domain

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
)

// SendKey is the idempotency key of one send: readable when the event's id is
// plain, hashed when it holds anything that a file name or a header should not.
func SendKey(eventID string, channel Channel, resends int) string {
	id := eventID
	if !plain(id) {
		sum := sha256.Sum256([]byte(id))
		id = "h" + hex.EncodeToString(sum[:16])
	}
	key := id + "-" + string(channel)
	if resends > 0 {
		key += "-r" + strconv.Itoa(resends)
	}
	return key
}

// plain tells whether s is safe in a file name, a header and a Message-ID.
func plain(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		case c == '-' && i > 0:
		default:
			return false
		}
	}
	return true
}

// MessageID is the Message-ID of the mail that is sent under key, without the
// angle brackets. Every attempt of one send has the same, so that a mailbox or
// a person can tell a repeated mail from a second one.
func MessageID(key, host string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16]) + "@" + host
}
