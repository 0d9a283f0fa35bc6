package middleware

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/pkg/events"
)

// record is what the layers around one delivery tell each other. All of it but
// attempt is touched by one goroutine at a time.
type record struct {
	// attempt is read by AttemptFrom, also from goroutines that a handler left.
	attempt atomic.Int32

	// earlier is how many attempts earlier deliveries made, as far as is known.
	earlier     int
	firstFailed time.Time
	lastFailed  time.Time

	// settled says that a Poison outside settles deferrals; gaveBack that a
	// layer has done so already.
	settled  bool
	gaveBack bool

	outcome outcome
}

// failed notes a failed attempt.
func (r *record) failed(at time.Time) {
	if r.firstFailed.IsZero() {
		r.firstFailed = at
	}
	r.lastFailed = at
}

// outcome is the end of a delivery as the metrics name it.
type outcome string

const (
	outcomeHandled      outcome = "handled"
	outcomeFailed       outcome = "failed"
	outcomeDeadLettered outcome = "dead_lettered"
	outcomeSkipped      outcome = "skipped"
	outcomeDeferred     outcome = "deferred"
	outcomeDuplicate    outcome = "duplicate"
	outcomeRedelivered  outcome = "redelivered"
)

type recordKey struct{}

// scope is the context that carries a record and, in Correlate, a Correlation:
// one allocation instead of four.
type scope struct {
	context.Context
	rec         *record
	correlation *Correlation

	ownRecord      record
	ownCorrelation Correlation
}

// Value answers the two keys of this package without walking the parents.
func (s *scope) Value(key any) any {
	switch key.(type) {
	case recordKey:
		return s.rec
	case correlationKey:
		if s.correlation != nil {
			return s.correlation
		}
	}
	return s.Context.Value(key)
}

// enter puts a record into msg's context where there is none yet. The caller
// puts the returned context back when it is done.
func enter(msg *message.Message) (rec *record, old context.Context) {
	old = msg.Context()
	if rec = recordFrom(old); rec != nil {
		return rec, old
	}
	s := &scope{Context: old}
	s.rec = &s.ownRecord
	msg.SetContext(s)
	return s.rec, old
}

func recordFrom(ctx context.Context) *record {
	rec, _ := ctx.Value(recordKey{}).(*record)
	return rec
}

// messageID is the id that a message is known by: the event's where it has one.
func messageID(msg *message.Message) string {
	if id := msg.Metadata[events.KeyID]; id != "" {
		return id
	}
	return msg.UUID
}

// withIDs begins a log line with the ids of a message: message_id is the one that
// the broker's entry and the dead letter have, event_id the envelope's.
func withIDs(uuid string, msg *message.Message, args ...any) []any {
	ids := []any{"message_id", uuid}
	if id := msg.Metadata[events.KeyID]; id != "" {
		ids = append(ids, "event_id", id)
	}
	return append(ids, args...)
}

// handlerName prefers the configured name to the router's.
func handlerName(configured string, ctx context.Context) string {
	if configured != "" {
		return configured
	}
	return message.HandlerNameFromCtx(ctx)
}

// groupName prefers the configured group to the delivery's.
func groupName(configured string, d *Delivery) string {
	if configured != "" || d == nil {
		return configured
	}
	return d.Group()
}
