package middleware

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Defaults of DedupConfig.
const (
	DefaultDedupLease        = time.Minute
	DefaultDedupRetention    = 7 * 24 * time.Hour
	DefaultDedupStoreTimeout = 5 * time.Second
)

// DedupConfig configures Dedup. The zero value of a field means its default.
type DedupConfig struct {
	// Store remembers the keys. Required.
	Store DedupStore
	// Key returns the message's idempotency key; "" means that it has none. Two
	// messages with one key are one. Default: the event id in the metadata, else
	// the message's UUID. Never the payload.
	Key func(*message.Message) string
	// Handler is the key's namespace: handlers that share a store don't see each
	// other's keys. Default: the router's handler name.
	Handler string
	// Lease is how long a claim holds when its process dies. It must exceed the
	// handler's timeout; a context deadline further away lengthens it. Default
	// 1 min.
	Lease time.Duration
	// Retention is how long a handled key is known. It must exceed the longest
	// redelivery. Default 7 days.
	Retention time.Duration
	// KeepResult keeps the messages that the handler returned with the mark of the
	// one that it handled, in one write and before they are published, and publishes
	// them again, with the same ids, for each copy of that message. Store must be a
	// ResultStore. Default false: messages that a copy might have to publish again
	// are not known, so the message counts as handled only once they are published,
	// and a failure before that runs the handler again.
	KeepResult bool
	// MaxResultBytes is the most that is kept for one message: ids, metadata and
	// payloads. What is larger is not kept, logged, and treated as without
	// KeepResult. Default 64 KiB, at most MaxResultBytes (256 KiB).
	MaxResultBytes int
	// StoreTimeout bounds a commit or release, retries included. Default 5 s.
	StoreTimeout time.Duration
	// Metrics may be nil.
	Metrics *Metrics
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns c with its defaults filled in.
func (c DedupConfig) WithDefaults() DedupConfig {
	if c.Key == nil {
		c.Key = messageID
	}
	if c.Lease == 0 {
		c.Lease = DefaultDedupLease
	}
	if c.Retention == 0 {
		c.Retention = DefaultDedupRetention
	}
	if c.MaxResultBytes == 0 {
		c.MaxResultBytes = DefaultMaxResultBytes
	}
	if c.StoreTimeout == 0 {
		c.StoreTimeout = DefaultDedupStoreTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that can't work.
func (c DedupConfig) Validate() error {
	var errs []error
	if c.Store == nil {
		errs = append(errs, errors.New("middleware: Dedup.Store is nil: give it a DedupStore, such as NewMemoryDedup"))
	}
	if c.Lease < 0 {
		errs = append(errs, fmt.Errorf("middleware: Dedup.Lease is %s: it must not be negative", c.Lease))
	}
	if c.Retention < c.Lease {
		errs = append(errs, fmt.Errorf("middleware: Dedup.Retention is %s, below the lease %s: keep keys longer than the longest redelivery",
			c.Retention, c.Lease))
	}
	if _, keeps := c.Store.(ResultStore); c.KeepResult && c.Store != nil && !keeps {
		errs = append(errs, fmt.Errorf("middleware: Dedup.KeepResult is set and Store, a %T, keeps no results: use a ResultStore, or leave KeepResult out", c.Store))
	}
	if c.MaxResultBytes < 0 || c.MaxResultBytes > MaxResultBytes {
		errs = append(errs, fmt.Errorf("middleware: Dedup.MaxResultBytes is %d: use 1 to %d", c.MaxResultBytes, MaxResultBytes))
	}
	if c.StoreTimeout < 0 {
		errs = append(errs, fmt.Errorf("middleware: Dedup.StoreTimeout is %s: it must not be negative", c.StoreTimeout))
	}
	return errors.Join(errs...)
}
