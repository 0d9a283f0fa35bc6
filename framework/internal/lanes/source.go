package lanes

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Source is what an adapter brings to one subscription. Fetch and Reclaim are
// called from one goroutine, each other method from several at once. A method
// that fails is called again with backoff.
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
	// Renew extends the lease of entries and writes their Stored count. It
	// returns those that this consumer no longer owns.
	Renew(ctx context.Context, entries []*Entry) (lost []*Entry, err error)
	// Load reads the bodies of held entries into Raw again, writes their Stored
	// count and extends their lease. It returns those that it can't have: gone,
	// or another consumer's.
	Load(ctx context.Context, entries []*Entry) (lost []*Entry, err error)
	// Release gives entries back, with their Stored count and their Delay, so
	// that another consumer gets them as soon as the delay is over.
	Release(ctx context.Context, entries []*Entry) error
	// Close ends the membership in the group. It is the last call.
	Close(ctx context.Context) error
}
