package outbox

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"sort"

	"github.com/ThreeDotsLabs/watermill/message"
)

// envelope is what Watermill's forwarder stores.
type envelope struct {
	DestinationTopic string            `json:"destination_topic"`
	UUID             string            `json:"uuid"`
	Payload          []byte            `json:"payload"`
	Metadata         map[string]string `json:"metadata"`
}

const (
	envTopic    = `{"destination_topic":"`
	envUUID     = `,"uuid":"`
	envPayload  = `,"payload":`
	envMetadata = `,"metadata":`
)

// appendEnvelope writes the envelope with the bytes and the order of fields that
// the forwarder's json.Marshal gives, less its HTML escapes.
func appendEnvelope(b []byte, topic string, msg *message.Message) []byte {
	b = append(b, envTopic[:len(envTopic)-1]...)
	b = appendString(b, topic)
	b = append(b, envUUID[:len(envUUID)-1]...)
	b = appendString(b, msg.UUID)
	b = append(b, envPayload...)
	if msg.Payload == nil {
		b = append(b, "null"...)
	} else {
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, msg.Payload)
		b = append(b, '"')
	}
	b = append(b, envMetadata...)
	b = append(b, '{')
	keys := make([]string, 0, 16)
	for k := range msg.Metadata {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, k)
		b = append(b, ':')
		b = appendString(b, msg.Metadata[k])
	}
	return append(b, '}', '}')
}

// envelopeSize is a close upper bound for messages without escapes.
func envelopeSize(topic string, msg *message.Message) int {
	n := 64 + len(topic) + len(msg.UUID) + base64.StdEncoding.EncodedLen(len(msg.Payload))
	for k, v := range msg.Metadata {
		n += len(k) + len(v) + 6
	}
	return n
}

// appendString appends s, valid UTF-8, as a JSON string.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
		}
		start = i + 1
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

var errCorrupt = errors.New("corrupt envelope")

// decodeEnvelope reads an envelope. It keeps nothing of data.
func decodeEnvelope(data []byte) (topic string, msg *message.Message, err error) {
	if topic, msg, ok := decodePlain(data); ok {
		return topic, msg, nil
	}
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return "", nil, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if e.DestinationTopic == "" {
		return "", nil, fmt.Errorf("%w: no destination topic", errCorrupt)
	}
	msg = message.NewMessage(e.UUID, e.Payload)
	if e.Metadata != nil {
		msg.Metadata = e.Metadata
	}
	return e.DestinationTopic, msg, nil
}

// decodePlain reads the envelope that forwarder and Writer write as long as no
// string in it has an escape or a byte outside ASCII, at a tenth of the cost of
// encoding/json. On anything else it gives up.
func decodePlain(data []byte) (topic string, msg *message.Message, ok bool) {
	rest, ok := bytes.CutPrefix(data, []byte(envTopic))
	if !ok {
		return "", nil, false
	}
	topicBytes, rest, ok := plainString(rest)
	if !ok || len(topicBytes) == 0 {
		return "", nil, false
	}
	if rest, ok = bytes.CutPrefix(rest, []byte(envUUID)); !ok {
		return "", nil, false
	}
	uuidBytes, rest, ok := plainString(rest)
	if !ok {
		return "", nil, false
	}
	if rest, ok = bytes.CutPrefix(rest, []byte(envPayload)); !ok {
		return "", nil, false
	}
	var payload []byte
	if after, null := bytes.CutPrefix(rest, []byte("null")); null {
		rest = after
	} else {
		if len(rest) == 0 || rest[0] != '"' {
			return "", nil, false
		}
		end := bytes.IndexByte(rest[1:], '"')
		if end < 0 {
			return "", nil, false
		}
		encoded := rest[1 : 1+end]
		payload = make([]byte, base64.StdEncoding.DecodedLen(len(encoded)))
		n, err := base64.StdEncoding.Decode(payload, encoded)
		if err != nil {
			return "", nil, false
		}
		payload, rest = payload[:n], rest[end+2:]
	}
	if rest, ok = bytes.CutPrefix(rest, []byte(envMetadata)); !ok {
		return "", nil, false
	}
	metadata, ok := plainMap(rest)
	if !ok {
		return "", nil, false
	}
	msg = message.NewMessage(string(uuidBytes), payload)
	msg.Metadata = metadata
	return string(topicBytes), msg, true
}

// plainMap reads `{"k":"v",...}}` or `null}` to the end of the data.
func plainMap(data []byte) (message.Metadata, bool) {
	if string(data) == "null}" || string(data) == "{}}" {
		return message.Metadata{}, true
	}
	if len(data) < 3 || data[0] != '{' {
		return nil, false
	}
	// One string for all of it: keys and values are slices of that.
	all := string(data)
	pos := 1
	m := make(message.Metadata, bytes.Count(data, []byte(`":"`)))
	for {
		k, next, ok := plainSlice(all, pos)
		if !ok || next >= len(all) || all[next] != ':' {
			return nil, false
		}
		v, next, ok := plainSlice(all, next+1)
		if !ok || next >= len(all) {
			return nil, false
		}
		m[k] = v
		switch all[next] {
		case ',':
			pos = next + 1
		case '}':
			return m, all[next+1:] == "}"
		default:
			return nil, false
		}
	}
}

// plainSlice reads a quoted string at pos and returns the place after it.
func plainSlice(s string, pos int) (string, int, bool) {
	if pos >= len(s) || s[pos] != '"' {
		return "", 0, false
	}
	for i := pos + 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return s[pos+1 : i], i + 1, true
		case c < 0x20 || c == '\\' || c >= 0x80:
			return "", 0, false
		}
	}
	return "", 0, false
}

// plainString reads to the closing quote.
func plainString(b []byte) (s, rest []byte, ok bool) {
	for i, c := range b {
		switch {
		case c == '"':
			return b[:i], b[i+1:], true
		case c < 0x20 || c == '\\' || c >= 0x80:
			return nil, nil, false
		}
	}
	return nil, nil, false
}
