package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/headrace-go/headrace/pkg/events"
)

// ParkStore keeps, for one handler, the lines of messages that hold up their
// key: the first failed for good, the others came behind it. A message is known
// in its line by its seq where that is above 0, else by its id. All replicas of
// the handler see the same lines at once. It is safe for concurrent use.
type ParkStore interface {
	// Head looks who is first in the key's line. It is called for every message
	// that has a key.
	Head(ctx context.Context, key, id string, seq int64) (ParkHead, error)
	// Add puts the message at the end of the line; one that is in it keeps its
	// place. It returns the message's seq, which grows along a line and is never
	// given twice, and who is first now. Once it returns, every Head sees it.
	Add(ctx context.Context, key, id string, seq int64) (own int64, head ParkHead, err error)
	// Remove takes the message out of the line. One that is not in it is no error.
	Remove(ctx context.Context, key, id string, seq int64) error
}

// ParkHead is who is first in a line.
type ParkHead struct {
	// Parked tells whether there is a line at all.
	Parked bool
	// Mine: it is the message that was asked about.
	Mine bool
	// Seq and ID are the first message's.
	Seq int64
	ID  string
}

// Defaults of ParkConfig.
const (
	DefaultParkBudget       = time.Minute
	DefaultParkStoreTimeout = 10 * time.Second
)

// ParkConfig configures Park.
type ParkConfig struct {
	// Store keeps the lines. Required.
	Store ParkStore
	// RedriveTopic is where replayed dead letters and the word of discarded ones
	// come from: only there are a place in the line and a discard believed. Default:
	// nowhere.
	RedriveTopic string
	// Key is the message's ordering key; a message without one is never parked.
	// Default: the metadata entry events.KeyOrdering.
	Key func(*message.Message) string
	// ID is what the message is known by. Default: the event's id, else the
	// message's.
	ID func(*message.Message) string
	// Passes tells that the handler will leave the message alone whatever stands
	// before it, so that it need not wait. Default: never.
	Passes func(*message.Message) bool
	// Handled tells whether the message was handled before: such a copy need not
	// wait either. It is asked only about what would be parked. Default: never.
	Handled func(context.Context, *message.Message) (bool, error)
	// Budget is how long a store that fails is asked again in process; then the
	// message is given back, uncounted. Default 1 min.
	Budget time.Duration
	// StoreTimeout bounds one call of the store. Default 10 s.
	StoreTimeout time.Duration
	// Handler is the name in logs. Default: the router's handler name.
	Handler string
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns c with its defaults filled in.
func (c ParkConfig) WithDefaults() ParkConfig {
	if c.Key == nil {
		c.Key = func(m *message.Message) string { return m.Metadata[events.KeyOrdering] }
	}
	if c.ID == nil {
		c.ID = messageID
	}
	if c.Passes == nil {
		c.Passes = func(*message.Message) bool { return false }
	}
	if c.Handled == nil {
		c.Handled = func(context.Context, *message.Message) (bool, error) { return false, nil }
	}
	if c.Budget == 0 {
		c.Budget = DefaultParkBudget
	}
	if c.StoreTimeout == 0 {
		c.StoreTimeout = DefaultParkStoreTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that can't work.
func (c ParkConfig) Validate() error {
	var errs []error
	if c.Store == nil {
		errs = append(errs, errors.New("middleware: Park.Store is nil: give it the store that keeps the lines"))
	}
	if c.Budget < 0 {
		errs = append(errs, fmt.Errorf("middleware: Park.Budget is %s: it must not be negative", c.Budget))
	}
	if c.StoreTimeout < 0 {
		errs = append(errs, fmt.Errorf("middleware: Park.StoreTimeout is %s: it must not be negative", c.StoreTimeout))
	}
	return errors.Join(errs...)
}
