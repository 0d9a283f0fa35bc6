package kafka

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/framework/broker"
)

type admin struct{ b *Broker }

// extent is what a topic holds.
type extent struct {
	id    kadm.TopicID
	spans map[int32]span
}

// extent looks at a topic. One that does not exist has no spans.
func (a admin) extent(ctx context.Context, topic string) (e extent, err error) {
	name := a.b.cfg.TopicName(topic)
	details, err := a.b.admin.ListTopics(ctx, name)
	if err != nil || !details.Has(name) {
		return e, err
	}
	starts, err := a.b.starts(ctx, name)
	if err != nil {
		return e, err
	}
	ends, err := a.b.ends(ctx, name)
	if err != nil {
		return e, err
	}
	if err := a.b.deleted.refresh(ctx); err != nil {
		return e, err
	}
	e.id, e.spans = details[name].ID, make(map[int32]span, len(ends))
	for p, end := range ends {
		e.spans[p] = span{starts[p], end}
	}
	return e, nil
}

// Stats reads the group's offsets and ledgers. Pending is what members have, or
// had when they died.
func (a admin) Stats(ctx context.Context, sub broker.Subscription) (broker.Stats, error) {
	ctx, cancel := a.b.timeout(ctx)
	defer cancel()
	stats, err := a.stats(ctx, sub)
	if err != nil {
		return broker.Stats{}, fmt.Errorf("kafka: stats of group %q on topic %q: %w", sub.Group, sub.Topic, err)
	}
	return stats, nil
}

func (a admin) stats(ctx context.Context, sub broker.Subscription) (stats broker.Stats, err error) {
	e, err := a.extent(ctx, sub.Topic)
	if err != nil || len(e.spans) == 0 {
		return stats, err
	}
	name := a.b.cfg.TopicName(sub.Topic)
	ledgers, err := a.b.ledgers(ctx, a.b.cfg.GroupName(sub.Group), name)
	if err != nil {
		return stats, err
	}
	oldest := make(map[int32]span)
	for p, s := range e.spans {
		key, at := deletedKey(e.id, p), s.from
		l, known := ledgers[p]
		if known {
			at = min(max(l.next, s.from), s.to)
		}
		waiting := s.to - at - a.b.deleted.between(key, at, s.to)
		stats.Lag += waiting
		first := int64(-1)
		for _, n := range l.notes {
			if n.offset >= s.from && !a.b.deleted.has(key, n.offset) {
				stats.Pending++
				if first < 0 {
					first = n.offset
				}
			}
		}
		if first < 0 && waiting > 0 {
			for first = at; a.b.deleted.has(key, first); first++ {
			}
		}
		if first >= 0 {
			oldest[p] = span{first, s.to}
		}
	}
	if len(oldest) == 0 {
		return stats, nil
	}
	var first time.Time
	left := len(oldest)
	seen := make(map[int32]bool, left)
	err = a.b.read(ctx, name, oldest, func(r *kgo.Record) bool {
		if !seen[r.Partition] {
			seen[r.Partition] = true
			left--
			if first.IsZero() || r.Timestamp.Before(first) {
				first = r.Timestamp
			}
		}
		return left > 0
	})
	if !first.IsZero() {
		stats.OldestAge = max(time.Since(first), time.Nanosecond)
	}
	return stats, err
}

// ledgers reads what a group committed on a Kafka topic.
func (b *Broker) ledgers(ctx context.Context, group, name string) (map[int32]ledger, error) {
	committed, err := b.admin.FetchOffsetsForTopics(ctx, group, name)
	if missing(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	out := make(map[int32]ledger)
	for p, o := range committed[name] {
		if o.Err != nil && !missing(o.Err) {
			return nil, o.Err
		}
		if o.At >= 0 && o.Err == nil {
			// What is no ledger is the commit of another client, with nothing beside it.
			out[p], _ = decodeLedger(o.At, o.Metadata)
		}
	}
	return out, nil
}

// Depth is how many messages the topic holds.
func (a admin) Depth(ctx context.Context, topic string) (int64, error) {
	ctx, cancel := a.b.timeout(ctx)
	defer cancel()
	e, err := a.extent(ctx, topic)
	if err != nil {
		return 0, fmt.Errorf("kafka: depth of topic %q: %w", topic, err)
	}
	var n int64
	for p, s := range e.spans {
		n += s.to - s.from - a.b.deleted.between(deletedKey(e.id, p), s.from, s.to)
	}
	return n, nil
}

// Browse reads the topic, the oldest of its partitions' messages first. One that
// can't be decoded is yielded as raw bytes with the reason under
// broker.MalformedReasonKey.
func (a admin) Browse(ctx context.Context, topic string, since time.Time) iter.Seq2[broker.Stored, error] {
	return func(yield func(broker.Stored, error) bool) {
		err := a.browse(ctx, topic, since, func(s broker.Stored) bool { return yield(s, nil) })
		if err != nil {
			yield(broker.Stored{}, fmt.Errorf("kafka: browse topic %q: %w", topic, err))
		}
	}
}

func (a admin) browse(ctx context.Context, topic string, since time.Time, yield func(broker.Stored) bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rctx, cancel := a.b.timeout(ctx)
	defer cancel()
	e, err := a.extent(rctx, topic)
	if err != nil || len(e.spans) == 0 {
		return err
	}
	name := a.b.cfg.TopicName(topic)
	if !since.IsZero() {
		since = since.Truncate(time.Millisecond)
		listed, err := a.b.admin.ListOffsetsAfterMilli(rctx, since.UnixMilli(), name)
		from, err := offsets(listed, name, err)
		if err != nil {
			return err
		}
		for p, s := range e.spans {
			if at, ok := from[p]; ok && at > s.from {
				e.spans[p] = span{at, s.to}
			}
		}
	}
	m := newMerge(e.spans, yield)
	err = a.b.read(ctx, name, e.spans, func(r *kgo.Record) bool {
		skip := r.Timestamp.Before(since) || a.b.deleted.has(deletedKey(e.id, r.Partition), r.Offset)
		return m.add(r, skip)
	})
	if err == nil {
		m.flush()
	}
	return err
}

func stored(r *kgo.Record) broker.Stored {
	s := broker.Stored{
		Position:    fmt.Sprintf("%d:%d", r.Partition, r.Offset),
		PublishedAt: r.Timestamp.UTC(),
	}
	var err error
	if s.Message, err = decode(r); err != nil {
		s.Message = rawMessage(r)
		s.Message.Metadata.Set(broker.MalformedReasonKey, err.Error())
	}
	return s
}

// Delete removes messages by their partition and offset. Those that are the oldest
// of their partition are removed by Kafka; others are listed as removed, and passed
// over by Headrace's readers alone. A consumer that runs learns of it within half a
// minute.
func (a admin) Delete(ctx context.Context, topic string, positions ...string) (int, error) {
	n, err := a.delete(ctx, topic, positions)
	if err != nil {
		return n, fmt.Errorf("kafka: delete messages of topic %q: %w", topic, err)
	}
	return n, nil
}

func (a admin) delete(ctx context.Context, topic string, positions []string) (n int, err error) {
	wanted := make(map[int32]map[int64]bool)
	for _, position := range positions {
		p, o, _ := strings.Cut(position, ":")
		partition, err := strconv.ParseInt(p, 10, 32)
		offset, err2 := strconv.ParseInt(o, 10, 64)
		if err != nil || err2 != nil || partition < 0 || offset < 0 {
			return 0, fmt.Errorf("position %q is no partition and offset, like 3:1024: take it from Browse", position)
		}
		if wanted[int32(partition)] == nil {
			wanted[int32(partition)] = make(map[int64]bool)
		}
		wanted[int32(partition)][offset] = true
	}
	if len(wanted) == 0 {
		return 0, nil
	}
	ctx, cancel := a.b.timeout(ctx)
	defer cancel()
	e, err := a.extent(ctx, topic)
	if err != nil {
		return 0, err
	}
	for p, all := range wanted {
		s, key := e.spans[p], deletedKey(e.id, p)
		var offsets []int64
		for offset := range all {
			if offset >= s.from && offset < s.to && !a.b.deleted.has(key, offset) {
				offsets = append(offsets, offset)
			}
		}
		slices.Sort(offsets)
		if err := a.b.deleted.write(ctx, key, offsets, true); err != nil {
			return n, err
		}
		n += len(offsets)
		if err := a.trim(ctx, topic, e.id, p, s); err != nil {
			// They are listed: readers pass over them.
			a.b.cfg.Logger.WarnContext(ctx, "messages are marked as removed, and Kafka did not remove them", "topic", topic, "partition", p, "error", err)
		}
	}
	return n, nil
}

// trim has Kafka remove the oldest messages of a partition where all are listed as
// removed, and takes them off the list.
func (a admin) trim(ctx context.Context, topic string, id kadm.TopicID, p int32, s span) error {
	key, to := deletedKey(id, p), s.from
	for to < s.to && a.b.deleted.has(key, to) {
		to++
	}
	if to == s.from {
		return nil
	}
	name := a.b.cfg.TopicName(topic)
	var offsets kadm.Offsets
	offsets.AddOffset(name, p, to, -1)
	response, err := a.b.admin.DeleteRecords(ctx, offsets)
	if err == nil {
		err = response.Error()
	}
	if err != nil {
		return err
	}
	return a.b.deleted.write(ctx, key, a.b.deleted.list(key, 0, to), false)
}

// Topics returns the names of the topics that end with suffix. It can't tell
// those whose names Kafka does not carry as they are.
func (a admin) Topics(ctx context.Context, suffix string) ([]string, error) {
	ctx, cancel := a.b.timeout(ctx)
	defer cancel()
	details, err := a.b.admin.ListTopics(ctx)
	if err != nil {
		return nil, fmt.Errorf("kafka: list the topics with suffix %q: %w", suffix, err)
	}
	var topics []string
	for _, name := range details.Names() {
		topic, ours := strings.CutPrefix(name, a.b.cfg.Prefix)
		if ours && strings.HasSuffix(topic, suffix) && a.b.cfg.TopicName(topic) == name {
			topics = append(topics, topic)
		}
	}
	return topics, nil
}
