package sqs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/sqs"
	"github.com/headrace-go/headrace/framework/claimcheck"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

const patience = time.Minute

// onStrict opens a broker on a strict client, with one group on topic "t".
func onStrict(t *testing.T, s *strictSQS, change func(*sqs.Config)) *sqs.Broker {
	t.Helper()
	cfg := sqs.Config{SQS: s, Topology: sqs.TopologyEnsure, WaitTime: time.Second, Logger: quiet}
	if change != nil {
		change(&cfg)
	}
	b := open(t, cfg)
	require.NoError(t, b.EnsureTopology(context.Background(), broker.Subscription{Topic: "t", Group: "g"}))
	return b
}

func subscribe(t *testing.T, b broker.Broker, topic string, cfg broker.SubscriberConfig) (<-chan *message.Message, message.Subscriber) {
	t.Helper()
	cfg.Logger = quiet
	if cfg.Group == "" {
		cfg.Group = "g"
	}
	sub, err := b.Subscriber(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	ch, err := sub.Subscribe(context.Background(), topic)
	require.NoError(t, err)
	return ch, sub
}

func receive(t testing.TB, ch <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m := <-ch:
		require.NotNil(t, m)
		return m
	case <-time.After(patience):
		require.FailNow(t, "no message")
		return nil
	}
}

func numbered(n int) []*message.Message {
	out := make([]*message.Message, n)
	for i := range out {
		out[i] = message.NewMessage(strconv.Itoa(i), []byte("x"))
	}
	return out
}

// stored are the UUIDs in the group's queue, in order.
func (s *strictSQS) stored(t *testing.T, b *sqs.Broker) []string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, m := range s.queues["http://strict/"+(sqs.Config{}).QueueName("t", "g")].msgs {
		out = append(out, aws.ToString(m.attrs["_watermill_message_uuid"].StringValue))
	}
	return out
}

func ids(n int, skip ...int) []string {
	var out []string
	for i := range n {
		for _, s := range skip {
			if s == i {
				i = -1
			}
		}
		if i >= 0 {
			out = append(out, strconv.Itoa(i))
		}
	}
	return out
}

func sendFailure(code string, sender bool) func(id string) types.BatchResultErrorEntry {
	return func(id string) types.BatchResultErrorEntry {
		return types.BatchResultErrorEntry{Id: &id, Code: &code, Message: aws.String("strict"), SenderFault: sender}
	}
}

// B24: two of ten fail and one is left out: only those three are sent again.
func TestOnlyUnconfirmedEntriesAreSentAgain_B24(t *testing.T) {
	t.Parallel()
	s := newStrict()
	b := onStrict(t, s, nil)
	busy := sendFailure("InternalError", false)
	s.onSend = func(n int, _ *awssqs.SendMessageBatchInput) (map[string]bool, func(*awssqs.SendMessageBatchOutput), error) {
		if n > 1 {
			return nil, nil, nil
		}
		return map[string]bool{"2": true, "5": true, "7": true}, func(out *awssqs.SendMessageBatchOutput) {
			out.Failed = append(out.Failed, busy("2"), busy("7")) // of 5 it says nothing
		}, nil
	}
	require.NoError(t, b.Publisher().PublishBatch(context.Background(), "t", numbered(10)))
	require.Len(t, s.sends, 2)
	require.Len(t, s.sends[1].Entries, 3)
	require.ElementsMatch(t, ids(10), s.stored(t, b), "each once")
}

// B24: what stays unconfirmed is reported by its index, and nothing else is.
func TestUnconfirmedEntriesAreReported_B24(t *testing.T) {
	t.Parallel()
	s := newStrict()
	b := onStrict(t, s, nil)
	s.onSend = func(n int, in *awssqs.SendMessageBatchInput) (map[string]bool, func(*awssqs.SendMessageBatchOutput), error) {
		skip := map[string]bool{}
		var failed []types.BatchResultErrorEntry
		for _, e := range in.Entries {
			switch aws.ToString(e.MessageAttributes["_watermill_message_uuid"].StringValue) {
			case "2":
				skip[*e.Id] = true
				failed = append(failed, sendFailure("InvalidMessageContents", true)(*e.Id))
			case "4":
				skip[*e.Id] = true
				failed = append(failed, sendFailure("InternalError", false)(*e.Id))
			case "6":
				skip[*e.Id] = true // never mentioned
			case "8": // sent, and reported twice and as failed too
				failed = append(failed, sendFailure("InternalError", false)(*e.Id))
			}
		}
		return skip, func(out *awssqs.SendMessageBatchOutput) {
			out.Failed = failed
			out.Successful = append(out.Successful, out.Successful...)
		}, nil
	}
	err := b.Publisher().PublishBatch(context.Background(), "t", numbered(12))
	var failed *broker.PublishError
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed.Failed, 4)
	require.ErrorIs(t, failed.Failed[2], broker.ErrRejected)
	for _, i := range []int{4, 6, 8} {
		require.Error(t, failed.Failed[i])
		require.NotErrorIs(t, failed.Failed[i], broker.ErrRejected, "worth another try")
	}
	counts := map[string]int{}
	for _, id := range s.stored(t, b) {
		counts[id]++
	}
	for _, id := range ids(12, 2, 4, 6, 8) {
		require.Equal(t, 1, counts[id], "%s was confirmed: it is not sent again", id)
	}
	require.Len(t, s.sends, 4, "12 entries in two batches, one of them three times")
}

// B24, the whole request fails: every entry of it is reported.
func TestAFailedRequestIsReported_B24(t *testing.T) {
	t.Parallel()
	s := newStrict()
	b := onStrict(t, s, func(c *sqs.Config) { c.Parallel = 1 })
	s.onSend = func(n int, _ *awssqs.SendMessageBatchInput) (map[string]bool, func(*awssqs.SendMessageBatchOutput), error) {
		if n == 2 {
			return nil, nil, errThrottled
		}
		return nil, nil, nil
	}
	err := b.Publisher().PublishBatch(context.Background(), "t", numbered(25))
	var failed *broker.PublishError
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed.Failed, 10)
	for i := 10; i < 20; i++ {
		require.ErrorIs(t, failed.Failed[i], errThrottled)
	}
}

// A request that AWS refuses as a whole does not condemn what is good in it: a
// queue may take less than the settings say.
func TestARefusedRequestIsTakenApart_B26(t *testing.T) {
	t.Parallel()
	s := newStrict()
	b := onStrict(t, s, nil)
	s.onSend = func(_ int, in *awssqs.SendMessageBatchInput) (map[string]bool, func(*awssqs.SendMessageBatchOutput), error) {
		sum := 0
		for _, e := range in.Entries {
			sum += len(*e.MessageBody)
		}
		if sum > 3000 {
			return nil, nil, apiError("AWS.SimpleQueueService.BatchRequestTooLong", "too long")
		}
		return nil, nil, nil
	}
	batch := numbered(10)
	for _, m := range batch {
		m.Payload = bytes.Repeat([]byte("x"), 1000)
	}
	batch[4].Payload = bytes.Repeat([]byte("x"), 3001)
	err := b.Publisher().PublishBatch(context.Background(), "t", batch)
	var failed *broker.PublishError
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed.Failed, 1)
	require.ErrorIs(t, failed.Failed[4], broker.ErrRejected)
	require.ElementsMatch(t, ids(10, 4), s.stored(t, b), "each once")
}

// A key's later messages are not sent before its earlier one is confirmed; other
// keys go on.
func TestAFailedMessageHoldsItsKeyBack_B24(t *testing.T) {
	t.Parallel()
	s := newStrict()
	b := onStrict(t, s, func(c *sqs.Config) { c.FIFO = true })
	s.onSend = func(n int, in *awssqs.SendMessageBatchInput) (map[string]bool, func(*awssqs.SendMessageBatchOutput), error) {
		seen := map[string]bool{}
		for _, e := range in.Entries {
			if e.MessageGroupId == nil || e.MessageDeduplicationId == nil || seen[*e.MessageGroupId] {
				return nil, nil, apiError("MissingParameter", "group")
			}
			seen[*e.MessageGroupId] = true
		}
		skip := map[string]bool{}
		var failed []types.BatchResultErrorEntry
		for _, e := range in.Entries {
			if aws.ToString(e.MessageAttributes["_watermill_message_uuid"].StringValue) == "3" {
				skip[*e.Id] = true
				failed = append(failed, sendFailure("InternalError", false)(*e.Id))
			}
		}
		return skip, func(out *awssqs.SendMessageBatchOutput) { out.Failed = failed }, nil
	}
	batch := numbered(12)
	for i, m := range batch {
		m.Metadata.Set(events.KeyOrdering, fmt.Sprintf("order %d", i%3)) // 0, 3, 6, 9 share a key
		m.Metadata.Set(events.KeyID, "event-"+m.UUID)
	}
	err := b.Publisher().PublishBatch(context.Background(), "t", batch)
	var failed *broker.PublishError
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed.Failed, 3)
	for _, i := range []int{3, 6, 9} {
		require.Error(t, failed.Failed[i])
	}
	for _, in := range s.sends {
		for _, e := range in.Entries {
			require.NotContains(t, *e.MessageGroupId, " ", "groups are legal tokens")
			require.True(t, strings.HasPrefix(*e.MessageDeduplicationId, "event-"), "the deduplication id is the event's")
		}
	}
	// A replay of the same event within five minutes is no duplicate (B23).
	again := batch[1].Copy()
	again.Metadata.Set(middleware.DeadLetterRedriveCount, "1")
	require.NoError(t, b.Publisher().PublishBatch(context.Background(), "t", []*message.Message{again}))
	require.Equal(t, "event-1.1", *s.sends[len(s.sends)-1].Entries[0].MessageDeduplicationId)
}

// B24: a delete that failed is sent again, alone; what was deleted is not.
func TestOnlyFailedDeletesAreSentAgain_B24(t *testing.T) {
	t.Parallel()
	s := newStrict()
	b := onStrict(t, s, nil)
	s.onDelete = func(n int, in *awssqs.DeleteMessageBatchInput) (map[string]bool, func(*awssqs.DeleteMessageBatchOutput), error) {
		switch n {
		case 1:
			return map[string]bool{"0": true}, func(out *awssqs.DeleteMessageBatchOutput) {
				out.Failed = append(out.Failed, sendFailure("InternalError", false)("0"))
			}, nil
		case 2:
			return nil, nil, errThrottled
		case 3:
			return map[string]bool{"0": true}, nil, nil // not mentioned
		}
		return nil, nil, nil
	}
	require.NoError(t, b.Publisher().PublishBatch(context.Background(), "t", numbered(6)))
	ch, sub := subscribe(t, b, "t", broker.SubscriberConfig{Concurrency: 6})
	var held []*message.Message
	for range 6 {
		held = append(held, receive(t, ch))
	}
	for _, m := range held {
		m.Ack()
	}
	require.NoError(t, sub.Close())
	require.Empty(t, s.stored(t, b), "all deleted in the end")
	for _, in := range s.deletes[1:] {
		for _, e := range in.Entries {
			require.False(t, s.gone[*e.ReceiptHandle] && wasDeletedBefore(s, in, *e.ReceiptHandle), "deleted twice")
		}
	}
}

// wasDeletedBefore tells whether an earlier request than in deleted the receipt.
func wasDeletedBefore(s *strictSQS, in *awssqs.DeleteMessageBatchInput, receipt string) bool {
	for n, earlier := range s.deletes {
		if earlier == in {
			return false
		}
		for _, e := range earlier.Entries {
			// The first three requests left out or refused entry 0, or everything.
			done := n > 2 || n != 1 && *e.Id != "0"
			if done && *e.ReceiptHandle == receipt {
				return true
			}
		}
	}
	return false
}

// What was handled while deletes failed for longer than the lease is deleted by its
// new receipt when it comes again, and not handled again.
func TestAHandledMessageIsNotHandledAgain_B24(t *testing.T) {
	t.Parallel()
	s := newStrict()
	b := onStrict(t, s, nil)
	begun := time.Now()
	s.onDelete = func(int, *awssqs.DeleteMessageBatchInput) (map[string]bool, func(*awssqs.DeleteMessageBatchOutput), error) {
		if time.Since(begun) < 4*time.Second {
			return nil, nil, errThrottled
		}
		return nil, nil, nil
	}
	require.NoError(t, b.Publisher().Publish("t", numbered(1)...))
	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{Concurrency: 2, Lease: time.Second})
	receive(t, ch).Ack()
	require.Eventually(t, func() bool { return len(s.stored(t, b)) == 0 }, patience, 10*time.Millisecond)
	select {
	case m := <-ch:
		require.FailNow(t, "handled again", m.UUID)
	case <-time.After(100 * time.Millisecond):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	receipts := map[string]bool{}
	for _, in := range s.deletes {
		receipts[*in.Entries[0].ReceiptHandle] = true
	}
	require.Greater(t, len(receipts), 1, "it came again meanwhile")
}

// B26: everything that a message can be comes back as it was, and nothing is sent
// that SQS would refuse or change.
func TestLosslessWithinTheLimits_B26(t *testing.T) {
	t.Parallel()
	meta := func(n int) message.Metadata {
		md := message.Metadata{events.KeyType: "order.placed"}
		for i := range n - 1 {
			md[fmt.Sprintf("key_%02d", i)] = fmt.Sprintf("value %d", i)
		}
		return md
	}
	cases := map[string]*message.Message{
		"nine entries":        {UUID: "u", Metadata: meta(9), Payload: []byte("{}")},
		"ten entries":         {UUID: "u", Metadata: meta(10), Payload: []byte("{}")},
		"twelve entries":      {UUID: "u", Metadata: meta(12), Payload: []byte("{}")},
		"nine and binary":     {UUID: "u", Metadata: meta(9), Payload: []byte{0, 1, 0xff}},
		"nine and empty":      {UUID: "u", Metadata: meta(9)},
		"a colon":             {UUID: "u", Metadata: message.Metadata{"a:b": "c"}, Payload: []byte("{}")},
		"an empty key":        {UUID: "u", Metadata: message.Metadata{"": "c"}, Payload: []byte("{}")},
		"an empty value":      {UUID: "u", Metadata: message.Metadata{"a": ""}, Payload: []byte("{}")},
		"an empty type":       {UUID: "u", Metadata: message.Metadata{events.KeyType: ""}, Payload: []byte("{}")},
		"dots":                {UUID: "u", Metadata: message.Metadata{".a": "1", "b.": "2", "c..d": "3", "e.f": "4"}, Payload: []byte("{}")},
		"reserved names":      {UUID: "u", Metadata: message.Metadata{"AWS.x": "1", "amazon.y": "2", sqs.AttrClaim: "3", sqs.AttrEncoding: "4", sqs.AttrMetadata: "5"}, Payload: []byte("{}")},
		"a long key":          {UUID: "u", Metadata: message.Metadata{strings.Repeat("k", 300): "v"}, Payload: []byte("{}")},
		"control characters":  {UUID: "u", Metadata: message.Metadata{"a": "\x00\x1f\x7f", "tab": "a\tb\r\n"}, Payload: []byte("a\x00b")},
		"noncharacters":       {UUID: "u", Metadata: message.Metadata{"a": "\ufffe\uffff"}, Payload: []byte("\ufffe")},
		"replacement":         {UUID: "u", Metadata: message.Metadata{"a": "\ufffd"}, Payload: []byte("\ufffd")},
		"not UTF-8":           {UUID: "u\xff", Metadata: message.Metadata{"a\xfe": "b\xff"}, Payload: []byte("\xff")},
		"empty":               {UUID: "u"},
		"nothing":             {},
		"no UUID":             {Metadata: message.Metadata{"a": "b"}, Payload: []byte("x")},
		"a body of ours":      {UUID: "u", Payload: []byte("(empty)")},
		"a notification":      {UUID: "u", Payload: []byte(`{"Type":"Notification","TopicArn":"a","Message":"m"}`)},
		"base64 as it is":     {UUID: "u", Payload: []byte("AAEC")},
		"an emoji everywhere": {UUID: "🚀", Metadata: message.Metadata{"🚀": "🚀"}, Payload: []byte("🚀")},
		"long value":          {UUID: "u", Metadata: message.Metadata{"a": strings.Repeat("é", 1000)}, Payload: []byte("{}")},
	}
	s := newStrict()
	b := onStrict(t, s, nil)
	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{Concurrency: 1})
	for name, m := range cases {
		sent := message.NewMessage(m.UUID, m.Payload)
		for k, v := range m.Metadata {
			sent.Metadata[k] = v
		}
		require.NoError(t, b.Publisher().Publish("t", sent), name)
		s.mu.Lock()
		require.Empty(t, s.violent, name)
		entry := s.sends[len(s.sends)-1].Entries[0]
		s.mu.Unlock()
		if typ := m.Metadata[events.KeyType]; typ != "" {
			require.Equal(t, typ, aws.ToString(entry.MessageAttributes[events.KeyType].StringValue), "%s: a filter sees the type", name)
		}
		got := receive(t, ch)
		require.Equal(t, sent.UUID, got.UUID, name)
		require.Equal(t, sent.Metadata, got.Metadata, name)
		require.True(t, bytes.Equal(sent.Payload, got.Payload), "%s: %q", name, got.Payload)
		got.Ack()
	}
}

// B26, B33: a type that no filter could match is refused before anything is sent.
func TestATypeThatCantBeFilteredIsRefused_B26_B33(t *testing.T) {
	t.Parallel()
	s := newStrict()
	b := onStrict(t, s, nil)
	batch := numbered(3)
	batch[1].Metadata.Set(events.KeyType, "order\x00placed")
	err := b.Publisher().PublishBatch(context.Background(), "t", batch)
	var failed *broker.PublishError
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed.Failed, 1)
	require.ErrorIs(t, failed.Failed[1], broker.ErrRejected)
	require.ElementsMatch(t, ids(3, 1), s.stored(t, b), "the others are sent")
}

// overhead is what a message of numbered adds to its payload.
func overhead(uuid string) int { return len("_watermill_message_uuid") + len("String") + len(uuid) }

// B26: a message of exactly the limit is sent; one byte more is refused before
// sending, or goes to the claim check; batches are split by their sum.
func TestSizes_B26(t *testing.T) {
	t.Parallel()
	const limit = 4096
	small := func(c *sqs.Config) { c.MaxMessageBytes = limit }
	fits := message.NewMessage("u", bytes.Repeat([]byte("x"), limit-overhead("u")))
	over := message.NewMessage("u", bytes.Repeat([]byte("x"), limit-overhead("u")+1))

	s := newStrict()
	s.limit = limit
	b := onStrict(t, s, small)
	require.NoError(t, b.Publisher().Publish("t", fits))
	require.Len(t, s.sends, 1)
	err := b.Publisher().Publish("t", over)
	require.ErrorIs(t, err, broker.ErrRejected)
	require.ErrorContains(t, err, "4097 bytes")
	require.ErrorContains(t, err, "claim check")
	// Binary grows on the wire: it is the wire's size that counts.
	require.ErrorIs(t, b.Publisher().Publish("t", message.NewMessage("u", bytes.Repeat([]byte{0xff}, limit*3/4))), broker.ErrRejected)
	require.Len(t, s.sends, 1, "nothing was sent")

	batch := numbered(10)
	for _, m := range batch {
		m.Payload = bytes.Repeat([]byte("x"), limit/3)
	}
	require.NoError(t, b.Publisher().Publish("t", batch...))
	require.Empty(t, s.violent)
	require.Len(t, s.sends, 1+5, "two in a batch")
	require.Equal(t, limit, b.Features().MaxMessageBytes)
}

func TestClaimCheck_B26(t *testing.T) {
	t.Parallel()
	const limit = 4096
	ctx := context.Background()
	store, err := claimcheck.Open(ctx, claimcheck.Config{URL: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	flaky := &flakyStore{PayloadStore: store}
	s := newStrict()
	s.limit = limit
	b := onStrict(t, s, func(c *sqs.Config) { c.MaxMessageBytes, c.Payloads = limit, flaky })
	require.Zero(t, b.Features().MaxMessageBytes, "no limit")

	large := message.NewMessage("u", bytes.Repeat([]byte("\x00large"), limit))
	large.Metadata.Set(events.KeyType, "order.placed")
	large.Metadata.Set("odd:key", "")
	flaky.fail.Store(1)
	err = b.Publisher().Publish("t", large)
	require.ErrorContains(t, err, "away")
	require.NotErrorIs(t, err, broker.ErrRejected, "the store comes back")
	require.NoError(t, b.Publisher().Publish("t", large))
	require.Empty(t, s.violent)
	require.Equal(t, "order.placed", aws.ToString(s.sends[0].Entries[0].MessageAttributes[events.KeyType].StringValue))

	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{})
	got := receive(t, ch)
	require.True(t, large.Equals(got))
	// A handler's writes don't reach the next delivery.
	got.Payload[0] = 'x'
	middleware.DeliveryFrom(got.Context()).Release()
	middleware.DeliveryFrom(got.Context()).RedeliverAfter(0)
	got.Nack()
	got = receive(t, ch)
	require.True(t, large.Equals(got))
	require.Equal(t, 1, middleware.DeliveryFrom(got.Context()).Count(), "a released delivery is not counted")
	got.Ack()

	// A payload that is gone is a malformed message, in the dead letters.
	flaky.get.Store(errorBox{fs.ErrNotExist})
	gone := message.NewMessage("gone", bytes.Repeat([]byte("y"), limit))
	require.NoError(t, b.Publisher().Publish("t", gone))
	require.Eventually(t, func() bool {
		depth, err := b.Admin().Depth(ctx, broker.DeadLetterTopic("g"))
		return err == nil && depth == 1
	}, patience, 10*time.Millisecond)

	// A store that does not answer is no fault of the message: it comes later.
	flaky.get.Store(errorBox{errors.New("the store is away")})
	require.NoError(t, b.Publisher().Publish("t", large))
	require.Eventually(t, func() bool { return flaky.gets.Load() > 0 }, patience, time.Millisecond)
	flaky.get.Store(errorBox{})
	got = receive(t, ch)
	require.True(t, large.Equals(got))
	got.Ack()

	tooMuch := message.NewMessage("u", []byte("x"))
	tooMuch.Metadata.Set("a", strings.Repeat("m", limit))
	require.ErrorIs(t, b.Publisher().Publish("t", tooMuch), broker.ErrRejected, "metadata can't be claimed")
}

// flakyStore fails the next calls of Put, and Get as long as it is told to.
type flakyStore struct {
	sqs.PayloadStore
	fail atomic.Int64
	get  atomic.Value // errorBox
	gets atomic.Int64 // failed ones with an error that passes
}

type errorBox struct{ error }

func (f *flakyStore) Get(ctx context.Context, ref string) ([]byte, error) {
	if box, _ := f.get.Load().(errorBox); box.error != nil {
		if !errors.Is(box.error, fs.ErrNotExist) {
			f.gets.Add(1)
		}
		return nil, fmt.Errorf("get: %w", box.error)
	}
	return f.PayloadStore.Get(ctx, ref)
}

func (f *flakyStore) Put(ctx context.Context, payload []byte) (string, error) {
	if f.fail.Add(-1) >= 0 {
		return "", fmt.Errorf("the store is away")
	}
	return f.PayloadStore.Put(ctx, payload)
}

// B16: a throttled extension is tried again; the handler keeps its message for
// more than two leases, and nobody else gets it.
func TestThrottledExtension_B16(t *testing.T) {
	t.Parallel()
	s := newStrict()
	b := onStrict(t, s, nil)
	s.onExtend = func(n int, _ *awssqs.ChangeMessageVisibilityBatchInput) error {
		if n%2 == 1 {
			return errThrottled
		}
		return nil
	}
	require.NoError(t, b.Publisher().Publish("t", numbered(1)...))
	// A lease that leaves room for a few tries on a busy machine.
	cfg := broker.SubscriberConfig{Concurrency: 2, Lease: 2 * time.Second}
	ch, _ := subscribe(t, b, "t", cfg)
	m := receive(t, ch)
	other, _ := subscribe(t, b, "t", cfg)
	select {
	case <-time.After(5 * time.Second):
	case <-m.Context().Done():
		require.FailNow(t, "cancelled", "%v", context.Cause(m.Context()))
	case <-other:
		require.FailNow(t, "delivered while held")
	case <-ch:
		require.FailNow(t, "delivered while held")
	}
	require.True(t, m.Ack())
	require.Eventually(t, func() bool { return len(s.stored(t, b)) == 0 }, patience, 10*time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Greater(t, len(s.extends), 4)
	require.Empty(t, s.overlap)
}

// B16: extensions fail for longer than the lease: the handler is told.
func TestALostLeaseCancelsTheHandler_B16(t *testing.T) {
	t.Parallel()
	s := newStrict()
	b := onStrict(t, s, nil)
	s.onExtend = func(int, *awssqs.ChangeMessageVisibilityBatchInput) error { return errThrottled }
	require.NoError(t, b.Publisher().Publish("t", numbered(1)...))
	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{Concurrency: 1, Lease: time.Second})
	m := receive(t, ch)
	select {
	case <-m.Context().Done():
		require.ErrorIs(t, context.Cause(m.Context()), broker.ErrLeaseLost)
	case <-time.After(patience):
		require.FailNow(t, "the handler was not told")
	}
	m.Nack()
	again := receive(t, ch)
	require.Equal(t, m.UUID, again.UUID, "it comes again")
	// Its own subscription may have received it in between, while it still ran.
	require.GreaterOrEqual(t, middleware.DeliveryFrom(again.Context()).Count(), 2)
	again.Ack()
}

// B16: SQS hides a message for twelve hours at most, here for four seconds.
func TestTheLongestVisibility_B16(t *testing.T) {
	t.Parallel()
	s := newStrict()
	s.hide = 4 * time.Second
	b := onStrict(t, s, nil)
	require.NoError(t, b.Publisher().Publish("t", numbered(1)...))
	ch, _ := subscribe(t, b, "t", broker.SubscriberConfig{Concurrency: 1, Lease: time.Second})
	m := receive(t, ch)
	start := time.Now()
	select {
	case <-m.Context().Done():
		require.ErrorIs(t, context.Cause(m.Context()), broker.ErrLeaseLost)
		require.Greater(t, time.Since(start), time.Second, "not before the cap")
	case <-time.After(patience):
		require.FailNow(t, "the handler was not told")
	}
	m.Ack() // too late: it comes again
	again := receive(t, ch)
	require.Equal(t, m.UUID, again.UUID)
	again.Ack()
}

// B16: an extension that is under way when the handler acks is waited for, and
// none begins after.
func TestTheHeartbeatStopsBeforeTheDelete_B16(t *testing.T) {
	t.Parallel()
	s := newStrict()
	b := onStrict(t, s, nil)
	begun, finish := make(chan struct{}, 100), make(chan struct{})
	s.onExtend = func(n int, _ *awssqs.ChangeMessageVisibilityBatchInput) error {
		begun <- struct{}{}
		if n == 1 {
			<-finish
		}
		return nil
	}
	require.NoError(t, b.Publisher().Publish("t", numbered(1)...))
	ch, sub := subscribe(t, b, "t", broker.SubscriberConfig{Concurrency: 1, Lease: 3 * time.Second})
	m := receive(t, ch)
	<-begun
	require.True(t, m.Ack())
	time.AfterFunc(100*time.Millisecond, func() { close(finish) })
	require.NoError(t, sub.Close())
	require.Empty(t, s.stored(t, b))
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.overlap, "no extension during or after the delete")
}
