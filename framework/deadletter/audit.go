package deadletter

import (
	"context"
	"fmt"
	"time"
)

// Action is what was done to a letter.
type Action string

// The actions.
const (
	ActionReplay  Action = "replay"
	ActionDiscard Action = "discard"
	ActionEdit    Action = "edit"
	ActionImport  Action = "import"
)

// Entry is one line of the audit. It holds no payload.
type Entry struct {
	At     time.Time `json:"at"`
	Actor  string    `json:"actor"`
	Action Action    `json:"action"`
	Group  string    `json:"group"`
	ID     string    `json:"id"`
	// EventType and Key are the event's.
	EventType string `json:"event_type,omitempty"`
	Key       string `json:"key,omitempty"`
	// Redrives is the letter's count before the action.
	Redrives int `json:"redrives"`
	// Digest is the letter's, NewDigest that of the letter which took its place.
	Digest    string `json:"digest"`
	NewDigest string `json:"new_digest,omitempty"`
}

func (q *Queue) audit(ctx context.Context, a Action, l Letter, newDigest string) error {
	if q.cfg.Audit == nil {
		return nil
	}
	err := q.cfg.Audit(context.WithoutCancel(ctx), Entry{
		At: q.cfg.Clock().UTC(), Actor: q.cfg.Actor, Action: a, Group: q.cfg.Group, ID: l.ID,
		EventType: l.EventType, Key: l.Key, Redrives: l.Redrives, Digest: l.Digest(), NewDigest: newDigest,
	})
	if err != nil {
		return fmt.Errorf("deadletter: audit of %s of %s: %w", a, l.ID, err)
	}
	return nil
}
