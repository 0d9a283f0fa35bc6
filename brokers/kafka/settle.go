package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace-go/headrace/framework/broker/lanes"
)

func sortedKeys[V any](m map[int32]V) []int32 { return slices.Sorted(maps.Keys(m)) }

// Ack settles entries for good.
func (s *source) Ack(ctx context.Context, entries []*lanes.Entry) error {
	s.mu.Lock()
	for _, e := range entries {
		it := s.live[e.ID]
		if it == nil {
			continue // lost, or done by a call that failed later
		}
		if it.holder != "" {
			it.settled, s.untold = true, true
			delete(s.live, it.id)
			continue
		}
		it.part.remove(it)
		s.drop(it)
	}
	s.mu.Unlock()
	return s.write(ctx)
}

// Release gives entries back, with their counts and delays.
func (s *source) Release(ctx context.Context, entries []*lanes.Entry) error {
	now := time.Now()
	s.mu.Lock()
	for _, e := range entries {
		it := s.live[e.ID]
		if it == nil {
			continue
		}
		delete(s.live, it.id)
		it.id, it.count, it.mark, it.due = "", e.Stored, e.Stored, time.Time{}
		if e.Delay > 0 {
			it.due = now.Add(e.Delay)
		}
		if it.holder != "" {
			it.back, s.untold = true, true
			continue
		}
		it.part.changes++
	}
	s.mu.Unlock()
	return s.write(ctx)
}

// Renew writes counts, and tells those who own partitions by now that what is held
// of them still is.
func (s *source) Renew(ctx context.Context, refs []lanes.Ref) (lost []string, err error) {
	now := time.Now()
	write := false
	s.mu.Lock()
	for _, r := range refs {
		it := s.live[r.ID]
		if it == nil || s.over(it, now) {
			lost = append(lost, r.ID)
			delete(s.live, r.ID)
			continue
		}
		switch {
		case r.Stored > it.count && it.part != nil && !it.part.lostAt.IsZero():
			err = errAway
		case r.Stored > it.count: // a handler is about to get it
			it.count = r.Stored
			if it.mark < it.count {
				write = true
				s.mark(it, it.count)
			}
		case r.Stored < it.count: // its handler gave it back uncounted
			it.count = r.Stored
			s.mark(it, it.count)
		}
	}
	due := len(s.handed) > 0 && now.Sub(s.tellAt) >= s.cfg.Lease/3
	s.mu.Unlock()
	switch {
	case write:
		err = errors.Join(err, s.write(ctx))
	case due:
		err = errors.Join(err, s.tell(ctx))
	}
	return lost, err
}

// errAway says that a handler can't get a message now.
var errAway = errors.New("the group is out of reach, and is being joined again")

// over tells that what was in hand may be in another's by now. The lock is held.
func (s *source) over(it *item, now time.Time) bool {
	if it.holder != "" {
		return now.After(it.until)
	}
	return !it.part.lostAt.IsZero() && now.Sub(it.part.lostAt) > s.cfg.Lease
}

// mark sets the count that has to be on record. The lock is held.
func (s *source) mark(it *item, count int) {
	it.mark = count
	if it.holder != "" {
		s.untold = true
	} else {
		it.part.changes++
	}
}

// Load returns bodies, which are all here, and writes counts. The count of one that
// may kill its consumers is written when its handler gets it.
func (s *source) Load(ctx context.Context, refs []lanes.Ref) (map[string]any, error) {
	raw := make(map[string]any, len(refs))
	write := false
	s.mu.Lock()
	for _, r := range refs {
		it := s.live[r.ID]
		if it == nil {
			continue
		}
		raw[r.ID] = it.rec
		it.count = r.Stored
		if count := it.count + 1; it.mark < count && count < s.cfg.SuspectFrom {
			write = true
			s.mark(it, count)
		}
	}
	s.mu.Unlock()
	if write {
		if err := s.write(ctx); err != nil {
			return nil, err
		}
	}
	return raw, nil
}

// write sends all that changed.
func (s *source) write(ctx context.Context) error {
	s.mu.Lock()
	untold := s.untold
	s.mu.Unlock()
	err := s.commit(ctx)
	if untold {
		err = errors.Join(err, s.tell(ctx))
	}
	return err
}

// commit sends offsets and ledgers of this member's partitions, where they
// changed. What was fetched is ours, also when the drain has begun meanwhile.
func (s *source) commit(ctx context.Context) error {
	s.committing.Lock()
	defer s.committing.Unlock()
	ctx, cancel := s.b.timeout(context.WithoutCancel(ctx))
	defer cancel()
	offsets := make(map[int32]kgo.EpochOffset)
	ledgers := make(map[int32]string)
	changes := make(map[*part]int)
	s.mu.Lock()
	for _, p := range s.parts {
		if p.changes != p.sent && p.next >= 0 {
			changes[p] = p.changes
			base := p.base()
			offsets[p.n] = kgo.EpochOffset{Epoch: -1, Offset: base}
			ledgers[p.n] = p.ledger().encode(base)
		}
	}
	s.mu.Unlock()
	if len(changes) == 0 {
		return nil
	}
	err := s.send(ctx, offsets, ledgers)
	if err != nil {
		return fmt.Errorf("kafka: commit offsets of group %s: %w", s.group, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, n := range changes {
		p.sent, p.record = n, record(offsets[p.n].Offset, ledgers[p.n])
	}
	return nil
}

func (s *source) send(ctx context.Context, offsets map[int32]kgo.EpochOffset, ledgers map[int32]string) error {
	ctx = kgo.PreCommitFnContext(ctx, func(r *kmsg.OffsetCommitRequest) error {
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				p := &r.Topics[i].Partitions[j]
				p.Metadata = kmsg.StringPtr(ledgers[p.Partition])
			}
		}
		return nil
	})
	var failed error
	s.client.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{s.name: offsets},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error) {
			if failed = err; err != nil {
				return
			}
			answered := 0
			for _, t := range response.Topics {
				for _, p := range t.Partitions {
					answered++
					failed = errors.Join(failed, kerr.ErrorForCode(p.ErrorCode))
				}
			}
			if failed == nil && answered != len(offsets) {
				failed = fmt.Errorf("%d of %d partitions answered", answered, len(offsets))
			}
		})
	return failed
}
