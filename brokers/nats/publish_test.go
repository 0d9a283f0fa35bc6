package nats_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/brokers/nats"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

func event(id, body string) *message.Message {
	m := message.NewMessage(id, []byte(body))
	m.Metadata.Set(events.KeyID, id)
	return m
}

func publish(t testing.TB, b *nats.Broker, topic string, msgs ...*message.Message) {
	t.Helper()
	require.NoError(t, b.Publisher().PublishBatch(context.Background(), topic, msgs))
}

func depth(t testing.TB, b *nats.Broker, topic string) int64 {
	t.Helper()
	n, err := b.Admin().Depth(context.Background(), topic)
	require.NoError(t, err)
	return n
}

func browse(t testing.TB, b *nats.Broker, topic string) (all []broker.Stored) {
	t.Helper()
	for s, err := range b.Admin().Browse(context.Background(), topic, time.Time{}) {
		require.NoError(t, err)
		all = append(all, s)
	}
	return all
}

// TestResendIsOneMessage: what a relay sends again, since it does not know that
// it was confirmed, is there once.
func TestResendIsOneMessage(t *testing.T) {
	t.Parallel()
	b := open(t, nats.Config{URL: startServer(t).url()})
	for range 3 {
		publish(t, b, "t", event("e-1", "x"), event("e-2", "x"))
	}
	require.EqualValues(t, 2, depth(t, b, "t"))
}

// TestRedriveWithinTheWindow (B23): a dead letter that is replayed while the
// server still knows its event's id is published.
func TestRedriveWithinTheWindow(t *testing.T) {
	t.Parallel()
	b := open(t, nats.Config{URL: startServer(t).url()})
	publish(t, b, "t", event("e-1", "x"))
	for n := range 3 {
		again := event("e-1", "x")
		again.Metadata.Set(middleware.DeadLetterRedriveCount, fmt.Sprint(n+1))
		publish(t, b, "t", again)
	}
	require.EqualValues(t, 4, depth(t, b, "t"))
}

// TestDuplicateOfWhatIsGone (B23): a send is not reported as success because the
// server remembers a copy that was removed since.
func TestDuplicateOfWhatIsGone(t *testing.T) {
	t.Parallel()
	b := open(t, nats.Config{URL: startServer(t).url()})
	publish(t, b, "g.dlq", event("e-1", "x"))
	all := browse(t, b, "g.dlq")
	require.Len(t, all, 1)
	n, err := b.Admin().Delete(context.Background(), "g.dlq", all[0].Position)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	publish(t, b, "g.dlq", event("e-1", "x"))
	all = browse(t, b, "g.dlq")
	require.Len(t, all, 1, "stored again")
	require.Equal(t, "e-1", all[0].Message.UUID)
}

// TestEqualMessagesWithoutID (B29): two messages that no id tells apart are two.
func TestEqualMessagesWithoutID(t *testing.T) {
	t.Parallel()
	b := open(t, nats.Config{URL: startServer(t).url()})
	publish(t, b, "t", message.NewMessage("", []byte("x")), message.NewMessage("", []byte("x")))
	publish(t, b, "t", message.NewMessage("u", []byte("x")), message.NewMessage("u", []byte("x")))
	require.EqualValues(t, 4, depth(t, b, "t"))
}

// TestPartOfABatchIsRefused (B24, B26): what is too large is named, for good; the
// rest is confirmed.
func TestPartOfABatchIsRefused(t *testing.T) {
	t.Parallel()
	b := open(t, nats.Config{URL: startServer(t).url()})
	limit := b.Features().MaxMessageBytes
	require.Equal(t, 1<<20, limit)
	large := message.NewMessage("large", make([]byte, limit-10))
	large.Metadata.Set("k", "the metadata counts")
	fits := message.NewMessage("fits", make([]byte, limit-200))
	err := b.Publisher().PublishBatch(context.Background(), "t", []*message.Message{event("e-1", "x"), large, fits})
	var failed *broker.PublishError
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed.Failed, 1)
	require.ErrorIs(t, failed.Failed[1], broker.ErrRejected)
	require.EqualValues(t, 2, depth(t, b, "t"))
}

// TestMetadataGivesNoOrders: a metadata key that NATS would obey purges nothing.
func TestMetadataGivesNoOrders(t *testing.T) {
	t.Parallel()
	b := open(t, nats.Config{URL: startServer(t).url()})
	publish(t, b, "t", event("e-1", "x"))
	m := event("e-2", "x")
	m.Metadata.Set("Nats-Rollup", "all")
	m.Metadata.Set("Nats-Expected-Stream", "other")
	publish(t, b, "t", m)
	all := browse(t, b, "t")
	require.Len(t, all, 2)
	require.Equal(t, m.Metadata, all[1].Message.Metadata)
}

// TestFullStream: a stream with a bound refuses, and drops nothing.
func TestFullStream(t *testing.T) {
	t.Parallel()
	b := open(t, nats.Config{URL: startServer(t).url(), MaxBytes: 8 << 10})
	publish(t, b, "t", event("e-1", "x"))
	err := b.Publisher().PublishBatch(context.Background(), "t", []*message.Message{message.NewMessage("big", make([]byte, 16<<10))})
	require.Error(t, err)
	require.NotErrorIs(t, err, broker.ErrRejected, "there may be room later")
	require.EqualValues(t, 1, depth(t, b, "t"))
}

// TestStreamIsDeletedUnderThePublisher: the next publish makes it again.
func TestStreamIsDeletedUnderThePublisher(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := open(t, nats.Config{URL: s.url()})
	publish(t, b, "t", event("e-1", "x"))
	_, js := s.client(t)
	require.NoError(t, js.DeleteStream(context.Background(), nats.Config{}.StreamName("t")))
	publish(t, b, "t", event("e-2", "x"))
	require.EqualValues(t, 1, depth(t, b, "t"))
	require.NoError(t, js.DeleteStream(context.Background(), nats.Config{}.StreamName("t")))
	require.Zero(t, depth(t, b, "t"))
	require.Empty(t, browse(t, b, "t"))
}

// TestTopics lists what an operator looks for.
func TestTopics(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := open(t, nats.Config{URL: s.url(), Prefix: "a."})
	other := open(t, nats.Config{URL: s.url(), Prefix: "b."})
	publish(t, b, "x.dlq", event("e-1", "x"))
	publish(t, b, "x", event("e-1", "x"))
	publish(t, other, "y.dlq", event("e-1", "x"))
	lister, ok := b.Admin().(interface {
		Topics(ctx context.Context, suffix string) ([]string, error)
	})
	require.True(t, ok)
	topics, err := lister.Topics(context.Background(), ".dlq")
	require.NoError(t, err)
	require.Equal(t, []string{"x.dlq"}, topics)

	_, err = b.Admin().Delete(context.Background(), "x", "no number")
	require.ErrorContains(t, err, "Browse")
	_, js := s.client(t)
	stream, err := js.Stream(context.Background(), nats.Config{Prefix: "a."}.StreamName("x.dlq"))
	require.NoError(t, err)
	require.Zero(t, stream.CachedInfo().Config.MaxAge, "dead letters stay")
	require.Equal(t, jetstream.LimitsPolicy, stream.CachedInfo().Config.Retention)
}
