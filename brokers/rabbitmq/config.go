package rabbitmq

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/framework/broker"
)

// Unrouted says what becomes of a message that no queue takes, since its topic
// has no group yet.
type Unrouted string

// What Unrouted can be.
const (
	// UnroutedKeep puts it into the topic's own queue, where Admin finds it. No
	// group that comes later gets it from there.
	UnroutedKeep Unrouted = "keep"
	// UnroutedRefuse fails its publish, so that an outbox keeps it and tries again.
	UnroutedRefuse Unrouted = "refuse"
	// UnroutedDrop drops it, as a fanout exchange does.
	UnroutedDrop Unrouted = "drop"
)

// Defaults of Config, and what RabbitMQ's own configuration has.
const (
	DefaultMaxHeld = 1000
	// DefaultMaxMessageBytes is max_message_size of RabbitMQ 4; older ones take
	// 128 MiB.
	DefaultMaxMessageBytes = 16 << 20
	DefaultHeartbeat       = 10 * time.Second
	DefaultTimeout         = 15 * time.Second
	// DefaultConsumerTimeout is consumer_timeout of RabbitMQ's configuration.
	DefaultConsumerTimeout = 30 * time.Minute
	// MaxPrefix is the longest Config.Prefix.
	MaxPrefix = 32
)

// Config configures a Broker. The zero value of a field means its default.
type Config struct {
	// URL is the server's address with the virtual host, such as
	// amqp://user:password@localhost:5672/vhost, or amqps://. Required.
	URL string
	// Prefix stands before the name of every exchange and queue: up to MaxPrefix
	// bytes. Default none.
	Prefix string
	// Unrouted is what becomes of a message that no queue takes. Default
	// UnroutedKeep.
	Unrouted Unrouted
	// SingleActive lets one member of a group at a time consume, while the others
	// stand by: so order per key holds across replicas. It is a property of the
	// queue, which must be new. Default false.
	SingleActive bool
	// MaxHeld bounds what one subscription holds back beyond MaxInFlight: messages
	// with a delay, and those behind one of their key. Their bodies stay in
	// memory. Default 1,000.
	MaxHeld int
	// MaxMessageBytes is the largest payload. It must not be above the server's
	// max_message_size, which closes the channel. Default 16 MiB.
	MaxMessageBytes int
	// Replicas is how many nodes of a cluster hold a new queue. Default: the
	// server's own, three at most.
	Replicas int
	// Heartbeat is how often both ends of a connection show that they live; a dead
	// peer is known after two to three of them. Default 10 s.
	Heartbeat time.Duration
	// Timeout bounds one request to the server, the confirm of a batch included.
	// Default 15 s.
	Timeout time.Duration
	// ConsumerTimeout is consumer_timeout of the server: how long a message may be
	// held. Shortly before, it is put back and taken up again. Default 30 min.
	ConsumerTimeout time.Duration
	// TLS replaces the TLS configuration of an amqps URL. Default: the system's
	// certificates.
	TLS *tls.Config
	// Logger receives the broker's own events. Default slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns c with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.Unrouted = cmp.Or(c.Unrouted, UnroutedKeep)
	c.MaxHeld = cmp.Or(c.MaxHeld, DefaultMaxHeld)
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, DefaultMaxMessageBytes)
	c.Heartbeat = cmp.Or(c.Heartbeat, DefaultHeartbeat)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.ConsumerTimeout = cmp.Or(c.ConsumerTimeout, DefaultConsumerTimeout)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that can't work, by name, value and remedy. It
// never shows the URL, which may hold a password.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("rabbitmq: "+format, args...)) }
	if _, err := amqp.ParseURI(c.URL); err != nil {
		bad("URL is empty or can't be read: write amqp://user:password@host:5672/vhost, with special characters percent-encoded")
	}
	if len(c.Prefix) > MaxPrefix || strings.HasPrefix(c.Prefix, reserved) {
		bad("Prefix is %q: use at most %d bytes that don't begin with %q", c.Prefix, MaxPrefix, reserved)
	}
	switch c.Unrouted {
	case UnroutedKeep, UnroutedRefuse, UnroutedDrop:
	default:
		bad("Unrouted is %q: use %q, %q or %q", c.Unrouted, UnroutedKeep, UnroutedRefuse, UnroutedDrop)
	}
	if c.MaxHeld < 1 {
		bad("MaxHeld is %d: it must be 1 or more", c.MaxHeld)
	}
	if c.MaxMessageBytes < 1024 {
		bad("MaxMessageBytes is %d: it must be 1,024 or more", c.MaxMessageBytes)
	}
	if c.Replicas < 0 {
		bad("Replicas is %d: name how many nodes hold a queue, or leave it 0", c.Replicas)
	}
	if c.Heartbeat < time.Second {
		bad("Heartbeat is %s: it must be 1s or more", c.Heartbeat)
	}
	if c.Timeout < 0 {
		bad("Timeout is %s: it must be positive", c.Timeout)
	}
	if c.ConsumerTimeout < time.Second {
		bad("ConsumerTimeout is %s: write consumer_timeout of the server, a second or more", c.ConsumerTimeout)
	}
	return errors.Join(errs...)
}

// Features states what a broker with this configuration can do; nothing is opened.
func (c Config) Features() broker.Features {
	c = c.WithDefaults()
	return broker.Features{
		OrderPerKey:         true,
		OrderAcrossReplicas: c.SingleActive,
		Delay:               true,
		// A crash ends a delay; while the consumer lives any holds.
		MaxDelay:           time.Millisecond,
		HoldsDelay:         true,
		MaxMessageBytes:    c.MaxMessageBytes,
		DeliveryCount:      true,
		CountsReleases:     true,
		CompetingConsumers: !c.SingleActive,
		Durable:            true,
	}
}

// ExchangeName is the name of a topic's exchange: for programs that use RabbitMQ
// directly, and for permissions. Topics of dead letters and of replays have none.
func (c Config) ExchangeName(topic string) string { return c.namer().exchange(topic) }

// QueueName is the name of the queue that a group reads on a topic.
func (c Config) QueueName(topic, group string) string { return c.namer().queue(topic, group) }

// OwnQueueName is the name of the topic's own queue, which holds dead letters,
// replays, and what no group's queue took.
func (c Config) OwnQueueName(topic string) string { return c.namer().own(topic) }

func (c Config) namer() namer { return namer{prefix: c.Prefix} }
