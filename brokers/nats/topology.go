package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/framework/broker"
)

// codeOverlap is JetStream's error where another stream takes the subject.
const codeOverlap jetstream.ErrorCode = 10065

// EnsureTopology creates streams and consumers where they are missing. A new
// group starts at the oldest message.
func (b *Broker) EnsureTopology(ctx context.Context, subs ...broker.Subscription) error {
	for _, sub := range subs {
		if sub.Topic == "" || sub.Group == "" {
			return fmt.Errorf("nats: topic %q, group %q: name both", sub.Topic, sub.Group)
		}
		if _, _, err := b.ensureGroup(ctx, sub, 0); err != nil {
			return err
		}
	}
	return nil
}

// ensureTopic returns the topic's stream, which it creates where it is missing.
func (b *Broker) ensureTopic(ctx context.Context, topic string) (jetstream.Stream, error) {
	if s := b.known(topic); s != nil {
		return s, nil
	}
	if err := b.connected(); err != nil {
		return nil, err
	}
	ctx, cancel := b.timeout(ctx)
	defer cancel()
	s, err := b.findTopic(ctx, topic)
	if err == nil && s == nil {
		cfg := b.cfg.StreamConfig(topic)
		s, err = b.js.CreateStream(ctx, cfg)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) || hasCode(err, codeOverlap) {
			// Another one was faster, otherwise than we would.
			var again error
			if s, again = b.findTopic(ctx, topic); again != nil || s == nil {
				err = errors.Join(err, again)
			} else {
				err = nil
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("nats: stream of topic %q (subject %s): %w", topic, b.cfg.Subject(topic), err)
	}
	if err := b.keepLonger(ctx, topic, s); err != nil {
		b.cfg.Logger.WarnContext(ctx, "the stream keeps messages for less than Retention says, and can't be changed",
			"topic", topic, "stream", s.CachedInfo().Config.Name, "max_age", s.CachedInfo().Config.MaxAge, "error", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topics[topic] = s
	return s, nil
}

// findTopic returns the topic's stream: its own, or one that takes its subject.
// Nil: there is none.
func (b *Broker) findTopic(ctx context.Context, topic string) (jetstream.Stream, error) {
	subject := b.cfg.Subject(topic)
	s, err := b.js.Stream(ctx, b.cfg.StreamName(topic))
	if err == nil {
		if got := s.CachedInfo().Config.Subjects; len(got) != 1 || got[0] != subject {
			return nil, fmt.Errorf("stream %s takes the subjects %q instead: correct or remove it", s.CachedInfo().Config.Name, got)
		}
		return s, nil
	}
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, err
	}
	name, err := b.js.StreamNameBySubject(ctx, subject)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if s, err = b.js.Stream(ctx, name); err != nil {
		return nil, err
	}
	if p := s.CachedInfo().Config.Retention; p != jetstream.LimitsPolicy {
		return nil, fmt.Errorf("stream %s takes the subject with retention %q, which drops messages that a group still needs: take the subject out of it, or give it the retention of limits",
			name, p)
	}
	return s, nil
}

// topic is findTopic for what creates nothing.
func (b *Broker) topic(ctx context.Context, topic string) (jetstream.Stream, error) {
	if s := b.known(topic); s != nil {
		return s, nil
	}
	if err := b.connected(); err != nil {
		return nil, err
	}
	return b.findTopic(ctx, topic)
}

// keepLonger raises what a stream of ours keeps: services that share it may
// differ, and the one that needs less must not take from the other.
func (b *Broker) keepLonger(ctx context.Context, topic string, s jetstream.Stream) error {
	has, want := s.CachedInfo().Config, b.cfg.StreamConfig(topic)
	if has.Name != want.Name || has.MaxAge == 0 || want.MaxAge > 0 && want.MaxAge <= has.MaxAge {
		return nil
	}
	has.MaxAge = want.MaxAge
	_, err := b.js.UpdateStream(ctx, has)
	return err
}

func (b *Broker) known(topic string) jetstream.Stream {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.topics[topic]
}

// forget has the topic's stream looked for again.
func (b *Broker) forget(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.topics, topic)
}

// ensureGroup returns the stream and the consumer of a group, which it creates
// where they are missing. A lease of 0 takes the group's as it is.
//
// All members share the consumer's AckWait. It is raised to the lease of whoever
// joins, and lowered only while nobody else is there: a member whose heartbeat is
// made for a longer lease would lose messages that it holds.
func (b *Broker) ensureGroup(ctx context.Context, sub broker.Subscription, lease time.Duration) (jetstream.Stream, *jetstream.ConsumerInfo, error) {
	stream, err := b.ensureTopic(ctx, sub.Topic)
	if err != nil {
		return nil, nil, err
	}
	rctx, cancel := b.timeout(ctx)
	defer cancel()
	info, err := b.ensureConsumer(rctx, stream, sub, lease)
	if errors.Is(err, jetstream.ErrStreamNotFound) { // it was deleted since
		b.forget(sub.Topic)
		if stream, err = b.ensureTopic(ctx, sub.Topic); err == nil {
			info, err = b.ensureConsumer(rctx, stream, sub, lease)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("nats: consumer of group %q on topic %q: %w", sub.Group, sub.Topic, err)
	}
	return stream, info, nil
}

func (b *Broker) ensureConsumer(ctx context.Context, stream jetstream.Stream, sub broker.Subscription, lease time.Duration) (*jetstream.ConsumerInfo, error) {
	want := b.cfg.ConsumerConfig(sub.Topic, sub.Group, lease)
	c, err := stream.Consumer(ctx, want.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		c, err = stream.CreateConsumer(ctx, want)
		if errors.Is(err, jetstream.ErrConsumerExists) { // another replica was faster
			c, err = stream.Consumer(ctx, want.Durable)
		}
	}
	if err != nil {
		return nil, err
	}
	info := c.CachedInfo()
	has := info.Config
	if has.AckPolicy != want.AckPolicy || has.FilterSubject != want.FilterSubject || has.DeliverSubject != "" || has.MaxDeliver > 0 {
		return nil, fmt.Errorf("consumer %s on stream %s is not what a group needs (pull, explicit acks, MaxDeliver -1, subject %s): remove it, or name the group otherwise",
			want.Durable, info.Stream, want.FilterSubject)
	}
	idle := info.NumWaiting == 0 && info.NumAckPending == 0
	if lease == 0 || has.AckWait == lease || has.AckWait > lease && !idle {
		return info, nil
	}
	has.AckWait = lease
	if c, err = stream.UpdateConsumer(ctx, has); err != nil {
		return nil, fmt.Errorf("set its AckWait to %s: %w", lease, err)
	}
	return c.CachedInfo(), nil
}

// hasCode tells whether err is JetStream's error of that code.
func hasCode(err error, code jetstream.ErrorCode) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode == code
	}
	var js jetstream.JetStreamError
	return errors.As(err, &js) && js.APIError() != nil && js.APIError().ErrorCode == code
}
