package outbox

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/pkg/events"
)

// Message is a message and where it goes.
type Message struct {
	// Topic is the destination.
	Topic string
	// Message has a UUID and, where order matters, the key under
	// events.KeyOrdering in its metadata. Its payload may be any bytes.
	Message *message.Message
}

// ErrUnsendable is in the chain of Write's error when a message could never be
// published, or would not arrive as it was written.
var ErrUnsendable = errors.New("the message can never be sent")

// Limits that no configuration lifts.
const (
	maxTopicBytes = 255
	maxUUIDBytes  = 255
	maxKeyBytes   = 512
)

// check reports what could never be sent, or would be altered on its way: JSON
// replaces bytes that are not UTF-8, and SQL text takes no NUL.
func (w *Writer) check(m Message) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("outbox: %s: %w", fmt.Sprintf(format, args...), ErrUnsendable)
	}
	if m.Message == nil {
		return bad("a message for topic %q is nil", m.Topic)
	}
	if m.Topic == "" {
		return bad("message %s has no topic", m.Message.UUID)
	}
	if m.Message.UUID == "" {
		return bad("a message for topic %q has no UUID", m.Topic)
	}
	if err := clean("topic", m.Topic, maxTopicBytes); err != nil {
		return bad("message %s: %v", m.Message.UUID, err)
	}
	if err := clean("UUID", m.Message.UUID, maxUUIDBytes); err != nil {
		return bad("message for topic %q: %v", m.Topic, err)
	}
	if n := len(m.Message.Metadata); w.cfg.MaxMetadata > 0 && n > w.cfg.MaxMetadata {
		return bad("message %s for topic %q has %d metadata entries, more than %d", m.Message.UUID, m.Topic, n, w.cfg.MaxMetadata)
	}
	size := len(m.Message.Payload)
	for k, v := range m.Message.Metadata {
		if k == "" {
			return bad("message %s for topic %q has a metadata entry without a key", m.Message.UUID, m.Topic)
		}
		if !utf8.ValidString(k) || !utf8.ValidString(v) || strings.IndexByte(k, 0) >= 0 || strings.IndexByte(v, 0) >= 0 {
			return bad("message %s for topic %q: metadata %q holds a NUL or bytes that are not UTF-8", m.Message.UUID, m.Topic, k)
		}
		size += len(k) + len(v)
	}
	if key := m.Message.Metadata[events.KeyOrdering]; len(key) > maxKeyBytes {
		return bad("message %s for topic %q: its ordering key has %d bytes, more than %d", m.Message.UUID, m.Topic, len(key), maxKeyBytes)
	}
	if size > w.cfg.MaxBytes {
		return bad("message %s for topic %q has %d bytes with its metadata, more than %d", m.Message.UUID, m.Topic, size, w.cfg.MaxBytes)
	}
	return nil
}

func clean(what, v string, limit int) error {
	if len(v) > limit {
		return fmt.Errorf("its %s has %d bytes, more than %d", what, len(v), limit)
	}
	if !utf8.ValidString(v) {
		return fmt.Errorf("its %s %q is not UTF-8", what, v)
	}
	for _, r := range v {
		if r < 0x20 || r == 0x7f {
			return fmt.Errorf("its %s %q holds a control character", what, v)
		}
	}
	return nil
}
