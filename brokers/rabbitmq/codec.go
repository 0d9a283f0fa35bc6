package rabbitmq

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	stock "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/framework/broker"
)

const (
	// appID marks a message whose MessageId this package made: it is unique, and
	// tells when the message was published.
	appID = "headrace"
	// countHeader is the quorum queue's own.
	countHeader = "x-delivery-count"
	// maxHeaderName is the longest name that AMQP takes.
	maxHeaderName = 255
	// frameMargin is what a header frame holds besides the metadata.
	frameMargin = 1024
)

var marshaler stock.DefaultMarshaler

// encode makes the stock publishing of a message, with an identity of its own in
// properties that stock does not read.
func (c Config) encode(msg *message.Message, frame int) (amqp.Publishing, error) {
	fail := func(format string, args ...any) (amqp.Publishing, error) {
		return amqp.Publishing{}, fmt.Errorf("message %s: "+format+": %w", append(append([]any{msg.UUID}, args...), broker.ErrRejected)...)
	}
	if len(msg.Payload) > c.MaxMessageBytes {
		return fail("its payload has %d bytes, above the %d that are set (MaxMessageBytes)", len(msg.Payload), c.MaxMessageBytes)
	}
	size := len(stock.DefaultMessageUUIDHeaderKey) + len(msg.UUID)
	for name, value := range msg.Metadata {
		switch {
		case len(name) > maxHeaderName:
			return fail("a metadata key has %d bytes: AMQP takes %d", len(name), maxHeaderName)
		case name == "CC" || name == "BCC" || name == countHeader || name == stock.DefaultMessageUUIDHeaderKey:
			return fail("the metadata key %q has a meaning of its own in RabbitMQ: choose another", name)
		}
		size += len(name) + len(value) + 6
	}
	if frame > 0 && size+frameMargin > frame {
		return fail("its metadata has %d bytes: with RabbitMQ all of it must fit into one frame of %d", size, frame)
	}
	p, err := marshaler.Marshal(msg)
	if err != nil {
		return fail("marshal: %v", err)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return p, fmt.Errorf("make an id: %w", err)
	}
	p.AppId, p.MessageId, p.Timestamp = appID, id.String(), time.Now()
	return p, nil
}

// decode turns a delivery into a message with bytes of its own.
func decode(d *amqp.Delivery) (*message.Message, error) {
	own := amqp.Delivery{Body: slices.Clone(d.Body), Headers: make(amqp.Table, len(d.Headers)+1)}
	if own.Body == nil {
		own.Body = []byte{}
	}
	for name, value := range d.Headers {
		if fromBroker(name, value) {
			continue
		}
		switch v := value.(type) {
		case string:
		case []byte:
			value = string(v)
		case nil, amqp.Table, []any:
			return nil, fmt.Errorf("header %q is of type %T: only text and numbers can be metadata", name, value)
		case time.Time:
			value = v.UTC().Format(time.RFC3339Nano)
		default: // numbers and booleans of publishers in other languages
			value = fmt.Sprint(v)
		}
		own.Headers[name] = value
	}
	if _, ok := own.Headers[stock.DefaultMessageUUIDHeaderKey]; !ok {
		own.Headers[stock.DefaultMessageUUIDHeaderKey] = "" // stock would count it
	}
	return marshaler.Unmarshal(own)
}

// fromBroker tells whether RabbitMQ itself set the header.
func fromBroker(name string, value any) bool {
	if !strings.HasPrefix(name, "x-") {
		return false
	}
	_, text := value.(string)
	return !text || strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}

// rawMessage keeps what can be kept of a delivery that decode refuses.
func rawMessage(d *amqp.Delivery, place string) *message.Message {
	msg := message.NewMessage(place, slices.Clone(d.Body))
	for name, value := range d.Headers {
		if text, ok := value.(string); ok && name != stock.DefaultMessageUUIDHeaderKey {
			msg.Metadata[name] = text
		}
	}
	return msg
}

// count is the number of this delivery: 1 for the first.
func count(d *amqp.Delivery) int {
	n := int64(0)
	switch v := d.Headers[countHeader].(type) {
	case int64:
		n = v
	case int32:
		n = int64(v)
	case int16:
		n = int64(v)
	case int8:
		n = int64(v)
	case uint8:
		n = int64(v)
	}
	return int(n) + 1
}

// identity names a message that this package published; "" for any other.
func identity(d *amqp.Delivery) string {
	if d.AppId != appID {
		return ""
	}
	return d.MessageId
}

// publishedAt is when the message was published: to the millisecond where it was
// by this package, else what its publisher says, if anything.
func publishedAt(d *amqp.Delivery) time.Time {
	if id, err := uuid.Parse(identity(d)); err == nil && id.Version() == 7 {
		sec, nsec := id.Time().UnixTime()
		return time.Unix(sec, nsec).UTC().Truncate(time.Millisecond)
	}
	if d.Timestamp.IsZero() {
		return time.Time{}
	}
	return d.Timestamp.UTC()
}

// fingerprint identifies a message by its publisher's id or by its content.
func fingerprint(d *amqp.Delivery) string {
	if id := identity(d); id != "" {
		return id
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q %d ", d.MessageId, len(d.Body))
	h.Write(d.Body)
	names := make([]string, 0, len(d.Headers))
	for name, value := range d.Headers {
		if !fromBroker(name, value) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(h, "%q=%q ", name, fmt.Sprint(d.Headers[name]))
	}
	return "sha256-" + hex.EncodeToString(h.Sum(nil))[:40]
}
