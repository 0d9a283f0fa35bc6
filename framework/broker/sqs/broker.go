package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
)

// Mode says how a topic reaches its groups. It is also the adapter's name in
// configuration.
type Mode string

// The modes.
const (
	// ModeSQS sends to each group's queue.
	ModeSQS Mode = "sqs"
	// ModeSNS publishes to an SNS topic that each group's queue subscribes to.
	ModeSNS Mode = "sns"
)

// Topology says what the broker does about queues, topics and subscriptions.
type Topology string

// What Topology can be.
const (
	// TopologyEnsure creates what is missing and sets what differs: for
	// development and tests.
	TopologyEnsure Topology = "ensure"
	// TopologyVerify creates nothing; what is missing or differs is an error: for
	// production, where infrastructure code owns the queues.
	TopologyVerify Topology = "verify"
	// TopologyOff looks at nothing but the queues' addresses.
	TopologyOff Topology = "off"
)

// Defaults of Config, and AWS's own limits.
const (
	DefaultWaitTime        = 20 * time.Second
	DefaultMaxReceiveCount = 100
	DefaultRetention       = 14 * 24 * time.Hour
	DefaultDiscoverEvery   = 30 * time.Second
	DefaultMaxPolls        = 8
	DefaultParallel        = 8
	DefaultRequestTimeout  = 15 * time.Second
	// DefaultSQSMessageBytes is SQS's limit for one message and for the sum of
	// one batch, attributes included.
	DefaultSQSMessageBytes = 1 << 20
	// DefaultSNSMessageBytes is the same for an SNS topic whose
	// MaximumMessageSize is not set.
	DefaultSNSMessageBytes = 256 << 10
	// MaxVisibility is the longest that SQS hides a message from the receive on.
	MaxVisibility = 12 * time.Hour
)

// Config configures a Broker. The zero value of a field means its default.
type Config struct {
	// Mode is ModeSQS or ModeSNS. Default ModeSQS.
	Mode Mode
	// FIFO uses FIFO queues and topics: order per key, across replicas too.
	// Default false.
	FIFO bool
	// Region is the AWS region. Default: what the SDK finds in the environment.
	Region string
	// Endpoint replaces AWS's own endpoints, such as http://127.0.0.1:4566 for an
	// emulator. On a loopback address credentials and region need not be set.
	Endpoint string
	// Prefix stands before each queue's and topic's name: up to MaxPrefix letters,
	// digits, dashes and underscores. Default none.
	Prefix string
	// Topology is what is done about queues, topics and subscriptions. Default
	// TopologyVerify, the one that changes nothing.
	Topology Topology
	// Groups lists the consumer groups of topics, for ModeSQS. Of a topic that is
	// not in it the groups are found by their queues' names (see DiscoverEvery).
	Groups map[string][]string
	// DiscoverEvery is how long ModeSQS believes what ListQueues said about a
	// topic's groups. Default 30 s.
	DiscoverEvery time.Duration
	// AccountID is the AWS account that owns the SNS topics. Default: it is asked
	// for, with CreateTopic under TopologyEnsure and with ListTopics otherwise.
	AccountID string
	// FilterTypes returns the event types that a subscription takes, for ModeSNS:
	// its filter policy on event_type, which also takes what has no type. None means
	// all. Default: the Type of the subscription that EnsureTopology was given; a
	// filter that is there stays where it was given none.
	FilterTypes func(broker.Subscription) []string
	// MaxMessageBytes is the largest message, and the largest sum of one batch,
	// attributes included. Default: 1 MiB for ModeSQS, 256 KiB for ModeSNS, whose
	// topics take up to 1 MiB when they are told so (ensure does).
	MaxMessageBytes int
	// Payloads takes the payloads of larger messages. Default none: such a message
	// is refused with broker.ErrRejected.
	Payloads PayloadStore
	// WaitTime is how long one receive waits for a message: whole seconds, 0 to
	// 20. Default 20 s. Negative: none.
	WaitTime time.Duration
	// MaxPolls is how many receives one subscription has under way at most; it
	// starts with one and adds more while they come back full. Default 8.
	MaxPolls int
	// Parallel is how many send, delete and visibility requests of one call run at
	// once. Default 8.
	Parallel int
	// MaxReceiveCount is how often SQS itself hands a message out before it moves
	// it to the group's dead letters. It must be well above the stack's
	// MaxDeliveries, since SQS also counts what was given back. Default 100.
	MaxReceiveCount int
	// Retention is how long queues keep a message. Default, and at most, 14 days.
	Retention time.Duration
	// KMSKey encrypts queues and topics with a key of one's own. Default: keys
	// that SQS manages.
	KMSKey string
	// Tags are set on queues and topics that are created, besides headrace:topic
	// and headrace:group.
	Tags map[string]string
	// RequestTimeout bounds one request to AWS, its retries included. Default 15 s.
	RequestTimeout time.Duration
	// SQS and SNS replace the clients that Open makes from Region and Endpoint.
	SQS SQSAPI
	SNS SNSAPI
	// Logger receives the broker's own events. Default slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns c with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.Mode = cmp.Or(c.Mode, ModeSQS)
	c.Topology = cmp.Or(c.Topology, TopologyVerify)
	c.DiscoverEvery = cmp.Or(c.DiscoverEvery, DefaultDiscoverEvery)
	c.WaitTime = cmp.Or(c.WaitTime, DefaultWaitTime)
	c.MaxPolls = cmp.Or(c.MaxPolls, DefaultMaxPolls)
	c.Parallel = cmp.Or(c.Parallel, DefaultParallel)
	c.MaxReceiveCount = cmp.Or(c.MaxReceiveCount, DefaultMaxReceiveCount)
	c.Retention = cmp.Or(c.Retention, DefaultRetention)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, DefaultRequestTimeout)
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = DefaultSQSMessageBytes
		if c.Mode == ModeSNS {
			c.MaxMessageBytes = DefaultSNSMessageBytes
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that can't work, by name, value and remedy.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("sqs: "+format, args...)) }
	if c.Mode != ModeSQS && c.Mode != ModeSNS {
		bad("Mode is %q: use %q or %q", c.Mode, ModeSQS, ModeSNS)
	}
	if !slices.Contains([]Topology{TopologyEnsure, TopologyVerify, TopologyOff}, c.Topology) {
		bad("Topology is %q: use %q, %q or %q", c.Topology, TopologyEnsure, TopologyVerify, TopologyOff)
	}
	if !legalPrefix(c.Prefix) {
		bad("Prefix is %q: use at most %d letters, digits, dashes and underscores", c.Prefix, MaxPrefix)
	}
	if c.Endpoint != "" {
		if u, err := url.Parse(c.Endpoint); err != nil || u.Host == "" {
			bad("Endpoint is %q: write a URL such as http://127.0.0.1:4566, or leave it empty for AWS", c.Endpoint)
		}
	}
	if c.DiscoverEvery < 0 {
		bad("DiscoverEvery is %s: it must be positive", c.DiscoverEvery)
	}
	if c.WaitTime > 20*time.Second || c.WaitTime > 0 && c.WaitTime%time.Second != 0 {
		bad("WaitTime is %s: SQS takes whole seconds up to 20s", c.WaitTime)
	}
	if c.MaxPolls < 1 {
		bad("MaxPolls is %d: it must be 1 or more", c.MaxPolls)
	}
	if c.Parallel < 1 {
		bad("Parallel is %d: it must be 1 or more", c.Parallel)
	}
	if c.MaxMessageBytes < 1024 || c.MaxMessageBytes > 1<<20 {
		bad("MaxMessageBytes is %d: AWS takes 1,024 to 1,048,576", c.MaxMessageBytes)
	}
	if c.MaxReceiveCount < 1 || c.MaxReceiveCount > 1000 {
		bad("MaxReceiveCount is %d: SQS takes 1 to 1,000", c.MaxReceiveCount)
	}
	if c.Retention < time.Minute || c.Retention > DefaultRetention {
		bad("Retention is %s: SQS takes 1m to 336h (14 days)", c.Retention)
	}
	if c.RequestTimeout < 0 {
		bad("RequestTimeout is %s: it must be positive", c.RequestTimeout)
	}
	return errors.Join(errs...)
}

// QueueName is the name of a group's queue on a topic: for infrastructure code,
// for IAM policies and for programs that use AWS directly.
func (c Config) QueueName(topic, group string) string { return c.namer().queue(topic, group) }

// TopicName is the name of a topic's SNS topic, and of the topic's own queue,
// which holds dead letters and what was published before there was a group.
func (c Config) TopicName(topic string) string { return c.namer().own(topic) }

func (c Config) namer() namer { return namer{prefix: c.Prefix, fifo: c.FIFO} }

// Broker is a broker.Broker on SQS, with or without SNS. It is safe for
// concurrent use.
type Broker struct {
	cfg     Config
	sqs     SQSAPI
	sns     SNSAPI
	names   namer
	pub     *publisher
	routes  routes
	held    receipts
	sources sources
	types   sync.Map // what EnsureTopology was told of a subscription's type
	closed  atomic.Bool

	polls    sync.WaitGroup // receives under way, of closed subscriptions too
	pollCtx  context.Context
	stopPoll context.CancelFunc

	closeIdle func() // of the client that Open made; nil where it made none
}

var _ broker.Broker = (*Broker)(nil)

// Open connects to AWS and returns once SQS answers. It fails when the config is
// wrong, when there are no credentials, or when nothing answers before ctx ends.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, sqs: cfg.SQS, sns: cfg.SNS, names: cfg.namer()}
	if b.sqs == nil || b.sns == nil && cfg.Mode == ModeSNS {
		if err := b.connect(ctx); err != nil {
			return nil, err
		}
	}
	b.pub = &publisher{b: b}
	b.routes.init()
	b.pollCtx, b.stopPoll = context.WithCancel(context.WithoutCancel(ctx))
	if err := b.Ping(ctx); err != nil {
		b.stopPoll()
		where := cfg.Endpoint
		if where == "" {
			where = "AWS"
		}
		return nil, fmt.Errorf("sqs: no answer from %s: check region, endpoint and credentials: %w", where, err)
	}
	return b, nil
}

// Name returns "sqs" or "sns".
func (b *Broker) Name() string { return string(b.cfg.Mode) }

// Features states what this broker can do.
func (b *Broker) Features() broker.Features {
	f := broker.Features{
		OrderPerKey:         b.cfg.FIFO,
		OrderAcrossReplicas: b.cfg.FIFO,
		Delay:               true,
		MaxDelay:            MaxVisibility,
		MaxMessageBytes:     b.cfg.MaxMessageBytes,
		DeliveryCount:       true,
		CountsReleases:      true,
		CompetingConsumers:  true,
		Durable:             true,
	}
	if b.cfg.Payloads != nil {
		f.MaxMessageBytes, f.ClaimCheckAbove = 0, b.cfg.MaxMessageBytes
	}
	return f
}

// Publisher returns the broker's publisher.
func (b *Broker) Publisher() broker.Publisher { return b.pub }

// Subscriber makes a subscriber. Order needs FIFO queues.
func (b *Broker) Subscriber(cfg broker.SubscriberConfig) (message.Subscriber, error) {
	cfg, err := cfg.Complete(b.cfg.Logger)
	if err != nil {
		return nil, err
	}
	if cfg.Order && !b.cfg.FIFO {
		return nil, fmt.Errorf("sqs: group %q: Order is true, and standard queues keep no order: use FIFO queues, or leave it out", cfg.Group)
	}
	if cfg.Lease > MaxVisibility {
		return nil, fmt.Errorf("sqs: group %q: Lease is %s: SQS hides a message for %s at most", cfg.Group, cfg.Lease, MaxVisibility)
	}
	ensure := func(ctx context.Context, topic string) error {
		return b.EnsureTopology(ctx, broker.Subscription{Topic: topic, Group: cfg.Group})
	}
	return lanes.NewSubscriber(lanes.Config{
		SubscriberConfig: cfg,
		// What is held keeps its body: SQS can't give it again without a delivery.
		MaxHeld:      cfg.MaxInFlight,
		ReclaimEvery: 24 * time.Hour, // SQS itself brings back what others left
		Heartbeat:    cfg.Lease / 3,
		BrokerCounts: true,
		DeadLetters:  b.pub,
	}, ensure, b.join), nil
}

// Admin returns the operators' view.
func (b *Broker) Admin() broker.Admin { return admin{b} }

// Ping returns nil when SQS answers.
func (b *Broker) Ping(ctx context.Context) error {
	if b.closed.Load() {
		return fmt.Errorf("sqs: %w", broker.ErrClosed)
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.RequestTimeout)
	defer cancel()
	// A queue that need not exist: any answer about it is an answer.
	name := b.names.own("headrace.ping")
	_, err := b.sqs.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	if err != nil && !noQueue(err) && !denied(err) {
		return fmt.Errorf("sqs: ping: %w", err)
	}
	return nil
}

// pollGrace is how long Close waits for receives of closed subscriptions.
const pollGrace = 2 * time.Second

// Close waits a moment for the receives that closed subscriptions still have
// under way, so that what they bring is given back at once, and ends the rest:
// what those bring is back after its lease. It may be called twice.
func (b *Broker) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	done := make(chan struct{})
	go func() {
		b.polls.Wait()
		close(done)
	}()
	grace := time.NewTimer(pollGrace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
	b.stopPoll()
	<-done
	if b.closeIdle != nil {
		b.closeIdle()
	}
	return nil
}
