package nats

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/framework/broker"
)

const (
	// browsePage is how many messages Browse reads at a time.
	browsePage = 200
	// browseIdle is after how long the server removes a Browse that was cut off.
	browseIdle = 30 * time.Second
)

type admin struct{ b *Broker }

// missing tells that a stream or consumer does not exist.
func missing(err error) bool {
	return errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound)
}

// Stats asks the group's consumer.
func (a admin) Stats(ctx context.Context, sub broker.Subscription) (broker.Stats, error) {
	stats, err := a.stats(ctx, sub)
	if missing(err) {
		a.b.forget(sub.Topic)
		return broker.Stats{}, nil
	} else if err != nil {
		return broker.Stats{}, fmt.Errorf("nats: stats of group %q on topic %q: %w", sub.Group, sub.Topic, err)
	}
	return stats, nil
}

func (a admin) stats(ctx context.Context, sub broker.Subscription) (stats broker.Stats, err error) {
	ctx, cancel := a.b.timeout(ctx)
	defer cancel()
	stream, err := a.b.topic(ctx, sub.Topic)
	if err != nil || stream == nil {
		return stats, err
	}
	c, err := stream.Consumer(ctx, a.b.cfg.ConsumerName(sub.Group))
	if err != nil {
		return stats, err
	}
	info := c.CachedInfo()
	stats.Lag, stats.Pending = int64(info.NumPending), int64(info.NumAckPending)
	if stats == (broker.Stats{}) {
		return stats, nil
	}
	oldest, err := stream.GetMsg(ctx, info.AckFloor.Stream+1, jetstream.WithGetMsgSubject(a.b.cfg.Subject(sub.Topic)))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound): // settled or removed since
		return stats, nil
	case err != nil:
		return stats, err
	}
	stats.OldestAge = max(info.TimeStamp.Sub(oldest.Time), time.Nanosecond)
	return stats, nil
}

// Depth is how many messages of the topic the stream holds.
func (a admin) Depth(ctx context.Context, topic string) (int64, error) {
	n, err := a.depth(ctx, topic)
	if missing(err) {
		a.b.forget(topic)
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("nats: depth of topic %q: %w", topic, err)
	}
	return n, nil
}

func (a admin) depth(ctx context.Context, topic string) (int64, error) {
	ctx, cancel := a.b.timeout(ctx)
	defer cancel()
	stream, err := a.b.topic(ctx, topic)
	if err != nil || stream == nil {
		return 0, err
	}
	subject := a.b.cfg.Subject(topic)
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return 0, err
	}
	return int64(info.State.Subjects[subject]), nil
}

// Browse reads the stream by page. A message that can't be decoded is yielded as
// raw bytes with the reason under broker.MalformedReasonKey.
func (a admin) Browse(ctx context.Context, topic string, since time.Time) iter.Seq2[broker.Stored, error] {
	return func(yield func(broker.Stored, error) bool) {
		err := a.browse(ctx, topic, since, func(s broker.Stored) bool { return yield(s, nil) })
		switch {
		case err == nil:
		case missing(err):
			a.b.forget(topic)
		default:
			yield(broker.Stored{}, fmt.Errorf("nats: browse topic %q: %w", topic, err))
		}
	}
}

func (a admin) browse(ctx context.Context, topic string, since time.Time, yield func(broker.Stored) bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rctx, cancel := a.b.timeout(ctx)
	defer cancel()
	stream, err := a.b.topic(rctx, topic)
	if err != nil || stream == nil {
		return err
	}
	info, err := stream.Info(rctx)
	if err != nil || info.State.Msgs == 0 {
		return err
	}
	last := info.State.LastSeq
	cfg := jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckNonePolicy, FilterSubject: a.b.cfg.Subject(topic),
		InactiveThreshold: browseIdle, MemoryStorage: true, Replicas: 1, Description: "Headrace browse",
	}
	if !since.IsZero() {
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
	}
	c, err := stream.CreateConsumer(rctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = stream.DeleteConsumer(dctx, c.CachedInfo().Name)
	}()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		page, err := c.FetchNoWait(browsePage)
		if err != nil {
			return err
		}
		n := 0
		for m := range page.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return err
			}
			if meta.Sequence.Stream > last {
				return nil
			}
			n++
			if !yield(a.b.stored(&natsgo.Msg{Subject: m.Subject(), Header: m.Headers(), Data: m.Data()}, meta)) {
				return nil
			}
			if meta.Sequence.Stream == last {
				return nil
			}
		}
		if err := page.Error(); err != nil && !errors.Is(err, jetstream.ErrNoMessages) {
			return err
		}
		if n == 0 {
			return nil
		}
	}
}

func (b *Broker) stored(m *natsgo.Msg, meta *jetstream.MsgMetadata) broker.Stored {
	s := broker.Stored{
		Position:    strconv.FormatUint(meta.Sequence.Stream, 10),
		PublishedAt: meta.Timestamp.UTC(),
	}
	var err error
	where := place(meta.Stream, meta.Sequence.Stream)
	if s.Message, err = decode(m, where); err != nil {
		s.Message = rawMessage(m, where)
		s.Message.Metadata.Set(broker.MalformedReasonKey, err.Error())
	}
	return s
}

// Delete removes messages by their sequence.
func (a admin) Delete(ctx context.Context, topic string, positions ...string) (int, error) {
	n, err := a.delete(ctx, topic, positions)
	if missing(err) {
		a.b.forget(topic)
		return n, nil
	} else if err != nil {
		return n, fmt.Errorf("nats: delete messages of topic %q: %w", topic, err)
	}
	return n, nil
}

func (a admin) delete(ctx context.Context, topic string, positions []string) (n int, err error) {
	seqs := make([]uint64, len(positions))
	for i, p := range positions {
		if seqs[i], err = strconv.ParseUint(p, 10, 64); err != nil || seqs[i] == 0 {
			return 0, fmt.Errorf("position %q is no sequence number: take it from Browse", p)
		}
	}
	if len(seqs) == 0 {
		return 0, nil
	}
	stream, err := a.b.topic(ctx, topic)
	if err != nil || stream == nil {
		return 0, err
	}
	subject := a.b.cfg.Subject(topic)
	for _, seq := range seqs {
		// In a stream with several subjects a sequence may be another topic's; and
		// the server tells a message that is gone by nothing but words.
		m, err := stream.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		} else if err != nil {
			return n, err
		}
		if m.Subject != subject {
			return n, fmt.Errorf("position %d is a message of subject %s: take it from Browse", seq, m.Subject)
		}
		if err := stream.DeleteMsg(ctx, seq); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// Topics returns the names of the topics that end with suffix and have a stream
// of their own.
func (a admin) Topics(ctx context.Context, suffix string) ([]string, error) {
	var topics []string
	list := a.b.js.ListStreams(ctx)
	for info := range list.Info() {
		topic := info.Config.Metadata[metaTopic]
		if topic != "" && strings.HasSuffix(topic, suffix) && info.Config.Name == a.b.cfg.StreamName(topic) {
			topics = append(topics, topic)
		}
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("nats: list the topics with suffix %q: %w", suffix, err)
	}
	return topics, nil
}
