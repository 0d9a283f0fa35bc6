package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/internal/failpoint"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// Metadata keys of a letter that Edit made. Replay leaves them out like the rest
// of the story.
const (
	// OriginalKey holds the message as it was before the first edit: a Record
	// without the story.
	OriginalKey = middleware.DeadLetterPrefix + "original"

	replacesKey = middleware.DeadLetterPrefix + "replaces" // the digest of the letter that it replaces
	editedAtKey = middleware.DeadLetterPrefix + "edited_at"
	editedByKey = middleware.DeadLetterPrefix + "edited_by"
)

// Errors of Edit.
var (
	// ErrEdit is in the chain when what was asked for must not be done.
	ErrEdit = errors.New("edit refused")
	// ErrUnchanged: the edit changes nothing.
	ErrUnchanged = errors.New("nothing was changed")
)

// EditOptions say what changes.
type EditOptions struct {
	// Payload replaces the payload. Nil keeps it.
	Payload []byte
	// Metadata replaces the metadata without the story. Nil keeps it, but for the
	// event's own headers, which follow the payload's envelope.
	Metadata map[string]string
	// Force takes a payload that is no envelope, or one whose id is another:
	// idempotency no longer knows the message then. Default false.
	Force bool
}

// Edit replaces a letter by one with another payload or metadata, which has the
// same id, keeps the story and the original, and says who edited it when. The
// new letter is published and confirmed before the old one is deleted. It does
// not replay it.
//
// A payload that can't be decoded, or that changes the event's id, is refused
// unless forced. Changes to keys of the story are refused, a letter that would be
// larger than the broker takes, and another ordering key for a letter that holds
// up its key.
func (q *Queue) Edit(ctx context.Context, l Letter, o EditOptions) (Letter, error) {
	edited, err := q.edited(l, o)
	if err != nil {
		return Letter{}, err
	}
	if err := q.post(ctx, []Letter{edited}); err != nil {
		if errors.Is(err, broker.ErrRejected) {
			return Letter{}, fmt.Errorf("deadletter: %w: with its original the letter is more than the broker takes: export it, edit the export, discard the letter and import the edited one: %w", ErrEdit, err)
		}
		return Letter{}, err
	}
	failpoint.Hit("edit.published")
	if err := q.remove(ctx, []Letter{l}); err != nil {
		return Letter{}, fmt.Errorf("the edited letter stands in the queue, and the old one still does; the next replay deletes it: %w", err)
	}
	return edited, q.audit(ctx, ActionEdit, l, edited.Digest())
}

// edited builds the new letter.
func (q *Queue) edited(l Letter, o EditOptions) (Letter, error) {
	refuse := func(format string, args ...any) (Letter, error) {
		return Letter{}, fmt.Errorf("deadletter: %w: %w", ErrEdit, fmt.Errorf(format, args...))
	}
	before := l.Original()
	payload := before.Payload
	if o.Payload != nil {
		payload = o.Payload
	}
	was, wasErr := events.Decode(before.Payload)
	env, err := events.Decode(payload)
	switch {
	case o.Force:
	case err != nil:
		return refuse("the new payload is no event: %w", err)
	case wasErr == nil && env.ID != was.ID:
		return refuse("the event's id changes from %s to %s, so that the message would be a new one: publish a new event instead", was.ID, env.ID)
	}
	m := message.NewMessage(l.Message.UUID, payload)
	for k, v := range l.Message.Metadata {
		if o.Metadata == nil || strings.HasPrefix(k, middleware.DeadLetterPrefix) {
			m.Metadata[k] = v
		}
	}
	for k, v := range o.Metadata {
		if strings.HasPrefix(k, middleware.DeadLetterPrefix) {
			return refuse("metadata key %q belongs to the story, which can't be edited", k)
		}
		m.Metadata[k] = v
	}
	if err == nil && o.Metadata == nil {
		follow(m, was, env)
	}
	if string(m.Payload) == string(before.Payload) && same(m, l.Message) {
		return Letter{}, fmt.Errorf("deadletter: %w", ErrUnchanged)
	}
	if m.Metadata[OriginalKey] == "" {
		b, err := json.Marshal(record(Letter{Message: before}, q.cfg.Group))
		if err != nil {
			return Letter{}, fmt.Errorf("deadletter: keep the original: %w", err)
		}
		m.Metadata[OriginalKey] = string(b)
	}
	m.Metadata[replacesKey] = l.Digest()
	m.Metadata[editedAtKey] = q.cfg.Clock().UTC().Format(time.RFC3339Nano)
	m.Metadata[editedByKey] = q.cfg.Actor
	edited := read(broker.Stored{PublishedAt: q.cfg.Clock().UTC(), Message: m}, q.cfg.Group)
	if l.ParksKey && edited.Key != l.Key {
		return refuse("the ordering key changes from %q to %q, and the letter holds up the former: publish a new event, and discard this one", l.Key, edited.Key)
	}
	return edited, nil
}

// follow sets the headers that the new envelope changes.
func follow(m *message.Message, was, now events.Envelope) {
	old := was.Headers()
	for k, v := range now.Headers() {
		if old[k] != v {
			m.Metadata[k] = v
		}
	}
	for k := range old {
		if _, stays := now.Headers()[k]; !stays {
			delete(m.Metadata, k)
		}
	}
}

func same(a, b *message.Message) bool {
	if len(a.Metadata) != len(b.Metadata) {
		return false
	}
	for k, v := range a.Metadata {
		if w, ok := b.Metadata[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// OriginalOf returns the message as it was before the first edit; nil for a
// letter that was never edited.
func OriginalOf(l Letter) (*message.Message, error) {
	kept := l.Message.Metadata[OriginalKey]
	if kept == "" {
		return nil, nil
	}
	var rec Record
	if err := json.Unmarshal([]byte(kept), &rec); err != nil {
		return nil, fmt.Errorf("deadletter: the original of %s: %w", l.ID, err)
	}
	m, err := rec.message()
	if err != nil {
		return nil, fmt.Errorf("deadletter: the original of %s: %w", l.ID, err)
	}
	return m, nil
}
