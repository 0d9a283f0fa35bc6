package kafka

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/framework/broker"
)

// Name is the adapter's name in configuration.
const Name = "kafka"

// Defaults of Config.
const (
	DefaultPartitions        = 12
	DefaultReplicationFactor = -1
	DefaultRetention         = 14 * 24 * time.Hour
	DefaultMaxHeld           = 1000
	DefaultMaxHeldBytes      = 256 << 20
	DefaultMaxMessageBytes   = 1_000_000
	DefaultFetchWait         = 250 * time.Millisecond
	DefaultHeartbeat         = 500 * time.Millisecond
	DefaultMinSession        = 6 * time.Second
	DefaultRequestTimeout    = 10 * time.Second
	// MaxPrefix is the longest Config.Prefix.
	MaxPrefix = 64
)

// MaxUnsettled is how many messages of one partition a group may have fetched and
// not settled.
const MaxUnsettled = 256

// Config configures a Broker. Brokers is required. The zero value of another field
// means its default.
type Config struct {
	// Brokers are addresses of some brokers of the cluster, such as
	// "kafka-1:9092". The others are found from there.
	Brokers []string
	// Options are further options of the clients: TLS, SASL, a dialer. Options that
	// change how groups, offsets or acks work break the contract.
	Options []kgo.Opt
	// Prefix stands before each topic and group: up to MaxPrefix letters, digits,
	// dashes and dots, as in "staging.". Default none.
	Prefix string
	// Partitions is how many partitions a topic that is created gets; it bounds how
	// many members of a group share it. Default 12.
	Partitions int
	// ReplicationFactor is how many brokers hold each partition of a topic that is
	// created. Default -1: what the cluster says.
	ReplicationFactor int
	// Retention is how long a topic that is created keeps a message, acked or not.
	// Topics of dead letters keep theirs for ever. Default 14 days; negative: for
	// ever.
	Retention time.Duration
	// MaxHeld bounds how many messages one subscription holds back beyond
	// MaxInFlight. They stay in memory. Default 1,000.
	MaxHeld int
	// MaxHeldBytes bounds the bytes of all messages that one subscription has in
	// memory; at the bound it fetches no more. Default 256 MiB.
	MaxHeldBytes int64
	// MaxMessageBytes is the largest message, metadata included. Topics and brokers
	// have bounds of their own (max.message.bytes). Default 1,000,000.
	MaxMessageBytes int
	// FetchWait is how long one fetch waits for a message. Default 250 ms.
	FetchWait time.Duration
	// Heartbeat is how often a member tells its group that it lives; within it, it
	// learns of a rebalance. Default 500 ms.
	Heartbeat time.Duration
	// MinSession is the least time after which a silent member is given up, where
	// the lease is shorter: group.min.session.timeout.ms of the brokers. Default 6 s.
	MinSession time.Duration
	// RequestTimeout bounds one request where the caller's context bounds it no
	// closer. Default 10 s.
	RequestTimeout time.Duration
	// Logger receives the broker's own events. Default slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns c with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.Partitions = cmp.Or(c.Partitions, DefaultPartitions)
	c.ReplicationFactor = cmp.Or(c.ReplicationFactor, DefaultReplicationFactor)
	c.Retention = cmp.Or(c.Retention, DefaultRetention)
	c.MaxHeld = cmp.Or(c.MaxHeld, DefaultMaxHeld)
	c.MaxHeldBytes = cmp.Or(c.MaxHeldBytes, DefaultMaxHeldBytes)
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, DefaultMaxMessageBytes)
	c.FetchWait = cmp.Or(c.FetchWait, DefaultFetchWait)
	c.Heartbeat = cmp.Or(c.Heartbeat, DefaultHeartbeat)
	c.MinSession = cmp.Or(c.MinSession, DefaultMinSession)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, DefaultRequestTimeout)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that can't work, by name, value and remedy.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("kafka: "+format, args...)) }
	if len(c.Brokers) == 0 {
		bad("Brokers is empty: name at least one, such as \"127.0.0.1:9092\"")
	}
	if !legalPrefix(c.Prefix) {
		bad("Prefix is %q: use at most %d letters, digits, dashes and dots, a letter or digit first", c.Prefix, MaxPrefix)
	}
	if c.Partitions < 1 || c.Partitions > 10_000 {
		bad("Partitions is %d: it must be between 1 and 10,000", c.Partitions)
	}
	if c.ReplicationFactor != -1 && (c.ReplicationFactor < 1 || c.ReplicationFactor > 100) {
		bad("ReplicationFactor is %d: it must be 1 or more, or -1 for what the cluster says", c.ReplicationFactor)
	}
	if c.Retention >= 0 && c.Retention < time.Second {
		bad("Retention is %s: it must be 1s or more, or negative for ever", c.Retention)
	}
	if c.MaxHeld < 0 || c.MaxHeldBytes < 0 {
		bad("MaxHeld is %d and MaxHeldBytes %d: they must not be negative", c.MaxHeld, c.MaxHeldBytes)
	}
	if c.MaxMessageBytes < 1024 || c.MaxMessageBytes > 512<<20 {
		bad("MaxMessageBytes is %d: it must be between 1,024 and 512 MiB", c.MaxMessageBytes)
	}
	if c.FetchWait < 10*time.Millisecond || c.FetchWait > time.Minute {
		bad("FetchWait is %s: it must be between 10ms and 1m", c.FetchWait)
	}
	if c.MinSession < 100*time.Millisecond || c.MinSession > 5*time.Minute {
		bad("MinSession is %s: it must be between 100ms and 5m", c.MinSession)
	}
	if c.Heartbeat < 10*time.Millisecond || c.Heartbeat > c.MinSession/2 {
		bad("Heartbeat is %s: it must be between 10ms and half of MinSession (%s)", c.Heartbeat, c.MinSession)
	}
	if c.RequestTimeout < 0 {
		bad("RequestTimeout is %s: it must be positive", c.RequestTimeout)
	}
	return errors.Join(errs...)
}

func legalPrefix(p string) bool {
	for i := range len(p) {
		c := p[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !plain && (i == 0 || c != '-' && c != '.') {
			return false
		}
	}
	return len(p) <= MaxPrefix
}

// Features states what a broker with this configuration can do; nothing is
// opened.
func (c Config) Features() broker.Features {
	c = c.WithDefaults()
	return broker.Features{
		OrderPerKey:         true,
		OrderAcrossReplicas: true,
		Delay:               true,
		// A consumer that drains leaves its delays behind; one that dies takes them
		// along, and what it had comes again once its session is over.
		MaxDelay:           c.MinSession,
		HoldsDelay:         true,
		MaxMessageBytes:    c.MaxMessageBytes,
		DeliveryCount:      true,
		CompetingConsumers: true,
		ReplayForNewGroup:  true,
		Durable:            true,
	}
}

// session is how long a silent member stays in its group.
func (c Config) session(lease time.Duration) time.Duration {
	return min(max(lease, c.MinSession), 30*time.Minute)
}
