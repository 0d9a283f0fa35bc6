package middleware

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/pkg/events"
)

// Metadata keys that Poison adds to a dead letter. None is ever empty: what is
// not known is left out.
const (
	// DeadLetterReason is the reason's class: one of the Reason constants.
	DeadLetterReason = "dead_letter_reason"
	// DeadLetterError is the last attempt's error text.
	DeadLetterError = "dead_letter_error"
	// DeadLetterErrorChain is a JSON array of {"type","message"}, outermost first.
	DeadLetterErrorChain = "dead_letter_error_chain"
	// DeadLetterStack is a panic's stack.
	DeadLetterStack = "dead_letter_stack"
	// DeadLetterHandler, DeadLetterTopic, DeadLetterGroup and DeadLetterService
	// say where the message failed.
	DeadLetterHandler = "dead_letter_handler"
	DeadLetterTopic   = "dead_letter_topic"
	DeadLetterGroup   = "dead_letter_group"
	DeadLetterService = "dead_letter_service"
	// DeadLetterAttempts is how often the handler ran: in the last delivery, and in
	// those before it that this process saw. DeadLetterDeliveries is how often the
	// broker handed the message out.
	DeadLetterAttempts   = "dead_letter_attempts"
	DeadLetterDeliveries = "dead_letter_deliveries"
	// DeadLetterFirstFailedAt and DeadLetterLastFailedAt are RFC 3339 UTC times.
	DeadLetterFirstFailedAt = "dead_letter_first_failed_at"
	DeadLetterLastFailedAt  = "dead_letter_last_failed_at"
	// DeadLetterFingerprint is equal for failures that look alike: same handler,
	// reason and error text with its numbers and ids left out.
	DeadLetterFingerprint = "dead_letter_fingerprint"
	// DeadLetterRedriveCount is written by a redrive and kept by Poison.
	DeadLetterRedriveCount = "dead_letter_redrive_count"
	// DeadLetterParksKey is "1" on a dead letter that holds up later messages of
	// its key, DeadLetterParkSeq is its place among those of the key, and
	// DeadLetterParkedBehind the id of the first of them when it came.
	DeadLetterParksKey     = "dead_letter_parks_key"
	DeadLetterParkSeq      = "dead_letter_park_seq"
	DeadLetterParkedBehind = "dead_letter_parked_behind"
	// DeadLetterRedrivesParked is how many of the redrives ended parked again.
	DeadLetterRedrivesParked = "dead_letter_redrives_parked"
	// DeadLetterDiscarded marks what a discard sends to the redrive topic: no
	// message, but the word that the dead letter at DeadLetterParkSeq is gone.
	DeadLetterDiscarded = "dead_letter_discarded"
	// DeadLetterPrefix begins every key above; DeadLetterPreviousPrefix begins
	// the key to which the value of the dead-lettering before this one moves.
	DeadLetterPrefix         = "dead_letter_"
	DeadLetterPreviousPrefix = "dead_letter_previous_"
)

// Values of DeadLetterReason.
const (
	// ReasonDecode: the message is not what the handler can read.
	ReasonDecode = "decode"
	// ReasonMalformed: the broker's entry was no message; Poison met ErrMalformed.
	ReasonMalformed = "malformed"
	// ReasonPermanent: the handler said that no retry can mend it.
	ReasonPermanent = "permanent"
	// ReasonPanic: the last attempt panicked or ended its goroutine.
	ReasonPanic = "panic"
	// ReasonTimeout: the last attempt failed past its deadline.
	ReasonTimeout = "timeout"
	// ReasonExhausted: the attempts were used up.
	ReasonExhausted = "exhausted"
	// ReasonDeliveriesExhausted: handed out too often, the handler did not run.
	ReasonDeliveriesExhausted = "deliveries_exhausted"
	// ReasonParked: another message of its key failed before, the handler did not
	// run.
	ReasonParked = "parked"
)

// deadLetterReasons are all of them: the label's values.
var deadLetterReasons = []string{
	ReasonDecode, ReasonMalformed, ReasonPermanent, ReasonPanic, ReasonTimeout, ReasonExhausted, ReasonDeliveriesExhausted,
	ReasonParked,
}

// Bounds on what a failure may add to a message.
const (
	maxErrorBytes = 2 << 10
	maxChainBytes = 4 << 10
	maxChainLinks = 16
)

// ErrMalformed is in the chain of the error with which a broker's entry that is
// no message at all goes to the dead letters.
var ErrMalformed = errors.New("malformed entry")

// ErrDeliveriesExhausted is the error of a message that was handed out too often.
var ErrDeliveriesExhausted = errors.New("handed out too often without ever being settled: its handler may kill the process")

// story is what a dead letter tells.
type story struct {
	reason     string
	err        error
	handler    string
	topic      string
	group      string
	service    string
	attempts   int
	deliveries int
	first      time.Time
	last       time.Time
	stackLimit int
	parking    map[string]string
}

// original is what a message was before any handler could change it.
type original struct {
	uuid    string
	payload message.Payload
}

// reasonOf classes a failure. The classes are few, so they can be a label.
func reasonOf(err error) string {
	var (
		decode *events.DecodeError
		panics *PanicError
		parked *ParkedError
	)
	disposition, _ := DispositionOf(err)
	switch {
	case errors.Is(err, ErrDeliveriesExhausted):
		return ReasonDeliveriesExhausted
	case errors.As(err, &parked):
		return ReasonParked
	case errors.Is(err, ErrMalformed):
		return ReasonMalformed
	case errors.As(err, &panics):
		return ReasonPanic
	case disposition == DispositionPermanent && errors.As(err, &decode):
		return ReasonDecode
	case disposition == DispositionPermanent:
		return ReasonPermanent
	case errors.Is(err, ErrTimeout):
		return ReasonTimeout
	default:
		return ReasonExhausted
	}
}

// deadLetter makes the copy that tells the story. The original's id, bytes and
// metadata stay; correlation and trace are added where it had none.
func deadLetter(msg *message.Message, o original, s story) *message.Message {
	dead := message.NewMessage(o.uuid, o.payload)
	for k, v := range msg.Metadata {
		if _, moves := movesAside(k); !moves {
			dead.Metadata[k] = v
		}
	}
	for k, v := range msg.Metadata {
		if previous, moves := movesAside(k); moves {
			dead.Metadata[previous] = v
		}
	}
	add := func(key, value string) {
		if value != "" {
			dead.Metadata[key] = value
		}
	}
	delete(dead.Metadata, DeadLetterParkSeq)
	maps.Copy(dead.Metadata, s.parking)
	cause := s.err
	var gaveUp *ExhaustedError
	if errors.As(s.err, &gaveUp) {
		cause = gaveUp.Err
	}
	text := clean(cause.Error(), maxErrorBytes)
	add(DeadLetterReason, s.reason)
	add(DeadLetterError, text)
	add(DeadLetterErrorChain, chainJSON(s.err))
	var panics *PanicError
	if errors.As(s.err, &panics) {
		add(DeadLetterStack, clean(panics.Stack, s.stackLimit))
	}
	add(DeadLetterHandler, s.handler)
	add(DeadLetterTopic, s.topic)
	add(DeadLetterGroup, s.group)
	add(DeadLetterService, s.service)
	add(DeadLetterAttempts, strconv.Itoa(s.attempts))
	if s.deliveries > 0 {
		add(DeadLetterDeliveries, strconv.Itoa(s.deliveries))
	}
	add(DeadLetterFirstFailedAt, s.first.UTC().Format(time.RFC3339Nano))
	add(DeadLetterLastFailedAt, s.last.UTC().Format(time.RFC3339Nano))
	add(DeadLetterFingerprint, fingerprint(s.handler, s.reason, text))

	ctx := msg.Context()
	c := CorrelationFrom(ctx)
	c.CausationID = "" // the copy has the original's cause, or none
	traceparent, tracestate := TraceFrom(ctx)
	stamp(dead, c, traceparent, tracestate)
	return dead
}

// DeadLetterReserve is how many bytes below a broker's limit a message must stay,
// so that its dead letter fits at its shortest.
const DeadLetterReserve = 2 << 10

// fitted leaves parts of the story out until dead is not above limit; 0 is no
// limit.
func fitted(dead *message.Message, limit int) *message.Message {
	if limit <= 0 {
		return dead
	}
	size := len(dead.UUID) + len(dead.Payload)
	for k, v := range dead.Metadata {
		size += len(k) + len(v)
	}
	drop := func(key string) {
		if v, ok := dead.Metadata[key]; ok && size > limit {
			size -= len(key) + len(v)
			delete(dead.Metadata, key)
		}
	}
	drop(DeadLetterStack)
	drop(DeadLetterErrorChain)
	for key := range dead.Metadata {
		if strings.HasPrefix(key, DeadLetterPreviousPrefix) {
			drop(key)
		}
	}
	drop(DeadLetterParkedBehind) // the error's text names it too
	if text := dead.Metadata[DeadLetterError]; size > limit && len(text) > 0 {
		short := clean(text, max(len(text)-(size-limit), 100))
		size -= len(text) - len(short)
		dead.Metadata[DeadLetterError] = short
	}
	return dead
}

// movesAside tells whether key belongs to an earlier story, and its new name.
// The story before the earlier one makes room for it.
func movesAside(key string) (previous string, moves bool) {
	switch {
	case key == DeadLetterRedriveCount, key == DeadLetterRedrivesParked, key == DeadLetterParkSeq, strings.HasPrefix(key, DeadLetterPreviousPrefix):
		return "", false
	case strings.HasPrefix(key, DeadLetterPrefix):
		return DeadLetterPreviousPrefix + strings.TrimPrefix(key, DeadLetterPrefix), true
	default:
		return "", false
	}
}

type chainLink struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// chainJSON lists err and what it wraps, outermost first, within maxChainBytes.
func chainJSON(err error) string {
	var links []chainLink
	size := 2
	var walk func(error)
	walk = func(err error) {
		for err != nil && len(links) < maxChainLinks {
			//nolint:errorlint // each link of the chain is looked at by itself
			if _, marker := err.(*disposedError); !marker {
				link := chainLink{Type: fmt.Sprintf("%T", err), Message: clean(err.Error(), maxErrorBytes/4)}
				b, _ := json.Marshal(link)
				if size += len(b) + 1; size > maxChainBytes {
					return
				}
				links = append(links, link)
			}
			switch u := err.(type) { //nolint:errorlint // as above
			case interface{ Unwrap() error }:
				err = u.Unwrap()
			case interface{ Unwrap() []error }:
				for _, inner := range u.Unwrap() {
					walk(inner)
				}
				return
			default:
				return
			}
		}
	}
	walk(err)
	b, jsonErr := json.Marshal(links)
	if jsonErr != nil || len(links) == 0 {
		return ""
	}
	return string(b)
}

// clean makes text that every broker takes: valid UTF-8, no control characters
// but newline and tab, within limit.
func clean(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if unicode.IsControl(r) || r == utf8.RuneError || r == 0xFFFE || r == 0xFFFF {
			return -1
		}
		return r
	}, s)
	if limit <= 0 || len(s) <= limit {
		return s
	}
	const mark = "…"
	cut := max(limit-len(mark), 0)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + mark
}

// fingerprint hashes what alike failures share. Words that hold a digit are
// ids, counts or times, so they are left out.
func fingerprint(handler, reason, text string) string {
	var b strings.Builder
	word := func(r rune) bool { return r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }
	for text != "" {
		end := strings.IndexFunc(text, func(r rune) bool { return !word(r) })
		switch {
		case end == 0:
			_, n := utf8.DecodeRuneInString(text)
			b.WriteString(text[:n])
			text = text[n:]
			continue
		case end < 0:
			end = len(text)
		}
		if strings.ContainsFunc(text[:end], unicode.IsDigit) {
			b.WriteByte('#')
		} else {
			b.WriteString(text[:end])
		}
		text = text[end:]
	}
	sum := sha256.Sum256([]byte(handler + "\n" + reason + "\n" + b.String()))
	return hex.EncodeToString(sum[:8])
}
