package memory

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
)

// source is one subscription's place in a group.
type source struct {
	b *Broker
	t *topic
	g *group
}

func (b *Broker) join(ctx context.Context, cfg lanes.Config) (lanes.Source, error) {
	if err := b.EnsureTopology(ctx, broker.Subscription{Topic: cfg.Topic, Group: cfg.Group}); err != nil {
		return nil, err
	}
	t, err := b.topic(cfg.Topic)
	if err != nil {
		return nil, err
	}
	return &source{b: b, t: t, g: t.group(cfg.Group)}, nil
}

// Fetch returns what was given back and is due, then what is new. It waits for
// the first until ctx ends.
func (s *source) Fetch(ctx context.Context, limit int) ([]*lanes.Entry, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		entries, changed, wait := s.poll(limit)
		if len(entries) > 0 {
			return entries, nil
		}
		var due <-chan time.Time
		var timer *time.Timer
		if wait > 0 {
			timer = time.NewTimer(wait)
			due = timer.C
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-due:
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

func (s *source) poll(limit int) (entries []*lanes.Entry, changed <-chan struct{}, wait time.Duration) {
	now := time.Now()
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.g.back = slices.DeleteFunc(s.g.back, func(b returned) bool {
		if left := b.due.Sub(now); left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			return false
		}
		if len(entries) == limit {
			return false
		}
		entries = append(entries, newEntry(b.rec, b.stored+1))
		return true
	})
	from := s.t.after(s.g.cursor)
	to := min(from+limit-len(entries), len(s.t.log))
	for _, r := range s.t.log[from:to] {
		s.g.cursor = r.pos
		s.g.pending[r.pos] = r
		entries = append(entries, newEntry(r, 1))
	}
	return entries, s.g.changed, wait
}

func newEntry(r *record, stored int) *lanes.Entry {
	return &lanes.Entry{ID: strconv.FormatUint(r.pos, 10), Pos: lanes.Pos{Lo: r.pos}, Stored: stored, Raw: r}
}

// Reclaim has nothing to do: Fetch returns what was given back.
func (s *source) Reclaim(context.Context, int, func(string) bool) ([]*lanes.Entry, error) {
	return nil, nil
}

func (s *source) Decode(e *lanes.Entry) (*message.Message, error) {
	r, ok := e.Raw.(*record)
	if !ok {
		return nil, fmt.Errorf("memory: entry %s has no body", e.ID)
	}
	return clone(r.msg.UUID, r.msg.Payload, r.msg.Metadata), nil
}

func (s *source) Malformed(e *lanes.Entry) *message.Message { return message.NewMessage(e.ID, nil) }

func (s *source) Ack(_ context.Context, entries []*lanes.Entry) error {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	for _, e := range entries {
		delete(s.g.pending, e.Pos.Lo)
	}
	s.t.trim()
	return nil
}

func (s *source) Renew(context.Context, []lanes.Ref) ([]string, error) { return nil, nil }

func (s *source) Load(_ context.Context, refs []lanes.Ref) (map[string]any, error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	raw := make(map[string]any, len(refs))
	for _, r := range refs {
		if rec := s.g.pending[r.Pos.Lo]; rec != nil {
			raw[r.ID] = rec
		}
	}
	return raw, nil
}

func (s *source) Release(_ context.Context, entries []*lanes.Entry) error {
	now := time.Now()
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	for _, e := range entries {
		if r := s.g.pending[e.Pos.Lo]; r != nil {
			s.g.back = append(s.g.back, returned{rec: r, stored: e.Stored, due: now.Add(e.Delay)})
		}
	}
	slices.SortFunc(s.g.back, func(a, b returned) int { return int(int64(a.rec.pos) - int64(b.rec.pos)) })
	s.g.wake()
	return nil
}

func (s *source) Close(context.Context) error { return nil }
