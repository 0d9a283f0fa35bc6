package nats

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/pkg/events"
)

// window is how many messages of one call are under way at most.
const window = 1000

type publisher struct{ b *Broker }

// outgoing is one message on its way.
type outgoing struct {
	index  int
	msg    *natsgo.Msg
	future jetstream.PubAckFuture
}

// Publish sends msgs in order, each under its own context.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	return broker.PublishEach(p, topic, msgs)
}

// PublishBatch sends msgs one behind the other and waits for the server's word on
// each. A later one may be confirmed while an earlier one was not.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if err := broker.CheckPublish(ctx, p.b.closed.Load(), topic, len(msgs)); err != nil {
		return err
	}
	failed := make(map[int]error)
	subject, limit := p.b.cfg.Subject(topic), p.b.Features().MaxMessageBytes
	out := make([]*outgoing, 0, len(msgs))
	for i, msg := range msgs {
		wire, err := encode(subject, msg)
		if err != nil {
			failed[i] = fmt.Errorf("%w: %w", broker.ErrRejected, err)
			continue
		}
		if id := messageID(msg); id != "" {
			wire.Header[jetstream.MsgIDHeader] = []string{id}
		}
		if n := size(wire); n > limit {
			failed[i] = fmt.Errorf("message %s has %d bytes with its metadata, above the %d that the server takes (max_payload): publish less, or raise it: %w",
				msg.UUID, n, limit, broker.ErrRejected)
			continue
		}
		out = append(out, &outgoing{index: i, msg: wire})
	}
	for part := range slices.Chunk(out, window) {
		if err := p.send(ctx, topic, part, failed); err != nil {
			return broker.AllFailed(topic, len(msgs), fmt.Errorf("not sent, since an earlier one failed: %w", err), failed)
		}
	}
	if len(failed) > 0 {
		return &broker.PublishError{Topic: topic, Failed: failed}
	}
	return nil
}

// Close does nothing: the Broker owns the publisher.
func (p *publisher) Close() error { return nil }

// messageID is what a resend is recognized by: the event's id together with all
// that the message says, so that nothing but a copy is taken for one. A message
// that is no event has none, since two of them may be equal.
func messageID(msg *message.Message) string {
	id := msg.Metadata[events.KeyID]
	if id == "" {
		return ""
	}
	all := make([]byte, 0, 1024+len(msg.Payload))
	add := func(s string) {
		all = append(strconv.AppendInt(all, int64(len(s)), 10), ':')
		all = append(all, s...)
	}
	add(msg.UUID)
	keys := make([]string, 0, len(msg.Metadata))
	for key := range msg.Metadata {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		add(key)
		add(msg.Metadata[key])
	}
	sum := sha256.Sum256(append(all, msg.Payload...))
	return hex.EncodeToString(sum[:16])
}

// send sends one window and notes what was not confirmed. An error says that no
// more should be tried.
func (p *publisher) send(ctx context.Context, topic string, part []*outgoing, failed map[int]error) error {
	note := func(all []*outgoing, err error) {
		for _, o := range all {
			failed[o.index] = err
		}
	}
	stream, err := p.b.ensureTopic(ctx, topic)
	if err != nil {
		note(part, err)
		return err
	}
	ctx, cancel := p.b.timeout(ctx)
	defer cancel()
	gone, stop := p.round(ctx, stream, part, failed)
	if stop != nil || len(gone) == 0 {
		return stop
	}
	// Nobody listened: the stream was deleted, or has no leader for the moment.
	p.b.forget(topic)
	if stream, err = p.b.ensureTopic(ctx, topic); err != nil {
		note(gone, err)
		return err
	}
	gone, stop = p.round(ctx, stream, gone, failed)
	note(gone, jetstream.ErrNoStreamResponse)
	if stop == nil && len(gone) > 0 {
		stop = jetstream.ErrNoStreamResponse
	}
	return stop
}

// round sends messages and waits for all answers. It returns those that no
// stream listened to.
func (p *publisher) round(ctx context.Context, stream jetstream.Stream, part []*outgoing, failed map[int]error) (gone []*outgoing, stop error) {
	sent := part
	for i, o := range part {
		if o.future, stop = p.sendOne(o.msg); stop != nil {
			for _, o := range part[i:] {
				failed[o.index] = stop
			}
			sent = part[:i]
			break
		}
	}
	for _, o := range sent {
		err := p.await(ctx, stream, o)
		switch {
		case err == nil:
		case errors.Is(err, jetstream.ErrNoStreamResponse):
			gone = append(gone, o)
		default:
			failed[o.index] = err
			if !errors.Is(err, broker.ErrRejected) && stop == nil {
				stop = err
			}
		}
	}
	return gone, stop
}

func (p *publisher) sendOne(msg *natsgo.Msg) (jetstream.PubAckFuture, error) {
	if err := p.b.connected(); err != nil {
		return nil, err
	}
	// A retry by the client would overtake what comes later.
	return p.b.js.PublishMsgAsync(msg, jetstream.WithRetryAttempts(0))
}

// await waits for the server's word on one message.
func (p *publisher) await(ctx context.Context, stream jetstream.Stream, o *outgoing) error {
	var ack *jetstream.PubAck
	select {
	case ack = <-o.future.Ok():
	case err := <-o.future.Err():
		return refused(err)
	case <-ctx.Done():
		return fmt.Errorf("not confirmed: %w", ctx.Err())
	}
	if !ack.Duplicate {
		return nil
	}
	// A copy was stored before. Where it is there no more (a dead letter that was
	// removed since), this one has to be stored.
	_, err := stream.GetMsg(ctx, ack.Sequence)
	if !errors.Is(err, jetstream.ErrMsgNotFound) {
		return err
	}
	delete(o.msg.Header, jetstream.MsgIDHeader)
	if _, err = p.b.js.PublishMsg(ctx, o.msg); err != nil {
		return refused(err)
	}
	return nil
}

// refused marks what the server will never take.
func refused(err error) error {
	if errors.Is(err, natsgo.ErrMaxPayload) || hasCode(err, jetstream.JSErrCodeStreamMessageExceedsMaximum) {
		return fmt.Errorf("%w: %w", broker.ErrRejected, err)
	}
	return err
}
