package redisstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
)

const (
	// ReleasedConsumer holds the entries that a consumer gave back.
	ReleasedConsumer = "headrace.released"
	// delayedConsumer holds those that were given back with a delay.
	delayedConsumer = "headrace.delayed"

	// releasedIdle is far above any lease, so that stock consumers claim what
	// was released too.
	releasedIdle = 30 * 24 * time.Hour

	// scriptBatch is how many entries one script call works on.
	scriptBatch = 500
)

// source is one consumer of one group on one stream.
type source struct {
	b        *Broker
	client   redis.UniversalClient
	key      string
	group    string
	consumer string
	lease    time.Duration
	log      *slog.Logger

	reader  *reader
	scanned time.Time // the last look for dead consumers' entries; Reclaim's own
	stop    context.CancelFunc
	upkeep  sync.WaitGroup

	mu   sync.Mutex
	gone map[string]struct{} // trimmed by someone else while they run here
}

func (b *Broker) join(ctx context.Context, cfg lanes.Config) (lanes.Source, error) {
	if b.closed.Load() {
		return nil, broker.ErrClosed
	}
	if err := b.EnsureTopology(ctx, broker.Subscription{Topic: cfg.Topic, Group: cfg.Group}); err != nil {
		return nil, err
	}
	s := &source{
		b: b, client: b.client, key: b.key(cfg.Topic), group: cfg.Group, consumer: cfg.Consumer, lease: cfg.Lease,
		log:    cfg.Logger.With("topic", cfg.Topic, "group", cfg.Group, "consumer", cfg.Consumer),
		reader: newReader(b.client),
		gone:   make(map[string]struct{}),
	}
	n := b.joined.Add(1)
	if c, ok := b.client.(*redis.Client); ok && int(n) >= c.Options().PoolSize {
		s.log.WarnContext(ctx, "each subscription keeps one connection in a blocking read: raise the client's PoolSize",
			"subscriptions", n, "pool_size", c.Options().PoolSize)
	}
	upkeep, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.upkeep.Go(func() { s.maintain(upkeep) })
	return s, nil
}

// Fetch reads new entries.
func (s *source) Fetch(ctx context.Context, limit int) ([]*lanes.Entry, error) {
	streams, err := s.reader.read(ctx, &redis.XReadGroupArgs{
		Group: s.group, Consumer: s.consumer, Streams: []string{s.key, ">"},
		Count: int64(limit), Block: s.b.cfg.BlockTime,
	})
	switch {
	case errors.Is(err, redis.Nil):
		return nil, nil
	case noGroup(err):
		s.log.WarnContext(ctx, "the group is gone; making it again from the start of the stream", "error", err)
		return nil, s.b.ensureGroup(ctx, s.key, s.group)
	case err != nil:
		return nil, fmt.Errorf("read stream %q: %w", s.key, err)
	}
	if len(streams) == 0 {
		return nil, nil
	}
	entries := make([]*lanes.Entry, len(streams[0].Messages))
	block := make([]lanes.Entry, len(entries))
	for i, m := range streams[0].Messages {
		e := &block[i]
		e.ID, e.Pos, e.Stored, e.Raw = m.ID, parseID(m.ID), 1, m.Values
		entries[i] = e
	}
	return entries, nil
}

// noGroup tells that the stream or its group does not exist. A script's error
// has the code in the middle.
func noGroup(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer) &&
		(strings.Contains(answer.Error(), "NOGROUP") || redis.HasErrorPrefix(err, "UNBLOCKED"))
}

// noKey tells that the stream does not exist.
func noKey(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer) && strings.Contains(answer.Error(), "no such key")
}

// Reclaim takes what was released and, now and then, what dead consumers left.
func (s *source) Reclaim(ctx context.Context, limit int, mine func(string) bool) ([]*lanes.Entry, error) {
	limit = min(limit, scriptBatch)
	scan := 0
	now := time.Now()
	if now.Sub(s.scanned) >= s.lease/4 {
		scan = 1
	}
	reply, err := claimScript.Run(ctx, s.client, []string{s.key},
		s.group, s.consumer, s.lease.Milliseconds(), limit, ReleasedConsumer, scan).Slice()
	switch {
	case noGroup(err):
		return nil, s.b.ensureGroup(ctx, s.key, s.group)
	case err != nil:
		return nil, fmt.Errorf("claim from group %q: %w", s.group, err)
	}
	var claimed []any
	var counts, own []any
	if len(reply) == 4 {
		claimed, _ = reply[0].([]any)
		counts, _ = reply[1].([]any)
		own, _ = reply[3].([]any)
		s.reportTrimmed(ctx, stringsOf(reply[2]))
	}
	entries := make([]*lanes.Entry, 0, len(claimed))
	for i, row := range claimed {
		id, fields := parseEntry(row)
		count, _ := counts[i].(int64)
		entries = append(entries, &lanes.Entry{ID: id, Pos: parseID(id), Stored: int(count), Raw: fields, Left: true})
	}
	slices.SortFunc(entries, func(a, b *lanes.Entry) int { return a.Pos.Compare(b.Pos) })
	// Entries that Redis gave to this consumer in an answer that never arrived.
	var orphans []lanes.Ref
	for i := 0; i+1 < len(own) && len(entries)+len(orphans) < limit; i += 2 {
		id, _ := own[i].(string)
		count, _ := own[i+1].(int64)
		if !mine(id) {
			orphans = append(orphans, lanes.Ref{ID: id, Pos: parseID(id), Stored: int(count) + 1})
		}
	}
	if len(orphans) > 0 {
		raw, err := s.Load(ctx, orphans)
		if err != nil {
			return entries, err
		}
		for _, o := range orphans {
			if fields := raw[o.ID]; fields != nil {
				entries = append(entries, &lanes.Entry{ID: o.ID, Pos: o.Pos, Stored: o.Stored, Raw: fields})
			}
		}
	}
	if scan == 1 {
		if len(entries) < limit {
			s.scanned = now
		}
		if len(entries) > 0 {
			s.log.InfoContext(ctx, "claimed messages that others left", "messages", len(entries))
		}
	}
	return entries, nil
}

func (s *source) Decode(e *lanes.Entry) (*message.Message, error) {
	fields, _ := e.Raw.(map[string]any)
	return decode(fields)
}

func (s *source) Malformed(e *lanes.Entry) *message.Message {
	fields, _ := e.Raw.(map[string]any)
	return rawMessage(e.ID, fields)
}

// Ack settles entries with one XACK.
func (s *source) Ack(ctx context.Context, entries []*lanes.Entry) error {
	args := make([]any, 3, 3+len(entries))
	args[0], args[1], args[2] = "xack", s.key, s.group
	for _, e := range entries {
		args = append(args, e.ID)
	}
	if err := s.client.Do(ctx, args...).Err(); err != nil {
		return fmt.Errorf("ack %d entries of stream %q: %w", len(entries), s.key, err)
	}
	s.forgetGone(entries)
	return nil
}

// Renew resets the idle time of entries.
func (s *source) Renew(ctx context.Context, refs []lanes.Ref) (lost []string, err error) {
	err = batches(s.present(refs), func(batch []lanes.Ref) error {
		reply, err := renewScript.Run(ctx, s.client, []string{s.key}, s.args(batch)...).Slice()
		switch {
		case noGroup(err):
			for _, r := range batch {
				lost = append(lost, r.ID)
			}
			return nil
		case err != nil:
			return fmt.Errorf("renew %d leases of group %q: %w", len(batch), s.group, err)
		}
		if len(reply) == 2 {
			lost = append(lost, stringsOf(reply[0])...)
			s.markGone(ctx, stringsOf(reply[1]))
		}
		return nil
	})
	return lost, err
}

// Load reads bodies again and writes counts.
func (s *source) Load(ctx context.Context, refs []lanes.Ref) (map[string]any, error) {
	raw := make(map[string]any, len(refs))
	err := batches(refs, func(batch []lanes.Ref) error {
		reply, err := loadScript.Run(ctx, s.client, []string{s.key}, s.args(batch)...).Slice()
		switch {
		case noGroup(err):
			return nil
		case err != nil:
			return fmt.Errorf("load %d entries of stream %q: %w", len(batch), s.key, err)
		}
		if len(reply) != 2 {
			return fmt.Errorf("load %d entries of stream %q: the answer has %d parts", len(batch), s.key, len(reply))
		}
		rows, _ := reply[0].([]any)
		for _, row := range rows {
			id, fields := parseEntry(row)
			raw[id] = fields
		}
		s.reportTrimmed(ctx, stringsOf(reply[1]))
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range refs {
		if _, here := raw[r.ID]; !here {
			delete(s.gone, r.ID)
		}
	}
	return raw, err
}

// Release gives entries to the pseudo consumers.
func (s *source) Release(ctx context.Context, entries []*lanes.Entry) error {
	var now, later []*lanes.Entry
	for _, e := range entries {
		if e.Delay > 0 {
			later = append(later, e)
		} else {
			now = append(now, e)
		}
	}
	if err := s.release(ctx, ReleasedConsumer, now); err != nil {
		return err
	}
	return s.release(ctx, delayedConsumer, later)
}

func (s *source) release(ctx context.Context, to string, entries []*lanes.Entry) error {
	return batches(entries, func(batch []*lanes.Entry) error {
		args := make([]any, 3, 3+3*len(batch))
		args[0], args[1], args[2] = s.group, s.consumer, to
		for _, e := range batch {
			idle := releasedIdle
			if e.Delay > 0 {
				// It is claimed once it has been idle for a lease.
				idle = max(s.lease-e.Delay, 0)
			}
			args = append(args, e.ID, max(e.Stored, 0), idle.Milliseconds())
		}
		gone, err := releaseScript.Run(ctx, s.client, []string{s.key}, args...).Slice()
		switch {
		case noGroup(err):
			return nil
		case err != nil:
			return fmt.Errorf("release %d entries of stream %q: %w", len(batch), s.key, err)
		}
		s.reportTrimmed(ctx, stringsOf(gone))
		s.forgetGone(batch)
		return nil
	})
}

// Close removes the consumer from the group.
func (s *source) Close(ctx context.Context) error {
	s.stop()
	s.upkeep.Wait()
	s.reader.reset()
	s.b.joined.Add(-1)
	err := leaveScript.Run(ctx, s.client, []string{s.key}, s.group, s.consumer).Err()
	if err != nil && !noGroup(err) {
		return fmt.Errorf("remove consumer %q from group %q: %w", s.consumer, s.group, err)
	}
	return nil
}

// args are a script's arguments for pairs of id and count.
func (s *source) args(batch []lanes.Ref) []any {
	args := make([]any, 2, 2+2*len(batch))
	args[0], args[1] = s.group, s.consumer
	for _, r := range batch {
		args = append(args, r.ID, r.Stored)
	}
	return args
}

// batches calls fn with the entries sorted by id, a script's worth at a time.
func batches[T interface{ Position() lanes.Pos }](entries []T, fn func([]T) error) error {
	sorted := slices.SortedFunc(slices.Values(entries), func(a, b T) int { return a.Position().Compare(b.Position()) })
	for batch := range slices.Chunk(sorted, scriptBatch) {
		if err := fn(batch); err != nil {
			return err
		}
	}
	return nil
}

// stringsOf reads a list of ids.
func stringsOf(ids any) (out []string) {
	list, _ := ids.([]any)
	for _, id := range list {
		if s, ok := id.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// parseEntry reads {id, {field, value, …}}.
func parseEntry(row any) (id string, fields map[string]any) {
	pair, _ := row.([]any)
	if len(pair) != 2 {
		return "", nil
	}
	id, _ = pair[0].(string)
	list, _ := pair[1].([]any)
	fields = make(map[string]any, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		if name, ok := list[i].(string); ok {
			fields[name] = list[i+1]
		}
	}
	return id, fields
}

// reportTrimmed logs entries that are lost.
func (s *source) reportTrimmed(ctx context.Context, ids []string) {
	if len(ids) == 0 {
		return
	}
	s.log.ErrorContext(ctx, "messages lost: someone trimmed them from the stream before they were settled; they are cleared",
		"messages", len(ids), "ids", ids[:min(len(ids), 20)])
}

// markGone notes entries that were trimmed while they run here. Their handlers
// go on: nobody else can have them.
func (s *source) markGone(ctx context.Context, ids []string) {
	if len(ids) == 0 {
		return
	}
	s.mu.Lock()
	for _, id := range ids {
		s.gone[id] = struct{}{}
	}
	s.mu.Unlock()
	s.log.ErrorContext(ctx, "someone trimmed messages from the stream while they are held; a nack can't bring them back",
		"messages", len(ids), "ids", ids[:min(len(ids), 20)])
}

// present returns the entries that are still in the stream as far as is known.
func (s *source) present(refs []lanes.Ref) []lanes.Ref {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.gone) == 0 {
		return refs
	}
	return slices.DeleteFunc(slices.Clone(refs), func(r lanes.Ref) bool {
		_, gone := s.gone[r.ID]
		return gone
	})
}

func (s *source) forgetGone(entries []*lanes.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.gone) == 0 {
		return
	}
	for _, e := range entries {
		delete(s.gone, e.ID)
	}
}
