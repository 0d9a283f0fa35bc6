package nats

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/framework/broker"
)

// Name is the adapter's name in configuration.
const Name = "nats"

// Defaults of Config.
const (
	DefaultRetention      = 14 * 24 * time.Hour
	DefaultDedupWindow    = 2 * time.Minute
	DefaultFetchWait      = 500 * time.Millisecond
	DefaultMaxHeld        = 10_000
	DefaultMaxAckPending  = 100_000
	DefaultRequestTimeout = 10 * time.Second
	// DefaultMaxMessageBytes is the max_payload of a server that sets none.
	DefaultMaxMessageBytes = 1 << 20
	// MaxPrefix is the longest Config.Prefix.
	MaxPrefix = 64
)

// Config configures a Broker. One of URL and Conn is required. The zero value of
// another field means its default.
type Config struct {
	// URL is the servers' addresses, separated by commas, such as
	// "nats://user:password@host:4222,nats://host2:4222" or "tls://host:4222". The
	// broker opens a connection of its own and closes it.
	URL string
	// Options are further options of that connection: TLS, credentials.
	Options []natsgo.Option
	// Conn is used instead of URL. Close leaves it open. It should reconnect for
	// ever (MaxReconnects -1) and buffer nothing meanwhile (ReconnectBufSize -1).
	Conn *natsgo.Conn
	// Domain is the JetStream domain. Default none.
	Domain string
	// Prefix stands before each subject, stream included: up to MaxPrefix letters,
	// digits, dashes, underscores and dots, as in "staging.". Default none.
	Prefix string
	// Retention is how long a stream that is created keeps a message, acked or not.
	// Where the stream is there and keeps less, it is raised. Topics of dead letters
	// keep theirs for ever. Default 14 days; negative: for ever.
	Retention time.Duration
	// DedupWindow is how long a stream that is created recognizes a message that
	// is sent again, by its event's id and content. Default 2 min; at most
	// Retention.
	DedupWindow time.Duration
	// Replicas is how many servers of a cluster hold each stream that is created:
	// 1 to 5, best odd. Default 1.
	Replicas int
	// MaxBytes bounds a stream that is created; a full one refuses what is
	// published. Default 0: no bound but the server's and the account's.
	MaxBytes int64
	// FetchWait is how long one fetch waits for a message; Close waits for it too.
	// Default 500 ms.
	FetchWait time.Duration
	// MaxHeld bounds how many messages one subscription holds back beyond
	// MaxInFlight, by sequence alone: nacked ones, and those behind a busy key. At
	// the bound it fetches no more. Default 10,000.
	MaxHeld int
	// MaxAckPending is how many messages all members of a group may hold, held back
	// ones included; at the bound the server hands out no more. Default 100,000.
	MaxAckPending int
	// RequestTimeout bounds one request to JetStream where the caller's context
	// bounds it no closer. Default 10 s.
	RequestTimeout time.Duration
	// Logger receives the broker's own events. Default slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns c with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.Retention = cmp.Or(c.Retention, DefaultRetention)
	c.DedupWindow = cmp.Or(c.DedupWindow, DefaultDedupWindow)
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.FetchWait = cmp.Or(c.FetchWait, DefaultFetchWait)
	c.MaxHeld = cmp.Or(c.MaxHeld, DefaultMaxHeld)
	c.MaxAckPending = cmp.Or(c.MaxAckPending, DefaultMaxAckPending)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, DefaultRequestTimeout)
	if c.Retention > 0 && c.DedupWindow == DefaultDedupWindow {
		c.DedupWindow = min(c.DedupWindow, c.Retention)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that can't work, by name, value and remedy.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("nats: "+format, args...)) }
	if c.URL == "" && c.Conn == nil {
		bad("URL and Conn are empty: set one of them, such as URL \"nats://127.0.0.1:4222\"")
	}
	if c.URL != "" && c.Conn != nil {
		bad("URL and Conn are both set: leave one of them out")
	}
	if c.Conn != nil && len(c.Options) > 0 {
		bad("Options are set beside Conn: set them where the connection is opened")
	}
	if !legalPrefix(c.Prefix) {
		bad("Prefix is %q: use at most %d letters, digits, dashes, underscores and single dots, a letter or digit first", c.Prefix, MaxPrefix)
	}
	if c.Retention >= 0 && c.Retention < time.Second {
		bad("Retention is %s: it must be 1s or more, or negative for ever", c.Retention)
	}
	if c.DedupWindow < 100*time.Millisecond || c.Retention > 0 && c.DedupWindow > c.Retention {
		bad("DedupWindow is %s: it must be between 100ms and Retention (%s)", c.DedupWindow, c.Retention)
	}
	if c.Replicas < 1 || c.Replicas > 5 {
		bad("Replicas is %d: JetStream takes 1 to 5", c.Replicas)
	}
	if c.MaxBytes < 0 {
		bad("MaxBytes is %d: it must not be negative; 0 means no bound", c.MaxBytes)
	}
	if c.FetchWait < 10*time.Millisecond || c.FetchWait > time.Minute {
		bad("FetchWait is %s: it must be between 10ms and 1m", c.FetchWait)
	}
	if c.MaxHeld < 0 {
		bad("MaxHeld is %d: it must not be negative", c.MaxHeld)
	}
	if c.MaxAckPending < 1 {
		bad("MaxAckPending is %d: it must be 1 or more", c.MaxAckPending)
	}
	if c.RequestTimeout < 0 {
		bad("RequestTimeout is %s: it must be positive", c.RequestTimeout)
	}
	return errors.Join(errs...)
}

// Features states what a broker with this configuration can do; nothing is
// opened. A server with another max_payload than the usual changes
// MaxMessageBytes.
func (c Config) Features() broker.Features {
	return broker.Features{
		OrderPerKey:        true,
		Delay:              true,
		MaxDelay:           broker.DefaultLease,
		HoldsDelay:         true,
		MaxMessageBytes:    DefaultMaxMessageBytes,
		DeliveryCount:      true,
		CompetingConsumers: true,
		ReplayForNewGroup:  true,
		Durable:            true,
	}
}

// Keys of the metadata of streams and consumers.
const (
	metaTopic  = "headrace.topic"
	metaPrefix = "headrace.prefix"
	metaGroup  = "headrace.group"
)

// StreamConfig is how a topic's stream is created: for infrastructure code, and
// for programs that use NATS directly. C has its defaults.
func (c Config) StreamConfig(topic string) jetstream.StreamConfig {
	c = c.WithDefaults()
	s := jetstream.StreamConfig{
		Name:        c.StreamName(topic),
		Description: "Headrace topic",
		Subjects:    []string{c.Subject(topic)},
		Retention:   jetstream.LimitsPolicy,
		Storage:     jetstream.FileStorage,
		Replicas:    c.Replicas,
		MaxAge:      max(c.Retention, 0),
		Duplicates:  c.DedupWindow,
		MaxMsgs:     -1, MaxMsgsPerSubject: -1, MaxConsumers: -1, MaxBytes: -1, MaxMsgSize: -1,
		Metadata: map[string]string{metaTopic: topic, metaPrefix: c.Prefix},
	}
	if deadLetters(topic) {
		s.MaxAge = 0
	}
	if c.MaxBytes > 0 {
		// To drop what nobody has read would lose it silently.
		s.MaxBytes, s.Discard = c.MaxBytes, jetstream.DiscardNew
	}
	return s
}

// ConsumerConfig is how a group's consumer on a topic is created, with lease as
// its AckWait; 0 means broker.DefaultLease.
func (c Config) ConsumerConfig(topic, group string, lease time.Duration) jetstream.ConsumerConfig {
	c = c.WithDefaults()
	lease = cmp.Or(lease, broker.DefaultLease)
	return jetstream.ConsumerConfig{
		Durable:       c.ConsumerName(group),
		Description:   "Headrace group",
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       lease,
		MaxDeliver:    -1,
		MaxAckPending: c.MaxAckPending,
		FilterSubject: c.Subject(topic),
		Metadata:      map[string]string{metaGroup: group, metaTopic: topic},
	}
}
