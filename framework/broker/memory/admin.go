package memory

import (
	"context"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/headrace-go/headrace/framework/broker"
)

type admin struct{ b *Broker }

func (a admin) Stats(ctx context.Context, sub broker.Subscription) (broker.Stats, error) {
	if err := a.b.Ping(ctx); err != nil {
		return broker.Stats{}, err
	}
	t := a.b.lookup(sub.Topic)
	if t == nil {
		return broker.Stats{}, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.groups[sub.Group]
	if g == nil {
		return broker.Stats{}, nil
	}
	next := t.after(g.cursor)
	stats := broker.Stats{Lag: int64(len(t.log) - next), Pending: int64(len(g.pending))}
	var oldest time.Time
	if next < len(t.log) {
		oldest = t.log[next].at
	}
	for _, r := range g.pending {
		if oldest.IsZero() || r.at.Before(oldest) {
			oldest = r.at
		}
	}
	if !oldest.IsZero() {
		stats.OldestAge = time.Since(oldest)
	}
	return stats, nil
}

func (a admin) Depth(ctx context.Context, topic string) (int64, error) {
	if err := a.b.Ping(ctx); err != nil {
		return 0, err
	}
	t := a.b.lookup(topic)
	if t == nil {
		return 0, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(len(t.log)), nil
}

func (a admin) Browse(ctx context.Context, topic string, since time.Time) iter.Seq2[broker.Stored, error] {
	return func(yield func(broker.Stored, error) bool) {
		if err := a.b.Ping(ctx); err != nil {
			yield(broker.Stored{}, err)
			return
		}
		t := a.b.lookup(topic)
		if t == nil {
			return
		}
		t.mu.Lock()
		log := slices.Clone(t.log)
		t.mu.Unlock()
		for _, r := range log {
			if err := ctx.Err(); err != nil {
				yield(broker.Stored{}, err)
				return
			}
			if r.at.Before(since) {
				continue
			}
			stored := broker.Stored{
				Position:    strconv.FormatUint(r.pos, 10),
				PublishedAt: r.at,
				Message:     clone(r.msg.UUID, r.msg.Payload, r.msg.Metadata),
			}
			if !yield(stored, nil) {
				return
			}
		}
	}
}

func (a admin) Delete(ctx context.Context, topic string, positions ...string) (int, error) {
	if err := a.b.Ping(ctx); err != nil {
		return 0, err
	}
	t := a.b.lookup(topic)
	if t == nil {
		return 0, nil
	}
	gone := make(map[uint64]bool, len(positions))
	for _, p := range positions {
		if pos, err := strconv.ParseUint(p, 10, 64); err == nil {
			gone[pos] = true
		}
	}
	return t.remove(gone), nil
}
