package kafka

import (
	"context"
	"time"
)

// Drain has this member leave its group as soon as there are others on the topic,
// so that they get at once what no handler has begun. Alone it stays, and what is
// settled is committed.
func (s *source) Drain() {
	s.leaving.Go(func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			if s.shared(s.stopped) {
				if err := s.leaveGroup(s.stopped); err != nil {
					s.log.DebugContext(s.stopped, "leaving the group failed; it is tried again at the end", "error", err)
				}
				return
			}
			select {
			case <-s.stopped.Done():
				return
			case <-tick.C:
			}
		}
	})
}

// shared tells whether the group has another member on this topic.
func (s *source) shared(ctx context.Context) bool {
	ctx, cancel := s.b.timeout(ctx)
	defer cancel()
	groups, err := s.b.admin.DescribeGroups(ctx, s.group)
	if err != nil {
		return false
	}
	own, _ := s.client.GroupMetadata()
	for _, m := range groups[s.group].Members {
		join, ok := m.Join.AsConsumer()
		if m.MemberID != own && ok {
			for _, topic := range join.Topics {
				if topic == s.name {
					return true
				}
			}
		}
	}
	return false
}

func (s *source) leaveGroup(ctx context.Context) error {
	s.leave.Lock()
	defer s.leave.Unlock()
	if s.left {
		return nil
	}
	err := s.client.LeaveGroupContext(ctx)
	s.left = err == nil
	return err
}

// Close ends the membership. What a handler still has stays its own for a lease.
func (s *source) Close(ctx context.Context) error {
	s.stop()
	s.leaving.Wait()
	err := s.leaveGroup(ctx)
	s.client.CloseAllowingRebalance()
	s.tidy(ctx)
	return err
}

// tidy removes the group that this member told others through, once no ledger
// refers to it. Where it is not removed, Kafka does so with its offsets'
// retention.
func (s *source) tidy(ctx context.Context) {
	s.mu.Lock()
	told, holds := !s.tellAt.IsZero(), false
	for _, items := range s.handed {
		for _, it := range items {
			holds = holds || it.told.IsZero()
		}
	}
	s.mu.Unlock()
	if !told || holds {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for ctx.Err() == nil {
		ledgers, err := s.b.ledgers(ctx, s.group, s.name)
		if err != nil {
			return
		}
		named := false
		for _, l := range ledgers {
			for _, e := range l.notes {
				named = named || e.holder == s.member
			}
		}
		if !named {
			_, err := s.b.admin.DeleteGroup(ctx, s.b.cfg.holderGroup(s.cfg.Group, s.member))
			if err != nil {
				s.log.DebugContext(ctx, "the group that this member told others through was not removed", "error", err)
			}
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchEvery):
		}
	}
}
