package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
)

// checkEvery is how often a subscription looks whether its consumer is as it
// should be.
const checkEvery = 30 * time.Second

// source is one member of one group.
type source struct {
	b        *Broker
	sub      broker.Subscription
	asked    time.Duration // the lease that the subscriber wants
	name     string        // the stream's
	consumer string
	log      *slog.Logger
	pull     *puller

	// Fetch's and Reclaim's own.
	unread  []*hold // redelivered ones whose count could not be read
	checked time.Time

	mu      sync.Mutex
	stream  jetstream.Stream
	created time.Time     // of the consumer
	epoch   int           // counts consumers: a new one numbers anew
	lease   time.Duration // the consumer's AckWait
	holds   map[string]*hold
	bySeq   map[uint64]*hold // the latest of each message
}

// hold is one delivery that is in this member's hands.
type hold struct {
	id  string
	seq uint64
	raw *natsgo.Msg // until it is fetched

	// Guarded by source.mu.
	reply    string
	until    time.Time // the end of the lease
	record   count     // what the broker has on record
	releases bool      // it is being given back
}

func (b *Broker) join(ctx context.Context, cfg lanes.Config) (lanes.Source, error) {
	if b.closed.Load() {
		return nil, broker.ErrClosed
	}
	sub := broker.Subscription{Topic: cfg.Topic, Group: cfg.Group}
	if cfg.Topic == "" {
		return nil, errors.New("the topic has no name")
	}
	stream, info, err := b.ensureGroup(ctx, sub, cfg.Lease)
	if err != nil {
		return nil, err
	}
	// Now rather than when something has to be given back at once.
	if _, err := b.counts.open(ctx, true); err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	s := &source{
		b: b, sub: sub, asked: cfg.Lease, stream: stream, name: info.Stream, consumer: info.Name,
		log:     cfg.Logger.With("topic", cfg.Topic, "group", cfg.Group, "consumer", cfg.Consumer),
		created: info.Created, lease: info.Config.AckWait, checked: time.Now(),
		holds: make(map[string]*hold), bySeq: make(map[uint64]*hold),
	}
	if s.lease != cfg.Lease {
		s.log.WarnContext(ctx, "other members of the group are there with a longer lease, which stays", "lease", cfg.Lease, "ack_wait", s.lease)
	}
	if s.pull, err = newPuller(b, s.name, s.consumer); err != nil {
		return nil, err
	}
	return s, nil
}

// Fetch pulls messages, and reads the counts of those that were delivered before.
func (s *source) Fetch(ctx context.Context, limit int) ([]*lanes.Entry, error) {
	msgs, err := s.pull.next(ctx, limit)
	if errors.Is(err, errConsumerGone) || errors.Is(err, errNoAnswer) && ctx.Err() == nil {
		err = s.recover(ctx)
	}
	first, again := s.hold(msgs)
	again = append(s.valid(s.unread), again...)
	s.unread = nil
	if len(again) > 0 {
		if readErr := s.read(ctx, again); readErr != nil {
			s.unread, again = again, nil
			err = errors.Join(err, readErr)
		}
	}
	entries := make([]*lanes.Entry, 0, len(first)+len(again))
	for _, h := range first {
		entries = append(entries, &lanes.Entry{ID: h.id, Pos: lanes.Pos{Lo: h.seq}, Stored: 1, Raw: h.raw})
		h.raw = nil
	}
	for _, h := range again {
		entries = append(entries, &lanes.Entry{ID: h.id, Pos: lanes.Pos{Lo: h.seq}, Stored: h.record.n + 1, Raw: h.raw, Left: true})
		h.raw = nil
	}
	return entries, err
}

// hold takes messages in: those that are here for the first time, and those that
// were delivered before, to somebody. One that is held here already comes again
// when its lease ran out in between: it keeps its place, with a new lease.
func (s *source) hold(msgs []*natsgo.Msg) (first, again []*hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	until := time.Now().Add(s.lease)
	for _, m := range msgs {
		meta, err := m.Metadata()
		if err != nil {
			s.log.Error("a message without JetStream's reply subject; it is left alone", "error", err)
			continue
		}
		seq := meta.Sequence.Stream
		if h := s.bySeq[seq]; h != nil && !h.releases {
			h.reply, h.until = m.Reply, until
			continue
		}
		h := &hold{
			id:  strconv.Itoa(s.epoch) + ":" + strconv.FormatUint(seq, 10) + "#" + strconv.FormatUint(meta.Sequence.Consumer, 10),
			seq: seq, raw: m, reply: m.Reply, until: until,
			record: count{n: 1},
		}
		s.holds[h.id], s.bySeq[seq] = h, h
		if meta.NumDelivered > 1 {
			again = append(again, h)
		} else {
			first = append(first, h)
		}
	}
	return first, again
}

// read reads what is on record about deliveries before this one.
func (s *source) read(ctx context.Context, holds []*hold) error {
	// What a pull brought is ours, also when the drain has begun meanwhile.
	ctx, cancel := s.b.timeout(context.WithoutCancel(ctx))
	defer cancel()
	records := make([]*count, len(holds))
	for i, h := range holds {
		records[i] = &count{subject: s.b.counts.subject(s.name, s.consumer, h.seq)}
	}
	if err := s.b.counts.read(ctx, records); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range holds {
		h.record = *records[i]
	}
	return nil
}

// valid drops holds whose lease is over.
func (s *source) valid(holds []*hold) []*hold {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(holds, func(h *hold) bool {
		over := s.holds[h.id] != h || now.After(h.until)
		if over {
			s.drop(h)
		}
		return over
	})
}

// Reclaim finds nothing: the server itself hands out what others left behind. It
// looks after the consumer.
func (s *source) Reclaim(ctx context.Context, _ int, _ func(string) bool) ([]*lanes.Entry, error) {
	if time.Since(s.checked) < checkEvery {
		return nil, nil
	}
	if err := s.recover(ctx); err != nil {
		return nil, err
	}
	s.checked = time.Now()
	return nil, nil
}

// recover makes the consumer what it should be. Where it is a new one, nothing
// that is held belongs to it.
func (s *source) recover(ctx context.Context) error {
	s.b.forget(s.sub.Topic)
	stream, info, err := s.b.ensureGroup(ctx, s.sub, s.asked)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stream, s.lease = stream, info.Config.AckWait
	if !info.Created.Equal(s.created) {
		s.log.WarnContext(ctx, "the group's consumer was gone; it is made again, from the start of the stream")
		s.created = info.Created
		s.epoch++
		clear(s.holds)
		clear(s.bySeq)
	}
	if info.Stream != s.name {
		return fmt.Errorf("stream %s has taken the topic's subject from %s: restart the consumer", info.Stream, s.name)
	}
	return nil
}

// Decode decodes a message.
func (s *source) Decode(e *lanes.Entry) (*message.Message, error) {
	raw, _ := e.Raw.(*natsgo.Msg)
	return decode(raw, s.place(e))
}

// Malformed keeps the bytes of a message that Decode refused.
func (s *source) Malformed(e *lanes.Entry) *message.Message {
	raw, _ := e.Raw.(*natsgo.Msg)
	return rawMessage(raw, s.place(e))
}

// place names a message that has no name of its own.
func (s *source) place(e *lanes.Entry) string { return place(s.name, e.Pos.Lo) }

func place(stream string, seq uint64) string {
	return stream + ":" + strconv.FormatUint(seq, 10)
}

// Load reads bodies again, writes counts and extends leases.
func (s *source) Load(ctx context.Context, refs []lanes.Ref) (map[string]any, error) {
	holds, err := s.renew(ctx, refs, nil)
	if err != nil {
		return nil, err
	}
	return s.bodies(ctx, holds)
}

// Close ends the membership. The consumer stays, with what the group has not
// read.
func (s *source) Close(ctx context.Context) error {
	if rest := s.valid(s.unread); len(rest) > 0 {
		words := make([]word, len(rest))
		s.mu.Lock()
		for i, h := range rest {
			words[i] = word{h.reply, nakBody}
		}
		s.mu.Unlock()
		if err := s.say(ctx, words); err != nil {
			s.log.WarnContext(ctx, "giving back what came last failed; the lease brings it back", "messages", len(rest), "error", err)
		}
	}
	return s.pull.close()
}

// drop forgets a hold. The lock is held.
func (s *source) drop(h *hold) {
	delete(s.holds, h.id)
	if s.bySeq[h.seq] == h {
		delete(s.bySeq, h.seq)
	}
}
