package lanes

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Ref names an entry that this consumer holds.
type Ref struct {
	ID  string
	Pos Pos
	// Stored is the delivery count that the broker should have on record.
	Stored int
}

// Position returns r.Pos.
func (r Ref) Position() Pos { return r.Pos }

// Drainer is a Source that is told when the drain begins: what it fetched ahead
// or still has under way must be released, since nobody fetches it any more.
type Drainer interface {
	// Drain does not wait.
	Drain()
}

// Source is what an adapter brings to one subscription. Fetch and Reclaim are
// called from one goroutine; Renew and Load are never called at the same time;
// anything else may be. A method that fails is called again with backoff.
type Source interface {
	// Fetch returns up to limit new entries, and waits a bounded time for the
	// first. None is no error. A context that ends need not interrupt it, as
	// long as the wait is short: what it returns then is released.
	Fetch(ctx context.Context, limit int) ([]*Entry, error)
	// Reclaim takes over up to limit entries that other consumers gave back or
	// left behind when they died. It never returns an entry for which mine says
	// true. It is called before the first Fetch and then every ReclaimEvery.
	Reclaim(ctx context.Context, limit int, mine func(id string) bool) ([]*Entry, error)
	// Decode turns an entry's Raw into a message of its own.
	Decode(e *Entry) (*message.Message, error)
	// Malformed wraps the raw bytes of an entry that Decode refused.
	Malformed(e *Entry) *message.Message
	// Ack settles entries for good.
	Ack(ctx context.Context, entries []*Entry) error
	// Renew extends leases and writes counts. It returns the ids that this
	// consumer no longer owns.
	Renew(ctx context.Context, refs []Ref) (lost []string, err error)
	// Load reads the bodies of held entries again, writes their counts and
	// extends their leases. It returns what becomes their Raw, by id; an entry
	// without one is gone, or another consumer's.
	Load(ctx context.Context, refs []Ref) (raw map[string]any, err error)
	// Release gives entries back, with their Stored count and their Delay, so
	// that another consumer gets them as soon as the delay is over.
	Release(ctx context.Context, entries []*Entry) error
	// Close ends the membership in the group. It is the last call.
	Close(ctx context.Context) error
}
