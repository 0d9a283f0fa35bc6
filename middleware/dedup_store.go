package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"
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
	// Result is, for ClaimDone, what CommitResult kept with the mark; empty when
	// the key was committed without a result.
	Result []byte
}

// ErrClaimLost is returned by Commit and Release, wrapped or not, when the claim
// is no longer the caller's: its lease ended and another took the key.
var ErrClaimLost = errors.New("claim lost: its lease ended and another holder took the key")

// ErrResultTooLarge is returned by CommitResult, wrapped or not, for a result that
// the store can't keep. The claim is still the caller's.
var ErrResultTooLarge = errors.New("result too large for the dedup store")

// MaxResultBytes is the largest result that a ResultStore takes: DynamoDB, which
// takes the least, holds items of 400 KB.
const MaxResultBytes = 256 << 10

// MaxDedupKeyBytes is the longest key that a DedupStore takes.
const MaxDedupKeyBytes = 512

// DedupStore remembers which messages were handled. Keys are printable ASCII of
// 1 to MaxDedupKeyBytes bytes (CheckDedupKey); others are refused, as is a lease
// or a retention that is not positive. It is safe for concurrent use, also by
// many processes where its storage is shared. A claim whose lease ended counts as
// never made. Once ctx has ended, a call fails and changes nothing.
//
// Package framework/inbox/inboxtest tests a store for all of this.
type DedupStore interface {
	// Claim takes the key for the lease, unless it is done or busy. Of callers
	// that race exactly one acquires.
	Claim(ctx context.Context, key string, lease time.Duration) (Claim, error)
	// Commit turns an acquired claim into a done key for the retention. A claim
	// that another holder has taken over is ErrClaimLost, and nothing changes. Its
	// own holder may commit it again: a call whose answer was lost is made again.
	Commit(ctx context.Context, c Claim, retention time.Duration) error
	// Release gives an acquired claim back, so that the next Claim acquires. A
	// claim that is gone is no error or ErrClaimLost, and nothing changes.
	Release(ctx context.Context, c Claim) error
}

// ResultStore is a DedupStore that keeps a result with the mark of a handled
// message, so that a copy of the message gets it back: DedupConfig.KeepResult
// needs one.
type ResultStore interface {
	DedupStore
	// CommitResult is Commit which keeps result, opaque bytes, for as long as the
	// mark: a Claim that finds the key done has both or neither. Above
	// MaxResultBytes it returns ErrResultTooLarge and changes nothing. The same
	// claim may be committed again with the same result. An empty result is none.
	CommitResult(ctx context.Context, c Claim, retention time.Duration, result []byte) error
}

// CheckResult returns an ErrResultTooLarge, with both sizes, for a result that a
// ResultStore does not take.
func CheckResult(result []byte) error {
	if len(result) > MaxResultBytes {
		return fmt.Errorf("%w: it has %d bytes, and %d are taken", ErrResultTooLarge, len(result), MaxResultBytes)
	}
	return nil
}

// CheckDedupKey returns an error that says why key is none that a DedupStore
// takes.
func CheckDedupKey(key string) error {
	if key == "" || len(key) > MaxDedupKeyBytes {
		return fmt.Errorf("a dedup key has %d bytes: 1 to %d are taken", len(key), MaxDedupKeyBytes)
	}
	for i := range len(key) {
		if key[i] < 0x20 || key[i] > 0x7e {
			return fmt.Errorf("a dedup key holds the byte %#02x at %d: printable ASCII is taken; escape or hash the id", key[i], i)
		}
	}
	return nil
}
