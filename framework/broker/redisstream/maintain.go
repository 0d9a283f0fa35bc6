package redisstream

import (
	"context"
	"math/rand/v2"
	"time"
)

// maintain trims the stream and removes stale consumers, at once and then every
// MaintainEvery, spread over the members of the group.
func (s *source) maintain(ctx context.Context) {
	for {
		s.sweep(ctx)
		s.trim(ctx)
		every := s.b.cfg.MaintainEvery
		timer := time.NewTimer(every/2 + rand.N(every/2+1))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// sweep removes consumers that left nothing behind and don't come back.
func (s *source) sweep(ctx context.Context) {
	names, err := sweepScript.Run(ctx, s.client, []string{s.key}, s.group, s.consumer,
		s.b.cfg.ConsumerTimeout.Milliseconds()).StringSlice()
	if err != nil {
		s.upkeepFailed(ctx, "removing stale consumers", err)
		return
	}
	if len(names) > 0 {
		s.log.InfoContext(ctx, "removed stale consumers", "consumers", len(names))
	}
}

// trim removes what every group has acked and what is older than Retention:
// whole nodes first, which is cheap, then the rest of one node.
func (s *source) trim(ctx context.Context) {
	if s.b.cfg.Retention < 0 {
		return
	}
	total := int64(0)
	for _, how := range []string{"~", "="} {
		for {
			n, err := trimScript.Run(ctx, s.client, []string{s.key}, s.b.cfg.Retention.Milliseconds(), how).Int64()
			if err != nil {
				s.upkeepFailed(ctx, "trimming", err)
				return
			}
			total += n
			if n == 0 || how == "=" {
				break
			}
		}
	}
	if total > 0 {
		s.log.DebugContext(ctx, "trimmed", "messages", total)
	}
}

func (s *source) upkeepFailed(ctx context.Context, what string, err error) {
	if ctx.Err() != nil || noGroup(err) || noKey(err) {
		return
	}
	s.log.WarnContext(ctx, what+" failed; trying again later", "error", err)
}
