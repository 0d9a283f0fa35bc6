package kafka

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// onOffsets takes partitions over: it reads their ledgers, and has the client begin
// where they say.
func (s *source) onOffsets(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	ledgers, err := s.b.ledgers(ctx, s.group, s.name)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range offsets[s.name] {
		l, known := ledgers[n]
		if old := s.parts[n]; old != nil {
			s.abandon(old)
		}
		p := restore(n, l, known)
		if old := s.lost[n]; old != nil {
			delete(s.lost, n)
			if known && old.record == p.record && time.Since(old.lostAt) < s.cfg.Lease {
				// Nobody has had it meanwhile: whoever hands something out writes first.
				p = old
				p.lostAt = time.Time{}
			} else {
				s.abandon(old)
			}
		}
		s.parts[n] = p
		switch {
		case known && p.unread == 0 && p.next >= 0:
			offsets[s.name][n] = kgo.NewOffset().At(p.next)
		case known:
			offsets[s.name][n] = kgo.NewOffset().At(p.base())
		}
	}
	return offsets, nil
}

func (s *source) onAssigned(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
	s.once[0].Do(func() { close(s.joined) })
	if len(assigned[s.name]) > 0 {
		s.once[1].Do(func() { close(s.assigned) })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, p := range s.lost {
		if !slices.Contains(assigned[s.name], n) {
			delete(s.lost, n)
			s.abandon(p)
		}
	}
}

// onRevoked hands partitions on. What is in hand stays here: the ledger names this
// member as its holder.
func (s *source) onRevoked(ctx context.Context, _ *kgo.Client, revoked map[string][]int32) {
	ctx, cancel := s.b.timeout(context.WithoutCancel(ctx))
	defer cancel()
	s.mu.Lock()
	until := time.Now().Add(s.cfg.Lease)
	var parts []*part
	var kept []*item
	for _, n := range revoked[s.name] {
		p := s.parts[n]
		if p == nil {
			continue
		}
		parts = append(parts, p)
		p.going = true
		for _, it := range p.items {
			if it.id == "" {
				if it.holder == "" && it.mark != it.count {
					it.mark = it.count
					p.changes++
				}
				continue
			}
			it.holder, it.until = s.member, until
			p.changes++
			kept = append(kept, it)
			s.keep(n, it)
		}
	}
	s.mu.Unlock()
	if len(kept) > 0 {
		// First what the new owner looks up, then what makes it look.
		if err := s.tell(ctx); err != nil {
			s.log.WarnContext(ctx, "partitions are another member's, and what was held of them is given up", "messages", len(kept), "error", err)
			s.mu.Lock()
			for _, it := range kept {
				it.holder, it.until = "", time.Time{}
				s.unkeep(it.part.n, it)
				delete(s.live, it.id)
			}
			s.mu.Unlock()
			kept = nil
		}
	}
	err := s.commit(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range parts {
		delete(s.parts, p.n)
		for _, r := range p.queue {
			s.bytes -= int64(size(r))
		}
		for _, it := range p.items {
			if it.holder != s.member || it.id == "" {
				s.drop(it)
			}
			if err != nil && it.id != "" {
				s.unkeep(p.n, it)
				s.drop(it)
			}
			it.part = nil
		}
	}
	if err != nil && len(kept) > 0 {
		s.log.WarnContext(ctx, "partitions are another member's, and what was held of them is given up", "messages", len(kept), "error", err)
	}
}

// onLost keeps partitions that others may get, until this member has joined again:
// most often the coordinator was out of reach, and nobody had them.
func (s *source) onLost(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range lost[s.name] {
		p := s.parts[n]
		if p == nil {
			continue
		}
		delete(s.parts, n)
		for _, r := range p.queue {
			s.bytes -= int64(size(r))
		}
		p.queue, p.lostAt = nil, time.Now()
		s.lost[n] = p
	}
}

// abandon forgets a partition and what is in hand of it. The lock is held.
func (s *source) abandon(p *part) {
	if s.parts[p.n] == p {
		delete(s.parts, p.n)
	}
	for _, r := range p.queue {
		s.bytes -= int64(size(r))
	}
	for _, it := range p.items {
		s.drop(it)
		it.part = nil
	}
}

// keep notes that this member holds an item of a partition that others own. The
// lock is held.
func (s *source) keep(n int32, it *item) {
	// An older hand-out of the same message says nothing any more.
	s.handed[n] = slices.DeleteFunc(s.handed[n], func(old *item) bool { return old.offset == it.offset })
	s.handed[n] = append(s.handed[n], it)
}

func (s *source) unkeep(n int32, it *item) {
	s.handed[n] = slices.DeleteFunc(s.handed[n], func(old *item) bool { return old == it })
	if len(s.handed[n]) == 0 {
		delete(s.handed, n)
	}
}

// tell writes what this member holds of others' partitions, what it settled and
// what it gave back.
func (s *source) tell(ctx context.Context) error {
	s.telling.Lock()
	defer s.telling.Unlock()
	ctx, cancel := s.b.timeout(context.WithoutCancel(ctx))
	defer cancel()
	now := time.Now()
	until := now.Add(s.cfg.Lease)
	var offsets kadm.Offsets
	var renewed, reported []*item
	s.mu.Lock()
	for n, items := range s.handed {
		items = s.prune(items, now)
		s.handed[n] = items
		if len(items) == 0 {
			delete(s.handed, n)
			continue
		}
		slices.SortFunc(items, func(a, b *item) int { return int(min(max(a.offset-b.offset, -1), 1)) })
		l := ledger{next: items[len(items)-1].offset + 1}
		for _, it := range items {
			e := note{offset: it.offset, count: it.mark, settled: it.settled}
			switch {
			case it.settled:
				reported = append(reported, it)
			case it.back:
				e.due = it.due
				reported = append(reported, it)
			case s.live[it.id] == it && now.Before(it.until):
				e.holder, e.until = s.member, until
				renewed = append(renewed, it)
			default: // lost: it stays as it is
				e.holder, e.until = s.member, it.until
			}
			l.notes = append(l.notes, e)
		}
		base := items[0].offset
		offsets.Add(kadm.Offset{Topic: s.name, Partition: n, At: base, LeaderEpoch: -1, Metadata: l.encode(base)})
	}
	s.untold = false
	s.mu.Unlock()
	if len(offsets) == 0 {
		return nil
	}
	err := s.b.admin.CommitAllOffsets(ctx, s.b.cfg.holderGroup(s.cfg.Group, s.member), offsets)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.untold = true
		return err
	}
	s.tellAt = now
	for _, it := range renewed {
		it.until = until
	}
	for _, it := range reported {
		if it.told.IsZero() {
			it.told = now
			if it.rec != nil {
				s.bytes -= int64(size(it.rec))
				it.rec = nil
			}
		}
	}
	return nil
}

// prune forgets what everybody has had time to read. The lock is held.
func (s *source) prune(items []*item, now time.Time) []*item {
	over := len(items) - MaxUnsettled
	return slices.DeleteFunc(items, func(it *item) bool {
		if it.told.IsZero() && s.live[it.id] != it && !it.settled && !it.back && now.Sub(it.until) > 2*s.cfg.Lease {
			s.drop(it) // lost long ago
			return true
		}
		if it.told.IsZero() || over <= 0 && now.Sub(it.told) < 2*s.cfg.Lease {
			return false
		}
		over--
		return true
	})
}

// watch looks what became of messages that other members hold. It tells whether
// there are any, or such that are not due yet.
func (s *source) watch(ctx context.Context) (any bool) {
	holders := make(map[string]bool)
	now := time.Now()
	s.mu.Lock()
	for _, p := range s.parts {
		for _, it := range p.items {
			if it.holder != "" && it.id == "" {
				holders[it.holder] = true
			}
			any = any || it.due.After(now)
		}
	}
	s.mu.Unlock()
	any = any || len(holders) > 0
	if len(holders) == 0 || now.Sub(s.watched) < watchEvery {
		return any
	}
	s.watched = now
	for holder := range holders {
		told, err := s.b.ledgers(ctx, s.b.cfg.holderGroup(s.cfg.Group, holder), s.name)
		if err != nil {
			s.log.DebugContext(ctx, "what another member holds can't be read; its lease decides", "error", err)
			continue
		}
		s.mu.Lock()
		for n, l := range told {
			if p := s.parts[n]; p != nil {
				s.learn(p, holder, l)
			}
		}
		s.mu.Unlock()
	}
	if err := s.commit(ctx); err != nil {
		s.log.DebugContext(ctx, "commit failed; it is sent with the next", "error", err)
	}
	return any
}

// learn takes over what a holder tells of a partition. The lock is held.
func (s *source) learn(p *part, holder string, l ledger) {
	for _, e := range l.notes {
		it := p.find(e.offset)
		if it == nil || it.holder != holder || it.id != "" {
			continue
		}
		switch {
		case e.settled:
			p.remove(it)
			s.drop(it)
		case e.holder == "":
			it.holder, it.until, it.count, it.mark, it.due = "", time.Time{}, e.count, e.count, e.due
			p.changes++
		default:
			it.until, it.count, it.mark = e.until, e.count, e.count
		}
	}
}
