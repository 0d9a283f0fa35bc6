package sqldb

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
	"github.com/headrace-go/headrace/pkg/events"
)

// maxUUIDBytes is what the uuid column of a table that this package made takes.
// A table that a stock process made takes 36.
const maxUUIDBytes = 1000

// row is a message as the table has it.
type row struct {
	off      int64
	uuid     string
	payload  []byte
	metadata []byte
}

func (r *row) entry(count int) *lanes.Entry {
	return &lanes.Entry{ID: strconv.FormatInt(r.off, 10), Pos: lanes.Pos{Lo: uint64(r.off)}, Stored: count, Raw: r}
}

// decode makes a message of a row. The row stays as it is.
func (r *row) decode() (*message.Message, error) {
	md, err := r.decodeMetadata()
	if err != nil {
		return nil, err
	}
	msg := message.NewMessage(r.uuid, r.payload)
	msg.Metadata = md
	return msg, nil
}

func (r *row) decodeMetadata() (message.Metadata, error) {
	if len(r.metadata) == 0 {
		return message.Metadata{}, nil
	}
	if md, ok := parseFlat(r.metadata); ok {
		return md, nil
	}
	md := message.Metadata{}
	if err := json.Unmarshal(r.metadata, &md); err != nil {
		return nil, fmt.Errorf("the column metadata is no JSON object of strings: %w", err)
	}
	if md == nil {
		md = message.Metadata{}
	}
	return md, nil
}

// raw keeps what can be kept of a row that decode refuses.
func (r *row) raw() *message.Message {
	return message.NewMessage(strconv.FormatInt(r.off, 10), r.payload)
}

// key is the hash of the row's ordering key; 0 without one. Two keys with one
// hash only wait for each other.
func (r *row) key() uint64 {
	md, err := r.decodeMetadata()
	if err != nil {
		return 0
	}
	key := md[events.KeyOrdering]
	if key == "" {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	if sum := h.Sum64(); sum != 0 {
		return sum
	}
	return 1
}

// parseFlat reads a JSON object whose keys and values are strings without
// escapes, which nearly all metadata is. It reports false for anything else.
func parseFlat(b []byte) (message.Metadata, bool) {
	s := string(b) // the strings of the map share this one copy
	i := skipSpace(s, 0)
	if i >= len(s) || s[i] != '{' {
		return nil, false
	}
	md := make(message.Metadata, 8)
	i = skipSpace(s, i+1)
	if i < len(s) && s[i] == '}' {
		return md, skipSpace(s, i+1) == len(s)
	}
	for {
		k, next, ok := flatString(s, i)
		if !ok {
			return nil, false
		}
		i = skipSpace(s, next)
		if i >= len(s) || s[i] != ':' {
			return nil, false
		}
		v, next, ok := flatString(s, skipSpace(s, i+1))
		if !ok {
			return nil, false
		}
		md[k] = v
		i = skipSpace(s, next)
		if i >= len(s) {
			return nil, false
		}
		switch s[i] {
		case ',':
			i = skipSpace(s, i+1)
		case '}':
			return md, skipSpace(s, i+1) == len(s)
		default:
			return nil, false
		}
	}
}

func skipSpace(s string, i int) int {
	for i < len(s) && (s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r') {
		i++
	}
	return i
}

// flatString reads a string at s[i] and returns where it ends.
func flatString(s string, i int) (string, int, bool) {
	if i >= len(s) || s[i] != '"' {
		return "", 0, false
	}
	end := strings.IndexByte(s[i+1:], '"')
	if end < 0 {
		return "", 0, false
	}
	text := s[i+1 : i+1+end]
	for j := range len(text) {
		if c := text[j]; c == '\\' || c < ' ' || c >= utf8.RuneSelf {
			return "", 0, false
		}
	}
	return text, i + end + 2, true
}

// encoded is a message on its way into a table.
type encoded struct {
	uuid     string
	payload  []byte
	metadata string
}

func (e encoded) size() int { return len(e.uuid) + len(e.payload) + len(e.metadata) }

// encode checks a message and writes its columns. An error wraps
// broker.ErrRejected: the message can't be stored without loss.
func encode(msg *message.Message, limit int) (encoded, error) {
	reject := func(format string, args ...any) (encoded, error) {
		return encoded{}, fmt.Errorf("%w: message %q: "+format, append([]any{broker.ErrRejected, shown(msg.UUID)}, args...)...)
	}
	if len(msg.UUID) > maxUUIDBytes {
		return reject("the id has %d bytes, above %d", len(msg.UUID), maxUUIDBytes)
	}
	if !utf8.ValidString(msg.UUID) || strings.IndexByte(msg.UUID, 0) >= 0 {
		return reject("the id is not text that a database stores (UTF-8 without NUL)")
	}
	for k, v := range msg.Metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return reject("metadata %q is not UTF-8: encode it, as base64 for instance", k)
		}
	}
	md := msg.Metadata
	if md == nil {
		md = message.Metadata{}
	}
	b, err := json.Marshal(md)
	if err != nil {
		return reject("metadata: %w", err)
	}
	e := encoded{uuid: msg.UUID, payload: msg.Payload, metadata: string(b)}
	if e.payload == nil {
		e.payload = []byte{}
	}
	if limit > 0 && e.size() > limit {
		return reject("%d bytes are above the %d that the database takes", e.size(), limit)
	}
	return e, nil
}
