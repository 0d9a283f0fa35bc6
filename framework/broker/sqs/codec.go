package sqs

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	stock "github.com/ThreeDotsLabs/watermill-aws/sqs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/pkg/events"
)

// The attributes of a message, besides those that stock watermill-aws writes:
// its UUID and one for each metadata entry.
const (
	// AttrMetadata packs metadata that doesn't fit into plain attributes: a JSON
	// object, or a list of pairs in base64 where a string is no legal text.
	AttrMetadata = "headrace_metadata"
	// AttrEncoding says how the body carries the payload: EncodingBase64 or
	// EncodingEmpty.
	AttrEncoding = "headrace_encoding"
	// AttrClaim is the reference of a payload that is not in the body.
	AttrClaim = "headrace_claim"

	EncodingBase64 = "base64"
	EncodingEmpty  = "empty"
)

// What takes the place of a payload in a body that can't be empty.
const (
	emptyBody = "(empty)"
	claimBody = "(the payload is in the claim-check store)"
)

const (
	maxAttributes    = 10
	maxAttributeName = 256
	// maxToken is the longest message group or deduplication id.
	maxToken = 128
)

// wire is a message as SQS and SNS carry it.
type wire struct {
	body  string
	attrs map[string]string
	size  int
}

func (w *wire) measure() {
	w.size = len(w.body)
	for name, value := range w.attrs {
		w.size += len(name) + len(stock.AWSStringDataType) + len(value)
	}
}

// encode turns msg into what stock watermill-aws would write where SQS carries
// that, and packs what it doesn't. An event type must stay an attribute of its
// own for filters: one that can't be is refused.
func encode(msg *message.Message) (wire, error) {
	if typ := msg.Metadata[events.KeyType]; !legalText(typ) {
		return wire{}, fmt.Errorf("metadata %s is %q, which has characters that SQS doesn't carry, so that no filter would match it: %w",
			events.KeyType, typ, broker.ErrRejected)
	}
	w := wire{attrs: make(map[string]string, len(msg.Metadata)+2)}
	plain := len(msg.Metadata) < maxAttributes && msg.UUID != "" && legalText(msg.UUID)
	for name, value := range msg.Metadata {
		if !plain {
			break
		}
		plain = legalName(name) && value != "" && legalText(value)
	}
	if plain {
		for name, value := range msg.Metadata {
			w.attrs[name] = value
		}
		w.attrs[stock.UUIDAttribute] = msg.UUID
	} else if err := w.pack(msg); err != nil {
		return wire{}, err
	}
	switch {
	case len(msg.Payload) == 0:
		w.body, w.attrs[AttrEncoding] = emptyBody, EncodingEmpty
	case legalText(string(msg.Payload)):
		w.body = string(msg.Payload)
	default:
		w.body, w.attrs[AttrEncoding] = base64.StdEncoding.EncodeToString(msg.Payload), EncodingBase64
	}
	if len(w.attrs) > maxAttributes { // the encoding was one too many
		w.attrs = map[string]string{AttrEncoding: w.attrs[AttrEncoding]}
		if err := w.pack(msg); err != nil {
			return wire{}, err
		}
	}
	w.measure()
	return w, nil
}

// pack puts the metadata into one attribute. UUID and event type stay readable.
func (w *wire) pack(msg *message.Message) error {
	rest := make(map[string]string, len(msg.Metadata)+1)
	for name, value := range msg.Metadata {
		if name == events.KeyType && value != "" {
			w.attrs[name] = value
			continue
		}
		rest[name] = value
	}
	switch {
	case msg.UUID == "":
	case legalText(msg.UUID):
		w.attrs[stock.UUIDAttribute] = msg.UUID
	default:
		rest[stock.UUIDAttribute] = msg.UUID
	}
	if _, taken := msg.Metadata[stock.UUIDAttribute]; taken {
		return fmt.Errorf("metadata key %s is reserved for the message's UUID: %w", stock.UUIDAttribute, broker.ErrRejected)
	}
	text := true
	for name, value := range rest {
		text = text && legalText(name) && utf8.ValidString(value)
	}
	var packed []byte
	var err error
	if text {
		if packed, err = json.Marshal(rest); err == nil && !legalText(string(packed)) {
			text = false // JSON leaves a few characters alone that SQS replaces
		}
	}
	if !text {
		pairs := make([][2][]byte, 0, len(rest))
		for name, value := range rest {
			pairs = append(pairs, [2][]byte{[]byte(name), []byte(value)})
		}
		packed, err = json.Marshal(pairs)
	}
	if err != nil {
		return fmt.Errorf("pack the metadata: %w: %w", broker.ErrRejected, err)
	}
	w.attrs[AttrMetadata] = string(packed)
	return nil
}

// claimed replaces the payload by its reference.
func (w wire) claimed(ref string) wire {
	attrs := map[string]string{AttrClaim: ref}
	for name, value := range w.attrs {
		if name != AttrEncoding {
			attrs[name] = value
		}
	}
	w.body, w.attrs = claimBody, attrs
	w.measure()
	return w
}

// sqsAttributes are the attributes as SQS takes them.
func (w wire) sqsAttributes() map[string]types.MessageAttributeValue {
	out := make(map[string]types.MessageAttributeValue, len(w.attrs))
	dataType := stock.AWSStringDataType
	for name, value := range w.attrs {
		out[name] = types.MessageAttributeValue{DataType: &dataType, StringValue: &value}
	}
	return out
}

var unmarshaler stock.DefaultMarshalerUnmarshaler

// decode turns a received message into a Watermill message: one that encode or
// stock watermill-aws wrote, the same inside an SNS notification, or a bare
// envelope that was sent to the queue directly. Payload is what AttrClaim refers
// to, or nil. What carries no Headrace attributes keeps the broker's own id as
// its UUID, as stock does.
func decode(m *types.Message, payload []byte) (*message.Message, error) {
	if m.Body == nil {
		return nil, errors.New("the message has no body")
	}
	if foreign(m) {
		if inner, ok, err := unwrap(m); err != nil {
			return nil, err
		} else if ok {
			m = inner
		}
	}
	msg, err := unmarshaler.Unmarshal(m)
	if err != nil {
		return nil, err
	}
	// Ours go before the packed metadata comes: that may hold the same names.
	packed, isPacked := msg.Metadata[AttrMetadata]
	encoding, encoded := msg.Metadata[AttrEncoding]
	_, claim := msg.Metadata[AttrClaim]
	for _, name := range []string{AttrMetadata, AttrEncoding, AttrClaim} {
		delete(msg.Metadata, name)
	}
	if isPacked {
		if _, ok := m.MessageAttributes[stock.UUIDAttribute]; !ok {
			msg.UUID = ""
		}
		if err := unpack(packed, msg); err != nil {
			return nil, err
		}
	}
	switch {
	case claim:
		msg.Payload = payload
	case !encoded:
	case encoding == EncodingEmpty:
		msg.Payload = message.Payload{}
	case encoding == EncodingBase64:
		if msg.Payload, err = base64.StdEncoding.DecodeString(*m.Body); err != nil {
			return nil, fmt.Errorf("the body is no base64, as attribute %s says: %w", AttrEncoding, err)
		}
	default:
		return nil, fmt.Errorf("attribute %s is %q: %s and %s are known", AttrEncoding, encoding, EncodingBase64, EncodingEmpty)
	}
	if foreign(m) {
		direct(msg)
	}
	return msg, nil
}

// foreign tells that neither we nor stock wrote the attributes.
func foreign(m *types.Message) bool {
	for _, name := range []string{stock.UUIDAttribute, AttrMetadata, AttrEncoding, AttrClaim} {
		if _, ok := m.MessageAttributes[name]; ok {
			return false
		}
	}
	return true
}

// notification is what SNS wraps a message in without raw delivery.
type notification struct {
	Type              string
	MessageID         string `json:"MessageId"`
	TopicArn          string
	Message           *string
	MessageAttributes map[string]struct{ Type, Value string }
}

// unwrap takes a message out of its SNS notification, or says that it is none.
func unwrap(m *types.Message) (*types.Message, bool, error) {
	body := strings.TrimSpace(*m.Body)
	if !strings.HasPrefix(body, "{") || !strings.Contains(body, `"TopicArn"`) {
		return nil, false, nil
	}
	var n notification
	readable := json.Unmarshal([]byte(body), &n) == nil
	if !readable || n.Type != "Notification" || n.TopicArn == "" || n.Message == nil {
		return nil, false, nil
	}
	inner := *m
	inner.Body = n.Message
	if n.MessageID != "" {
		inner.MessageId = &n.MessageID
	}
	inner.MessageAttributes = make(map[string]types.MessageAttributeValue, len(n.MessageAttributes))
	for name, attr := range n.MessageAttributes {
		value := types.MessageAttributeValue{DataType: &attr.Type}
		if strings.HasPrefix(attr.Type, stock.AWSBinaryDataType) {
			bin, err := base64.StdEncoding.DecodeString(attr.Value)
			if err != nil {
				return nil, false, fmt.Errorf("attribute %s of the SNS notification is no base64: %w", name, err)
			}
			value.BinaryValue = bin
		} else {
			value.StringValue = &attr.Value
		}
		inner.MessageAttributes[name] = value
	}
	return &inner, true, nil
}

// direct gives a bare envelope the UUID and the metadata that our publisher
// would have given it.
func direct(msg *message.Message) {
	e, err := events.Decode(msg.Payload)
	if err != nil {
		return // whatever it is, its handler decides
	}
	msg.UUID = e.ID
	for name, value := range e.Headers() {
		if _, set := msg.Metadata[name]; !set {
			msg.Metadata[name] = value
		}
	}
}

func unpack(packed string, msg *message.Message) error {
	if strings.HasPrefix(packed, "{") {
		var rest map[string]string
		if err := json.Unmarshal([]byte(packed), &rest); err != nil {
			return fmt.Errorf("attribute %s is no JSON object of strings: %w", AttrMetadata, err)
		}
		for name, value := range rest {
			set(msg, name, value)
		}
		return nil
	}
	var pairs [][2][]byte
	if err := json.Unmarshal([]byte(packed), &pairs); err != nil {
		return fmt.Errorf("attribute %s is neither a JSON object nor a list of pairs in base64: %w", AttrMetadata, err)
	}
	for _, pair := range pairs {
		set(msg, string(pair[0]), string(pair[1]))
	}
	return nil
}

func set(msg *message.Message, name, value string) {
	if name == stock.UUIDAttribute {
		msg.UUID = value
		return
	}
	msg.Metadata[name] = value
}

// rawMessage keeps what can be kept of a message that decode refuses.
func rawMessage(m *types.Message) *message.Message {
	var id string
	var payload []byte
	if m.MessageId != nil {
		id = *m.MessageId
	}
	if m.Body != nil {
		payload = []byte(*m.Body)
	}
	if encoding := m.MessageAttributes[AttrEncoding].StringValue; encoding != nil {
		switch *encoding {
		case EncodingEmpty:
			payload = nil
		case EncodingBase64:
			if raw, err := base64.StdEncoding.DecodeString(string(payload)); err == nil {
				payload = raw
			}
		}
	}
	msg := message.NewMessage(id, payload)
	for name, attr := range m.MessageAttributes {
		if attr.StringValue != nil && name != AttrEncoding && name != stock.UUIDAttribute {
			msg.Metadata[name] = *attr.StringValue
		}
	}
	return msg
}

// legalText tells whether SQS carries s unchanged. It silently replaces what is
// not legal.
func legalText(s string) bool {
	for i, r := range s {
		switch {
		case r == '\t', r == '\n', r == '\r':
		case r < 0x20, r == 0xFFFE, r == 0xFFFF:
			return false
		case r == utf8.RuneError:
			if _, size := utf8.DecodeRuneInString(s[i:]); size <= 1 {
				return false
			}
		}
	}
	return true
}

// legalName tells whether a metadata key can be an attribute's name, and not one
// of ours.
func legalName(name string) bool {
	if name == "" || len(name) > maxAttributeName || strings.HasPrefix(name, "headrace_") || name == stock.UUIDAttribute ||
		name[0] == '.' || name[len(name)-1] == '.' || strings.Contains(name, "..") {
		return false
	}
	if low := strings.ToLower(name); strings.HasPrefix(low, "aws.") || strings.HasPrefix(low, "amazon.") {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

// token makes s fit for a message group or deduplication id.
func token(s string) string {
	legal := s != "" && len(s) <= maxToken
	for i := 0; legal && i < len(s); i++ {
		legal = s[i] > ' ' && s[i] < 0x7f
	}
	if legal {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "sha256-" + hex.EncodeToString(sum[:])
}
