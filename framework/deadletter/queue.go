package deadletter

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework/broker"
)

// Config configures a Queue.
type Config struct {
	// Broker holds the dead letters. Required.
	Broker broker.Broker
	// Group is the consumer group whose dead letters they are, such as
	// "payments.charge-order". Required.
	Group string
	// Actor says on whose behalf changes are made: it goes into the audit and
	// into edited letters. Default "unknown".
	Actor string
	// Audit is called after each change to a letter; its error ends the
	// operation. Default: none.
	Audit func(context.Context, Entry) error
	// PublishTimeout bounds one publish and one deletion, which go on when the
	// caller's context ends. Default 30 s.
	PublishTimeout time.Duration
	// Clock defaults to time.Now.
	Clock func() time.Time
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns c with its defaults filled in.
func (c Config) WithDefaults() Config {
	if c.Actor == "" {
		c.Actor = "unknown"
	}
	if c.PublishTimeout == 0 {
		c.PublishTimeout = 30 * time.Second
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that can't work.
func (c Config) Validate() error {
	var errs []error
	if c.Broker == nil {
		errs = append(errs, errors.New("deadletter: Broker is nil: open one first"))
	}
	if strings.TrimSpace(c.Group) == "" {
		errs = append(errs, errors.New("deadletter: Group is empty: name the consumer group, such as \"payments.charge-order\""))
	}
	if c.PublishTimeout < 0 {
		errs = append(errs, fmt.Errorf("deadletter: PublishTimeout is %s: it must not be negative", c.PublishTimeout))
	}
	return errors.Join(errs...)
}

// Queue is the dead letters of one group. It is safe for concurrent use as far
// as the broker's Admin is; see the package's comment for two replays at once.
type Queue struct {
	cfg   Config
	topic string
}

// New returns the Queue of cfg.Group. It opens nothing.
func New(cfg Config) (*Queue, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Queue{cfg: cfg, topic: broker.DeadLetterTopic(cfg.Group)}, nil
}

// Group is the consumer group.
func (q *Queue) Group() string { return q.cfg.Group }

// Topic is where the dead letters lie.
func (q *Queue) Topic() string { return q.topic }

// RedriveTopic is where Replay publishes.
func (q *Queue) RedriveTopic() string { return broker.RedriveTopic(q.cfg.Group) }

// Browse yields the letters that f takes, the oldest first as far as the broker
// has an order. It changes nothing.
func (q *Queue) Browse(ctx context.Context, f Filter) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		if err := f.Validate(); err != nil {
			yield(Letter{}, err)
			return
		}
		// The filter's times are the handlers' clocks, the broker's are others:
		// so all is read and Match decides.
		for s, err := range q.cfg.Broker.Admin().Browse(ctx, q.topic, time.Time{}) {
			if err != nil {
				yield(Letter{}, fmt.Errorf("deadletter: read the dead letters of %q: %w", q.cfg.Group, err))
				return
			}
			l := read(s, q.cfg.Group)
			if f.Match(l) && !yield(l, nil) {
				return
			}
		}
	}
}

// ErrNotFound is returned when no dead letter has the id.
var ErrNotFound = errors.New("no such dead letter")

// Find returns the letters with the message id, event id or position id, the
// oldest first; there are several when a message failed again, or was published
// twice by a crash. None is ErrNotFound.
func (q *Queue) Find(ctx context.Context, id string) ([]Letter, error) {
	var found []Letter
	for l, err := range q.Browse(ctx, Filter{IDs: []string{id}}) {
		if err != nil {
			return nil, err
		}
		found = append(found, l)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("deadletter: %q in the dead letters of %q: %w", id, q.cfg.Group, ErrNotFound)
	}
	return found, nil
}

// Count is how many letters f takes.
func (q *Queue) Count(ctx context.Context, f Filter) (int, error) {
	n := 0
	for _, err := range q.Browse(ctx, f) {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// detached is a context for what must not stop half-way.
func (q *Queue) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), q.cfg.PublishTimeout)
}

// remove deletes letters that stand somewhere else by now.
func (q *Queue) remove(ctx context.Context, letters []Letter) error {
	positions := make([]string, len(letters))
	for i, l := range letters {
		positions[i] = l.Position
	}
	ctx, cancel := q.detached(ctx)
	defer cancel()
	if _, err := q.cfg.Broker.Admin().Delete(ctx, q.topic, positions...); err != nil {
		return fmt.Errorf("deadletter: delete from the dead letters of %q: %w", q.cfg.Group, err)
	}
	return nil
}
