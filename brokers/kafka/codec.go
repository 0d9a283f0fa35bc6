package kafka

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/pkg/events"
)

// HeaderUUID is the header that carries a message's UUID, as stock watermill-kafka
// writes it. Every other header is a metadata entry.
const HeaderUUID = "_watermill_message_uuid"

// encode turns msg into the record that stock watermill-kafka would write, with
// the ordering key as its key.
func encode(topic string, msg *message.Message) (*kgo.Record, error) {
	if msg.Metadata[HeaderUUID] != "" {
		return nil, fmt.Errorf("metadata key %s is the UUID's own: use another", HeaderUUID)
	}
	r := &kgo.Record{Topic: topic, Value: msg.Payload, Headers: make([]kgo.RecordHeader, 0, len(msg.Metadata)+1)}
	if r.Value == nil {
		r.Value = []byte{} // no value at all means "remove" where a topic is compacted
	}
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: HeaderUUID, Value: []byte(msg.UUID)})
	for key, value := range msg.Metadata {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: key, Value: []byte(value)})
	}
	if key := msg.Metadata[events.KeyOrdering]; key != "" {
		r.Key = []byte(key)
	}
	return r, nil
}

// size is about what Kafka counts of a record.
func size(r *kgo.Record) int {
	n := len(r.Key) + len(r.Value) + 64
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value) + 8
	}
	return n
}

var errTwoUUIDs = errors.New("header " + HeaderUUID + " is there twice with different values: which message it is can't be told")

// decode turns a record into a message of its own: one that encode or stock
// watermill-kafka wrote, or a bare envelope that was published directly.
func decode(r *kgo.Record) (*message.Message, error) {
	msg := message.NewMessage("", append([]byte(nil), r.Value...))
	named := false
	for _, h := range r.Headers {
		if h.Key != HeaderUUID {
			msg.Metadata[h.Key] = string(h.Value)
			continue
		}
		if named && msg.UUID != string(h.Value) {
			return nil, errTwoUUIDs
		}
		msg.UUID, named = string(h.Value), true
	}
	if !named {
		msg.UUID = place(r)
		direct(msg)
	}
	return msg, nil
}

// direct gives a bare envelope the UUID and the metadata that our publisher would
// have given it.
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

// rawMessage keeps what can be kept of a record that decode refuses.
func rawMessage(r *kgo.Record) *message.Message {
	msg := message.NewMessage(place(r), append([]byte(nil), r.Value...))
	for _, h := range r.Headers {
		if h.Key != HeaderUUID {
			msg.Metadata[h.Key] = string(h.Value)
		}
	}
	return msg
}

// place names a record that has no name of its own.
func place(r *kgo.Record) string { return fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset) }

// orderingKey is the key that a record's handler orders by.
func orderingKey(r *kgo.Record) string {
	for _, h := range r.Headers {
		if h.Key == events.KeyOrdering {
			return string(h.Value)
		}
	}
	return ""
}

// clone copies a record out of the batch that it came in, which it would keep in
// memory.
func clone(r *kgo.Record) *kgo.Record {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Value)
	}
	buf := make([]byte, 0, n)
	own := func(b []byte) []byte {
		if b == nil {
			return nil
		}
		at := len(buf)
		buf = append(buf, b...)
		return buf[at:len(buf):len(buf)]
	}
	c := &kgo.Record{
		Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp, Attrs: r.Attrs,
		Key: own(r.Key), Value: own(r.Value), Headers: make([]kgo.RecordHeader, len(r.Headers)),
	}
	for i, h := range r.Headers {
		c.Headers[i] = kgo.RecordHeader{Key: string([]byte(h.Key)), Value: own(h.Value)}
	}
	return c
}
