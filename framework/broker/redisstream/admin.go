package redisstream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/framework/broker"
)

// browsePage is how many entries Browse reads at a time.
const browsePage = 100

type admin struct{ b *Broker }

// Stats reads the group's state. Where Redis does not know the lag (after
// deletions), the entries are counted.
func (a admin) Stats(ctx context.Context, sub broker.Subscription) (broker.Stats, error) {
	var stats broker.Stats
	fail := func(err error) (broker.Stats, error) {
		return broker.Stats{}, fmt.Errorf("redisstream: stats of group %q on topic %q: %w", sub.Group, sub.Topic, err)
	}
	key := a.b.key(sub.Topic)
	groups, err := a.b.client.XInfoGroups(ctx, key).Result()
	if noKey(err) {
		return stats, nil
	} else if err != nil {
		return fail(err)
	}
	var g *redis.XInfoGroup
	for i := range groups {
		if groups[i].Name == sub.Group {
			g = &groups[i]
		}
	}
	if g == nil {
		return stats, nil
	}
	pending, err := a.b.client.XPending(ctx, key, sub.Group).Result()
	if noGroup(err) {
		return stats, nil
	} else if err != nil && !errors.Is(err, redis.Nil) {
		return fail(err)
	}
	now, err := a.b.client.Time(ctx).Result()
	if err != nil {
		return fail(err)
	}
	unread, err := a.b.client.XRangeN(ctx, key, "("+g.LastDeliveredID, "+", 1).Result()
	if err != nil {
		return fail(err)
	}
	age := func(id string) { stats.OldestAge = max(stats.OldestAge, now.Sub(timeOf(id)), time.Nanosecond) }
	if pending != nil && pending.Count > 0 {
		stats.Pending = pending.Count
		age(pending.Lower)
	}
	if len(unread) > 0 {
		age(unread[0].ID)
		// A group that has read nothing has no count of its own yet.
		if g.EntriesRead > 0 && g.Lag >= 0 {
			stats.Lag = g.Lag
		} else if stats.Lag, err = a.count(ctx, key, g.LastDeliveredID); err != nil {
			return fail(err)
		}
	}
	return stats, nil
}

// count returns how many entries come after the id.
func (a admin) count(ctx context.Context, key, after string) (int64, error) {
	if after == "0-0" {
		return a.b.client.XLen(ctx, key).Result()
	}
	total := int64(0)
	for {
		reply, err := countScript.Run(ctx, a.b.client, []string{key}, after).Slice()
		if err != nil {
			return 0, err
		}
		n, _ := reply[0].(int64)
		total += n
		if n < 10_000 {
			return total, nil
		}
		after, _ = reply[1].(string)
	}
}

// Depth is the length of the stream.
func (a admin) Depth(ctx context.Context, topic string) (int64, error) {
	n, err := a.b.client.XLen(ctx, a.b.key(topic)).Result()
	if err != nil {
		return 0, fmt.Errorf("redisstream: depth of topic %q: %w", topic, err)
	}
	return n, nil
}

// Browse reads the stream by page. An entry that can't be decoded is yielded as
// raw bytes with the reason under broker.MalformedReasonKey.
func (a admin) Browse(ctx context.Context, topic string, since time.Time) iter.Seq2[broker.Stored, error] {
	key := a.b.key(topic)
	return func(yield func(broker.Stored, error) bool) {
		fail := func(err error) {
			yield(broker.Stored{}, fmt.Errorf("redisstream: browse topic %q: %w", topic, err))
		}
		newest, err := a.b.client.XRevRangeN(ctx, key, "+", "-", 1).Result()
		if err != nil {
			fail(err)
			return
		}
		if len(newest) == 0 {
			return
		}
		from, to := "-", newest[0].ID
		if !since.IsZero() {
			from = strconv.FormatInt(max(since.UnixMilli(), 0), 10)
		}
		for {
			page, err := a.b.client.XRangeN(ctx, key, from, to, browsePage).Result()
			if err != nil {
				fail(err)
				return
			}
			for _, m := range page {
				stored := broker.Stored{Position: m.ID, PublishedAt: timeOf(m.ID)}
				if stored.PublishedAt.Before(since) {
					continue
				}
				if stored.Message, err = decode(m.Values); err != nil {
					stored.Message = rawMessage(m.ID, m.Values)
					stored.Message.Metadata.Set(broker.MalformedReasonKey, err.Error())
				}
				if !yield(stored, nil) {
					return
				}
			}
			if len(page) < browsePage {
				return
			}
			from = "(" + page[len(page)-1].ID
		}
	}
}

// Delete removes entries by id.
func (a admin) Delete(ctx context.Context, topic string, positions ...string) (int, error) {
	if len(positions) == 0 {
		return 0, nil
	}
	n, err := a.b.client.XDel(ctx, a.b.key(topic), positions...).Result()
	if err != nil {
		return int(n), fmt.Errorf("redisstream: delete %d messages of topic %q: %w", len(positions), topic, err)
	}
	return int(n), nil
}
