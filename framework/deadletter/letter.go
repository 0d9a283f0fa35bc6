package deadletter

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// Cause is one error of a chain.
type Cause struct {
	// Type is the error's Go type, such as "*url.Error".
	Type string `json:"type"`
	// Message is its text.
	Message string `json:"message"`
}

// Letter is one dead letter: a message and the story of its failure. What the
// story does not tell is the field's zero value.
type Letter struct {
	// Position is where the letter lies in its topic, for the broker.
	Position string
	// ID is the message's id, the one that it had when it failed.
	ID string
	// DeadLetteredAt is when the broker accepted the letter, UTC.
	DeadLetteredAt time.Time

	// EventID, EventType, Key and CorrelationID are the event's, from the
	// metadata, else from the envelope.
	EventID       string
	EventType     string
	Key           string
	CorrelationID string

	// Reason is one of middleware's Reason constants; a letter that the broker's
	// adapter made has middleware.ReasonMalformed, one without any story "".
	Reason string
	// Error is the last attempt's error, ErrorChain what it wraps, outermost
	// first, Stack a panic's.
	Error      string
	ErrorChain []Cause
	Stack      string

	// Service, Handler, Topic and Group say where it failed. Topic is the one
	// that it was read from at last: the redrive topic after a replay.
	Service string
	Handler string
	Topic   string
	Group   string

	// Attempts is how often the handler ran in the last delivery, Deliveries how
	// often the broker handed the message out, Redrives how often it was
	// replayed.
	Attempts   int
	Deliveries int
	Redrives   int

	FirstFailedAt time.Time
	LastFailedAt  time.Time
	// Fingerprint is equal for failures that look alike.
	Fingerprint string

	// ParksKey tells that the letter holds up its key in a handler with ParkKey:
	// nothing of the key runs before it was replayed or discarded. ParkSeq is its
	// place among the letters of its key, ParkedBehind the id of the first of them
	// where the handler did not run for it. RedrivesParked of the Redrives did not
	// run either.
	ParksKey       bool
	ParkSeq        int64
	ParkedBehind   string
	RedrivesParked int

	// EditedAt and EditedBy are set on a letter that Edit made.
	EditedAt time.Time
	EditedBy string

	// Message is the letter as it lies there, story included. Acking it does
	// nothing.
	Message *message.Message

	in string // the group in whose dead letters it lies
}

// FailedAt is when it failed last; where the story does not tell, when it was
// dead-lettered.
func (l Letter) FailedAt() time.Time {
	if l.LastFailedAt.IsZero() {
		return l.DeadLetteredAt
	}
	return l.LastFailedAt
}

// Original returns the message as the handler got it: same id and bytes, and
// the metadata without the story.
func (l Letter) Original() *message.Message {
	m := message.NewMessage(l.Message.UUID, l.Message.Payload)
	for k, v := range l.Message.Metadata {
		if !strings.HasPrefix(k, middleware.DeadLetterPrefix) {
			m.Metadata[k] = v
		}
	}
	return m
}

// redriven is what Replay publishes.
func (l Letter) redriven() *message.Message {
	m := l.Original()
	m.Metadata[middleware.DeadLetterRedriveCount] = strconv.Itoa(l.Redrives + 1)
	if first := l.Message.Metadata[middleware.DeadLetterFirstFailedAt]; first != "" {
		m.Metadata[middleware.DeadLetterFirstFailedAt] = first // should it fail again
	}
	if l.ParksKey {
		m.Metadata[middleware.DeadLetterParkSeq] = strconv.FormatInt(l.ParkSeq, 10)
	}
	if l.RedrivesParked > 0 {
		m.Metadata[middleware.DeadLetterRedrivesParked] = strconv.Itoa(l.RedrivesParked)
	}
	return m
}

// withdrawn is what Discard publishes for a letter that holds up its key: not
// the message, so that nothing could run it, but the word that it is gone.
func (l Letter) withdrawn() *message.Message {
	m := message.NewMessage(events.NewID(), []byte("{}"))
	m.Metadata[events.KeyOrdering] = l.Key
	m.Metadata[middleware.DeadLetterDiscarded] = l.ID
	m.Metadata[middleware.DeadLetterParkSeq] = strconv.FormatInt(l.ParkSeq, 10)
	return m
}

// Digest is a hash over every byte of the letter: id, metadata and payload. Two
// letters with one digest are copies of each other.
func (l Letter) Digest() string {
	h := sha256.New()
	part := func(b []byte) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	part([]byte(l.Message.UUID))
	for _, k := range slices.Sorted(maps.Keys(l.Message.Metadata)) {
		part([]byte(k))
		part([]byte(l.Message.Metadata[k]))
	}
	part(l.Message.Payload)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

var reasons = []string{
	middleware.ReasonDecode, middleware.ReasonMalformed, middleware.ReasonPermanent, middleware.ReasonPanic,
	middleware.ReasonTimeout, middleware.ReasonExhausted, middleware.ReasonDeliveriesExhausted,
	middleware.ReasonParked,
}

// read makes a Letter of what lies in group's dead letters.
func read(s broker.Stored, group string) Letter {
	md := s.Message.Metadata
	l := Letter{
		Position: s.Position, ID: s.Message.UUID, DeadLetteredAt: s.PublishedAt, Message: s.Message, in: group,
		EventID: md[events.KeyID], EventType: md[events.KeyType], Key: md[events.KeyOrdering], CorrelationID: md[events.KeyCorrelation],
		Reason: md[middleware.DeadLetterReason], Error: md[middleware.DeadLetterError], Stack: md[middleware.DeadLetterStack],
		Service: md[middleware.DeadLetterService], Handler: md[middleware.DeadLetterHandler],
		Topic: md[middleware.DeadLetterTopic], Group: md[middleware.DeadLetterGroup],
		Attempts: number(md[middleware.DeadLetterAttempts]), Deliveries: number(md[middleware.DeadLetterDeliveries]),
		Redrives:      number(md[middleware.DeadLetterRedriveCount]),
		FirstFailedAt: moment(md[middleware.DeadLetterFirstFailedAt]), LastFailedAt: moment(md[middleware.DeadLetterLastFailedAt]),
		Fingerprint: md[middleware.DeadLetterFingerprint],
		EditedAt:    moment(md[editedAtKey]), EditedBy: md[editedByKey],
		ParkedBehind: md[middleware.DeadLetterParkedBehind], RedrivesParked: number(md[middleware.DeadLetterRedrivesParked]),
	}
	if seq, err := strconv.ParseInt(md[middleware.DeadLetterParkSeq], 10, 64); err == nil && seq > 0 && md[middleware.DeadLetterParksKey] != "" {
		l.ParksKey, l.ParkSeq = true, seq
	}
	if l.Group == "" {
		l.Group = group
	}
	if chain := md[middleware.DeadLetterErrorChain]; chain != "" {
		if json.Unmarshal([]byte(chain), &l.ErrorChain) != nil {
			l.ErrorChain = []Cause{{Message: chain}}
		}
	}
	if !slices.Contains(reasons, l.Reason) && l.Reason != "" {
		// An adapter's own story is a text under the reason's key.
		if l.Error == "" {
			l.Error = l.Reason
		}
		l.Reason = middleware.ReasonMalformed
	}
	if l.Fingerprint == "" {
		l.Fingerprint = fallbackFingerprint(l)
	}
	if l.EventID == "" || l.EventType == "" || l.Key == "" {
		l.fromEnvelope()
	}
	return l
}

func (l *Letter) fromEnvelope() {
	env, err := events.Decode(l.Message.Payload)
	if err != nil {
		return
	}
	for _, f := range []struct {
		field *string
		value string
	}{
		{&l.EventID, env.ID}, {&l.EventType, env.Type}, {&l.Key, env.Metadata.OrderingKey}, {&l.CorrelationID, env.Metadata.CorrelationID},
	} {
		if *f.field == "" {
			*f.field = f.value
		}
	}
}

// fallbackFingerprint groups letters whose writer made no fingerprint.
func fallbackFingerprint(l Letter) string {
	sum := sha256.Sum256([]byte(l.Group + "\n" + l.Reason + "\n" + l.Error))
	return hex.EncodeToString(sum[:8])
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

func moment(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}
