// Package broker is the port between Headrace and a message broker: what an
// adapter gives, what it promises, and what it says it can't do. It knows no
// broker itself; an adapter is imported by whoever wires the program.
//
// # Contract
//
// Every adapter keeps these rules, and brokertest proves them.
//
//   - Publish and PublishBatch return nil only once the broker has confirmed
//     every message. A batch that failed in part returns a *PublishError that
//     names the entries that were not confirmed; the others were, and need no
//     resend.
//   - Each group gets every message of a topic; the members of one group share
//     them. A group that is new receives what the topic still holds.
//   - Acks are per message. A message is redelivered until it is acked: after
//     the nack delay when it was nacked, after the lease when its consumer died.
//   - While a message is held, its lease is renewed, so a handler may run longer
//     than the lease and nobody else receives the message. When the lease is
//     lost all the same, the message's context is cancelled with ErrLeaseLost as
//     its cause.
//   - The delivery count starts at 1, grows with each redelivery and survives a
//     crash. A nack of a released delivery does not grow it.
//   - Where the adapter can, a crash counts against what ran and not against what
//     only waited in the consumer, and what consumers left behind more than once
//     runs one at a time, so that a message that kills the process does not take
//     its neighbours along to the dead letters.
//   - While the Gate is paused nothing is handed out, and nothing is fetched but
//     what a fetch that was under way brings; what is held keeps its lease.
//   - At most MaxInFlight messages are handed out and not yet settled; at most
//     Concurrency of them run at once. With Order, messages of one key (metadata
//     key events.KeyOrdering; no key means no order) are handed out one at a
//     time, in the order of publishing, also across a nack: a later one waits
//     until the earlier one is acked.
//   - A message's context outlives the Subscribe context. It carries a
//     *middleware.Delivery and is cancelled only at the end of the drain
//     deadline or with the lease.
//   - Close drains: fetching stops, Delivery.Draining is closed, messages that
//     no handler has begun are released at once and uncounted, running handlers
//     finish until DrainTimeout, their acks use a context of their own, and then
//     the channel is closed. Cancelling the Subscribe context does the same.
//     Close twice, or before any Subscribe, returns at once.
//   - An entry that can't be decoded is handed to OnMalformed as raw bytes and
//     settled by what that returns; it never ends the subscription and never
//     loops hot.
//   - Consumption resumes by itself after the broker was away, with backoff.
//   - Topic and group names that differ never share storage.
package broker

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
)

// Broker is an open connection to one message broker. It is safe for
// concurrent use.
type Broker interface {
	// Name is the adapter's name as configuration writes it ("redisstream").
	Name() string
	// Features states what this broker can do.
	Features() Features
	// Publisher returns the broker's publisher. All calls return the same one;
	// its Close does nothing, since the Broker owns it.
	Publisher() Publisher
	// Subscriber makes a subscriber. A wrong config is an error that names the
	// field, the value and the remedy.
	Subscriber(cfg SubscriberConfig) (message.Subscriber, error)
	// EnsureTopology creates the topics and groups where they are missing. It
	// is idempotent and safe to run from many replicas at once.
	EnsureTopology(ctx context.Context, subs ...Subscription) error
	// Admin returns the view that operators and metrics use.
	Admin() Admin
	// Ping returns nil when the broker answers.
	Ping(ctx context.Context) error
	// Close releases the connection. Subscribers must be closed first. A client
	// that was handed in by the caller stays open.
	Close() error
}

// Publisher publishes messages.
type Publisher interface {
	// Publish is PublishBatch with each message's own context.
	message.Publisher
	// PublishBatch sends msgs to topic in order and returns once the broker has
	// confirmed them. When some were not confirmed it returns a *PublishError.
	// No messages is no error.
	PublishBatch(ctx context.Context, topic string, msgs []*message.Message) error
}

// Subscription names one consumer group on one topic.
type Subscription struct {
	Topic string
	Group string
	// Type is the only event type (metadata events.KeyType) that the group takes
	// from the topic; empty where it takes all or that is not known. A broker that
	// can filters what it delivers by it; what says no type is delivered always.
	Type string
}

// SubscriberConfig says how one subscriber consumes. The zero value of a field
// means its default; WithDefaults fills them in.
type SubscriberConfig struct {
	// Group is the consumer group. Required.
	Group string
	// Consumer names this member of the group. Default: a unique name.
	Consumer string
	// Concurrency is how many messages run at once. Default 10.
	Concurrency int
	// MaxInFlight bounds what is fetched and not yet settled, waiting messages
	// included. Default 10 x Concurrency; at least Concurrency.
	MaxInFlight int
	// Order hands out the messages of one key one at a time and in order.
	// Default false.
	Order bool
	// Lease is how long a message stays with a consumer that has gone silent.
	// It is renewed every third of it while the message is held. Default 30 s;
	// at least 1 s.
	Lease time.Duration
	// NackDelay is how long a nacked message is held back when its Delivery says
	// nothing else. Default 1 s. Negative means no delay.
	NackDelay time.Duration
	// DrainTimeout bounds how long Close waits for running handlers. Default
	// 25 s, below the usual 30 s between SIGTERM and SIGKILL.
	DrainTimeout time.Duration
	// SuspectFrom is the delivery from which a message that a consumer left behind
	// runs with no other such beside it, since consumers may have died of it; and
	// where the broker counts what it hands out, messages are then fetched one at a
	// time, so that its neighbours' counts don't grow with its own. It should be
	// above what nacks alone explain. Default 3; at least 2.
	SuspectFrom int
	// OnMalformed receives an entry that can't be decoded: Payload is its raw
	// bytes, UUID its place in the broker, Metadata what could be read. Nil
	// returned settles the entry; an error keeps it, to come again after the
	// nack delay. Default: publish it to DeadLetterTopic(Group) with the reason
	// under MalformedReasonKey.
	OnMalformed func(ctx context.Context, raw *message.Message, reason error) error
	// Gate pauses and narrows what the subscriber hands out. Default nil: always
	// open.
	Gate *Gate
	// Logger receives the subscriber's own events. Default slog.Default().
	Logger *slog.Logger
}

// Defaults of SubscriberConfig.
const (
	DefaultConcurrency  = 10
	DefaultLease        = 30 * time.Second
	DefaultNackDelay    = time.Second
	DefaultDrainTimeout = 25 * time.Second
	DefaultSuspectFrom  = 3
	MinLease            = time.Second
)

// MalformedReasonKey is the metadata key under which the default OnMalformed
// writes why an entry could not be decoded.
const MalformedReasonKey = "dead_letter_reason"

// DeadLetterTopic returns the topic that holds a group's dead letters.
func DeadLetterTopic(group string) string { return group + ".dlq" }

// RedriveTopic returns the topic that a group reads beside its own one: a dead
// letter that is replayed to it reaches the group that failed and no other.
func RedriveTopic(group string) string { return group + ".redrive" }

// WithDefaults returns c with its defaults filled in. It leaves Consumer and
// OnMalformed alone: those defaults belong to the adapter.
func (c SubscriberConfig) WithDefaults() SubscriberConfig {
	if c.Concurrency == 0 {
		c.Concurrency = DefaultConcurrency
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 10 * c.Concurrency
	}
	if c.Lease == 0 {
		c.Lease = DefaultLease
	}
	if c.NackDelay == 0 {
		c.NackDelay = DefaultNackDelay
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	if c.SuspectFrom == 0 {
		c.SuspectFrom = DefaultSuspectFrom
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Complete is what an adapter's Subscriber begins with: it returns c with its
// defaults and a Consumer name of its own (host, process, random), or what
// Validate finds. Logger is taken where c has none.
func (c SubscriberConfig) Complete(logger *slog.Logger) (SubscriberConfig, error) {
	if c.Logger == nil {
		c.Logger = logger
	}
	c = c.WithDefaults()
	if c.Consumer == "" {
		host, _ := os.Hostname()
		// Some brokers take no long names, and databases no odd bytes.
		if host = strings.ToValidUTF8(host, ""); len(host) > maxHost {
			host = strings.ToValidUTF8(host[:maxHost], "")
		}
		c.Consumer = fmt.Sprintf("%s-%d-%s", host, os.Getpid(), uuid.NewString()[:8])
	}
	return c, c.Validate()
}

// maxHost bounds the bytes of the host's name in a Consumer's default.
const maxHost = 40

// Validate reports every field that can't work, by name, value and remedy.
func (c SubscriberConfig) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if strings.TrimSpace(c.Group) == "" {
		bad("broker: Group is empty: name the consumer group, such as \"payments.charge-order\"")
	}
	if c.Concurrency < 1 {
		bad("broker: Concurrency is %d: it must be 1 or more", c.Concurrency)
	}
	if c.MaxInFlight < c.Concurrency {
		bad("broker: MaxInFlight is %d, below Concurrency %d: raise it or leave it 0", c.MaxInFlight, c.Concurrency)
	}
	if c.Lease < MinLease {
		bad("broker: Lease is %s: it must be %s or more", c.Lease, MinLease)
	}
	if c.SuspectFrom < 2 {
		bad("broker: SuspectFrom is %d: it must be 2 or more, or 0 for the default", c.SuspectFrom)
	}
	if c.DrainTimeout < 0 {
		bad("broker: DrainTimeout is %s: it must not be negative", c.DrainTimeout)
	}
	return errors.Join(errs...)
}

// Features states what a broker can do. Zero for a limit means no limit.
type Features struct {
	// OrderPerKey: Order in SubscriberConfig holds within one consumer.
	OrderPerKey bool
	// OrderAcrossReplicas: it holds across all members of a group too.
	OrderAcrossReplicas bool
	// MaxDelay is the longest nack delay that outlives the consumer; 0 with
	// Delay true means any.
	MaxDelay time.Duration
	// Delay: a nack delay is obeyed at all.
	Delay bool
	// HoldsDelay: a delay beyond MaxDelay holds too while the consumer that nacked
	// lives; when it ends, the message comes again after MaxDelay at the latest.
	HoldsDelay bool
	// MaxMessageBytes is the largest message, metadata included.
	MaxMessageBytes int
	// ClaimCheckAbove is the message size from which payloads are stored beside the
	// broker, which carries a reference to them; 0: none is.
	ClaimCheckAbove int
	// MaxMetadataEntries is the most metadata entries on one message.
	MaxMetadataEntries int
	// DeliveryCount: the count survives a crash of the consumer.
	DeliveryCount bool
	// CountsReleases: a message that a draining consumer gave back counts as
	// delivered all the same, so MaxDeliveries needs a margin.
	CountsReleases bool
	// CompetingConsumers: members of one group share the messages.
	CompetingConsumers bool
	// ReplayForNewGroup: a new group receives what was published before it.
	ReplayForNewGroup bool
	// Durable: messages outlive the process that published them.
	Durable bool
	// FixedLease: the lease can't be renewed while a message is held, so all of
	// its handling must fit into one lease.
	FixedLease bool
}

// Admin is the operators' view of a broker. Methods read only, unless they say
// otherwise, and are safe for concurrent use.
type Admin interface {
	// Stats reports a group's backlog on a topic. A topic or group that does
	// not exist yet has zero stats and no error.
	Stats(ctx context.Context, sub Subscription) (Stats, error)
	// Depth is how many messages the topic holds. A topic that does not exist
	// has depth 0.
	Depth(ctx context.Context, topic string) (int64, error)
	// Browse yields the topic's messages from the oldest that was published at
	// or after since (zero: all), without consuming them. It ends at the newest
	// message of the moment it was called.
	Browse(ctx context.Context, topic string, since time.Time) iter.Seq2[Stored, error]
	// Delete removes messages from the topic by the position that Browse gave.
	// A position that is gone is no error; the number removed is returned.
	Delete(ctx context.Context, topic string, positions ...string) (int, error)
}

// Stored is a message at rest.
type Stored struct {
	// Position identifies the message in its topic.
	Position string
	// PublishedAt is when the broker accepted it, UTC.
	PublishedAt time.Time
	// Message is a copy; acking it does nothing.
	Message *message.Message
}

// Stats is a group's backlog on one topic.
type Stats struct {
	// Lag is how many messages wait that no consumer of the group has fetched.
	Lag int64
	// Pending is how many are fetched and not settled.
	Pending int64
	// OldestAge is the age of the oldest message that is not settled; 0 if none.
	OldestAge time.Duration
}

// ErrLeaseLost is the cancellation cause of a message's context when another
// consumer took the message over.
var ErrLeaseLost = errors.New("lease lost: another consumer holds the message")

// ErrClosed is returned by calls on a closed broker or publisher.
var ErrClosed = errors.New("broker closed")

// PublishError reports the entries of a batch that the broker did not confirm.
type PublishError struct {
	// Topic is the destination.
	Topic string
	// Failed maps an entry's index in the batch to why it was not confirmed. An
	// error that wraps ErrRejected will fail again however often it is sent.
	Failed map[int]error
}

// ErrRejected is in the chain of an entry's error when the broker will never
// take that message: too large, a forbidden character, an unknown topic.
var ErrRejected = errors.New("rejected by the broker")

// Error names the topic, how many failed and the first reason.
func (e *PublishError) Error() string {
	first := -1
	for i := range e.Failed {
		if first < 0 || i < first {
			first = i
		}
	}
	if first < 0 {
		return fmt.Sprintf("publish to %q failed", e.Topic)
	}
	return fmt.Sprintf("publish to %q: %d not confirmed, entry %d: %v", e.Topic, len(e.Failed), first, e.Failed[first])
}

// Unwrap returns the entries' errors in the order of their index.
func (e *PublishError) Unwrap() []error {
	idx := make([]int, 0, len(e.Failed))
	for i := range e.Failed {
		idx = append(idx, i)
	}
	sort.Ints(idx)
	errs := make([]error, len(idx))
	for n, i := range idx {
		errs[n] = e.Failed[i]
	}
	return errs
}
