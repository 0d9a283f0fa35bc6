package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/headrace-go/headrace/framework/broker/lanes"
)

// What a consumer says about a message.
var (
	ackBody   = []byte("+ACK")
	nakBody   = []byte("-NAK")
	renewBody = []byte("+WPI")
)

// word is what is said about one delivery.
type word struct {
	reply string
	body  []byte
}

// say sends words and waits for the server's answer to the last: the server takes
// what comes on one connection in order. It fails where the connection was
// another one in between.
func (s *source) say(ctx context.Context, words []word) error {
	if len(words) == 0 {
		return nil
	}
	if err := s.b.connected(); err != nil {
		return err
	}
	conn := s.b.conn
	before := conn.Stats().Reconnects
	last := len(words) - 1
	for _, w := range words[:last] {
		if err := conn.Publish(w.reply, w.body); err != nil {
			return err
		}
	}
	ctx, cancel := s.b.timeout(ctx)
	defer cancel()
	_, err := conn.RequestWithContext(ctx, words[last].reply, words[last].body)
	if err == nil && conn.Stats().Reconnects != before {
		err = errors.New("the connection was lost in between")
	}
	if !errors.Is(err, natsgo.ErrNoResponders) {
		return err
	}
	// Either it has no leader for the moment, or there is nobody left to tell.
	if _, find := s.b.js.Consumer(ctx, s.name, s.consumer); missing(find) {
		return errConsumerGone
	}
	return err
}

// Ack settles messages.
func (s *source) Ack(ctx context.Context, entries []*lanes.Entry) error {
	words := make([]word, 0, len(entries))
	s.mu.Lock()
	for _, e := range entries {
		if h := s.holds[e.ID]; h != nil {
			words = append(words, word{h.reply, ackBody})
		}
	}
	s.mu.Unlock()
	err := s.say(ctx, words)
	if errors.Is(err, errConsumerGone) {
		s.log.WarnContext(ctx, "the group's consumer is gone: messages that were handled come again", "messages", len(words))
	} else if err != nil {
		return fmt.Errorf("ack %d messages of stream %s: %w", len(words), s.name, err)
	}
	var records []uint64
	s.mu.Lock()
	for _, e := range entries {
		if h := s.holds[e.ID]; h != nil {
			if h.record.seq > 0 {
				records = append(records, h.record.seq)
			}
			s.drop(h)
		}
	}
	s.mu.Unlock()
	s.b.counts.remove(records)
	return nil
}

// Renew extends leases and writes counts. What was not renewed in time is lost:
// somebody else may have it.
func (s *source) Renew(ctx context.Context, refs []lanes.Ref) (lost []string, err error) {
	_, err = s.renew(ctx, refs, &lost)
	return lost, err
}

func (s *source) renew(ctx context.Context, refs []lanes.Ref, lost *[]string) ([]*hold, error) {
	now := time.Now()
	holds := make([]*hold, 0, len(refs))
	words := make([]word, 0, len(refs))
	stored := make(map[*hold]int)
	s.mu.Lock()
	lease := s.lease
	for _, r := range refs {
		h := s.holds[r.ID]
		if h != nil && now.After(h.until) {
			s.drop(h)
			h = nil
		}
		if h == nil {
			if lost != nil {
				*lost = append(*lost, r.ID)
			}
			continue
		}
		if h.record.n != r.Stored {
			stored[h] = r.Stored
		}
		holds, words = append(holds, h), append(words, word{h.reply, renewBody})
	}
	s.mu.Unlock()
	err := s.say(ctx, words)
	if errors.Is(err, errConsumerGone) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, h := range holds {
			s.drop(h)
			if lost != nil {
				*lost = append(*lost, h.id)
			}
		}
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("renew %d leases of stream %s: %w", len(words), s.name, err)
	}
	s.mu.Lock()
	for _, h := range holds {
		if until := now.Add(lease); until.After(h.until) {
			h.until = until
		}
	}
	s.mu.Unlock()
	return holds, s.record(ctx, stored)
}

// record writes counts.
func (s *source) record(ctx context.Context, stored map[*hold]int) error {
	if len(stored) == 0 {
		return nil
	}
	ctx, cancel := s.b.timeout(ctx)
	defer cancel()
	records := make([]*count, 0, len(stored))
	holds := make([]*hold, 0, len(stored))
	s.mu.Lock()
	for h, n := range stored {
		records = append(records, &count{subject: s.b.counts.subject(s.name, s.consumer, h.seq), n: n, seq: h.record.seq})
		holds = append(holds, h)
	}
	s.mu.Unlock()
	if err := s.b.counts.write(ctx, records); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range holds {
		h.record = *records[i]
	}
	return nil
}

// bodies reads messages again.
func (s *source) bodies(ctx context.Context, holds []*hold) (map[string]any, error) {
	ctx, cancel := s.b.timeout(ctx)
	defer cancel()
	s.mu.Lock()
	stream := s.stream
	s.mu.Unlock()
	found := make([]*natsgo.Msg, len(holds))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, h := range holds {
		g.Go(func() error {
			m, err := stream.GetMsg(ctx, h.seq)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				return nil
			} else if err != nil {
				return fmt.Errorf("read message %d of stream %s again: %w", h.seq, s.name, err)
			}
			found[i] = stored(m)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	raw := make(map[string]any, len(holds))
	var missing []uint64
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range holds {
		if found[i] == nil {
			missing = append(missing, h.seq)
			s.drop(h)
			continue
		}
		raw[h.id] = found[i]
	}
	if len(missing) > 0 {
		s.log.ErrorContext(ctx, "messages lost: they were removed from the stream before they were settled",
			"messages", len(missing), "sequences", missing[:min(len(missing), 20)])
	}
	return raw, nil
}

// stored is a message as it was published.
func stored(m *jetstream.RawStreamMsg) *natsgo.Msg {
	return &natsgo.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}
}

// Release gives messages back, the oldest first. One whose lease is over may be
// another's by now, and is let alone.
func (s *source) Release(ctx context.Context, entries []*lanes.Entry) error {
	entries = slices.SortedFunc(slices.Values(entries), func(a, b *lanes.Entry) int { return a.Pos.Compare(b.Pos) })
	now := time.Now()
	holds := make([]*hold, 0, len(entries))
	words := make([]word, 0, len(entries))
	stored := make(map[*hold]int)
	s.mu.Lock()
	for _, e := range entries {
		h := s.holds[e.ID]
		if h == nil {
			continue
		}
		if now.After(h.until) {
			s.drop(h)
			continue
		}
		if n := max(e.Stored, 0); h.record.n != n {
			stored[h] = n
		}
		h.releases = true
		body := nakBody
		if e.Delay > 0 {
			body = strconv.AppendInt([]byte(`-NAK {"delay": `), int64(e.Delay), 10)
			body = append(body, '}')
		}
		holds, words = append(holds, h), append(words, word{h.reply, body})
	}
	s.mu.Unlock()
	err := s.record(ctx, stored)
	if err == nil {
		err = s.say(ctx, words)
	}
	if err != nil && !errors.Is(err, errConsumerGone) {
		return fmt.Errorf("give %d messages back to stream %s: %w", len(words), s.name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range holds {
		s.drop(h)
	}
	return nil
}
