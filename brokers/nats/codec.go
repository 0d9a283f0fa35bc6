package nats

import (
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"

	stock "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/headrace-go/headrace/pkg/events"
)

// The headers of a message, besides those that stock watermill-nats writes: its
// UUID and one for each metadata entry.
const (
	// HeaderMetadata packs metadata that NATS does not carry unchanged, or would
	// take for its own: a form-encoded list of key=value.
	HeaderMetadata = "headrace_metadata"
	// HeaderUUID is a UUID that NATS does not carry unchanged, escaped like a part
	// of a form.
	HeaderUUID = "headrace_uuid"
)

var marshaler stock.NATSMarshaler

// encode turns msg into what stock watermill-nats would write where NATS carries
// that, and packs what it doesn't.
func encode(subject string, msg *message.Message) (*natsgo.Msg, error) {
	out, err := marshaler.Marshal(subject, msg)
	if err != nil {
		return nil, err
	}
	var packed url.Values
	for key, value := range msg.Metadata {
		if legalKey(key) && legalValue(value) {
			continue
		}
		if key != stock.WatermillUUIDHdr {
			delete(out.Header, key)
		}
		if packed == nil {
			packed = url.Values{}
		}
		packed.Set(key, value)
	}
	out.Header[stock.WatermillUUIDHdr] = []string{msg.UUID}
	if !legalValue(msg.UUID) {
		delete(out.Header, stock.WatermillUUIDHdr)
		out.Header.Set(HeaderUUID, url.QueryEscape(msg.UUID))
	}
	if packed != nil {
		out.Header.Set(HeaderMetadata, packed.Encode())
	}
	return out, nil
}

// decode turns a stored message into a Watermill message: one that encode or
// stock watermill-nats wrote, or a bare envelope that was published directly.
// Place is the UUID of what carries none.
func decode(in *natsgo.Msg, place string) (*message.Message, error) {
	msg, err := marshaler.Unmarshal(in)
	if err != nil {
		return nil, err
	}
	packed, isPacked := msg.Metadata[HeaderMetadata]
	id, isID := msg.Metadata[HeaderUUID]
	for key := range msg.Metadata {
		if key == HeaderMetadata || key == HeaderUUID || reserved(key) {
			delete(msg.Metadata, key)
		}
	}
	if isID {
		if msg.UUID, err = url.QueryUnescape(id); err != nil {
			return nil, fmt.Errorf("header %s is not escaped like a part of a form: %w", HeaderUUID, err)
		}
	}
	if isPacked {
		values, err := url.ParseQuery(packed)
		if err != nil {
			return nil, fmt.Errorf("header %s is no form: %w", HeaderMetadata, err)
		}
		for key, all := range values {
			if len(all) != 1 {
				return nil, fmt.Errorf("header %s has a key %d times", HeaderMetadata, len(all))
			}
			msg.Metadata[key] = all[0]
		}
	}
	if _, ours := in.Header[stock.WatermillUUIDHdr]; !ours && !isID {
		msg.UUID = place
		direct(msg)
	}
	return msg, nil
}

// direct gives a bare envelope the UUID and the metadata that our publisher
// would have given it.
func direct(msg *message.Message) {
	e, err := events.Decode(msg.Payload)
	if err != nil {
		return // whatever it is, its handler decides
	}
	msg.UUID = e.ID
	for key, value := range e.Headers() {
		if _, set := msg.Metadata[key]; !set {
			msg.Metadata[key] = value
		}
	}
}

// rawMessage keeps what can be kept of a message that decode refuses.
func rawMessage(in *natsgo.Msg, place string) *message.Message {
	msg := message.NewMessage(place, in.Data)
	for key, all := range in.Header {
		if !reserved(key) && key != stock.WatermillUUIDHdr {
			msg.Metadata[key] = strings.Join(all, ", ")
		}
	}
	return msg
}

// reserved tells that a header means something to NATS or its clients.
func reserved(key string) bool {
	const prefix = "nats-"
	if len(key) >= len(prefix) && strings.EqualFold(key[:len(prefix)], prefix) {
		return true
	}
	return strings.EqualFold(key, "status") || strings.EqualFold(key, "description")
}

// separators are what the client takes in no header's name.
const separators = "\"()/,:;<=>?@[\\]{}"

// legalKey tells whether a metadata key can be a header, and not one of ours.
func legalKey(key string) bool {
	if key == "" || key == HeaderMetadata || key == HeaderUUID || key == stock.WatermillUUIDHdr || reserved(key) {
		return false
	}
	for i := range len(key) {
		if c := key[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(separators, c) >= 0 {
			return false
		}
	}
	return true
}

// legalValue tells whether a header carries the value unchanged.
func legalValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' || c == 0x7f {
			return false
		}
	}
	return strings.Trim(value, " ") == value && utf8.ValidString(value)
}

// size is about what the server counts against max_payload.
func size(m *natsgo.Msg) int {
	n := len(m.Data) + len("NATS/1.0\r\n\r\n")
	for key, all := range m.Header {
		for _, value := range all {
			n += len(key) + len(value) + len(": \r\n")
		}
	}
	return n
}
