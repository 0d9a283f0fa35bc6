package middleware

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// Defaults of MemoryDedupConfig.
const (
	DefaultMemoryDedupKeys    = 100_000
	DefaultMemoryDedupResults = 64 << 20
)

// MemoryDedupConfig configures a MemoryDedup. Its zero value works.
type MemoryDedupConfig struct {
	// MaxKeys bounds how many handled keys are remembered; the oldest go first.
	// Default 100,000, about 20 MB.
	MaxKeys int
	// MaxResults bounds the bytes of the results that are kept, of all keys
	// together; the oldest keys go first, with their results. Default 64 MiB, at
	// least MaxResultBytes.
	MaxResults int
	// Clock defaults to time.Now.
	Clock func() time.Time
}

// WithDefaults returns c with its defaults filled in.
func (c MemoryDedupConfig) WithDefaults() MemoryDedupConfig {
	if c.MaxKeys <= 0 {
		c.MaxKeys = DefaultMemoryDedupKeys
	}
	if c.MaxResults <= 0 {
		c.MaxResults = DefaultMemoryDedupResults
	}
	c.MaxResults = max(c.MaxResults, MaxResultBytes)
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return c
}

// MemoryDedup is a ResultStore for one process, and only for it: replicas don't
// see each other's keys and a restart forgets them. It is bounded, its keys
// expire, it starts no goroutine and its methods never block.
type MemoryDedup struct {
	cfg MemoryDedupConfig

	mu    sync.Mutex
	token uint64
	keys  map[string]memoryKey
	done  []doneKey // a ring, in the order of commits
	head  int
	count int
	kept  int // bytes of results
}

var _ ResultStore = (*MemoryDedup)(nil)

// memoryKey is a claim (done false, expires with its lease) or a handled key.
type memoryKey struct {
	token   uint64
	expires int64 // unix nanoseconds
	done    bool
	result  string
}

type doneKey struct {
	key   string
	token uint64
}

// NewMemoryDedup makes an empty store.
func NewMemoryDedup(cfg MemoryDedupConfig) *MemoryDedup {
	return &MemoryDedup{cfg: cfg.WithDefaults(), keys: make(map[string]memoryKey)}
}

// Claim is DedupStore.Claim.
func (s *MemoryDedup) Claim(ctx context.Context, key string, lease time.Duration) (Claim, error) {
	if err := CheckDedupKey(key); err != nil {
		return Claim{}, fmt.Errorf("middleware: %w", err)
	}
	if lease <= 0 {
		return Claim{}, fmt.Errorf("middleware: the lease of a claim is %s: it must be positive", lease)
	}
	if err := ctx.Err(); err != nil {
		return Claim{}, fmt.Errorf("middleware: claim %q: %w", key, err)
	}
	now := s.cfg.Clock().UnixNano()
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.keys[key]; ok && k.expires > now {
		if k.done {
			return Claim{Key: key, State: ClaimDone, Result: []byte(k.result)}, nil
		}
		return Claim{Key: key, State: ClaimBusy, RetryAfter: time.Duration(k.expires - now)}, nil
	}
	s.token++
	s.put(key, memoryKey{token: s.token, expires: now + int64(lease)})
	return Claim{Key: key, Token: strconv.FormatUint(s.token, 36), State: ClaimAcquired}, nil
}

// Commit is DedupStore.Commit.
func (s *MemoryDedup) Commit(ctx context.Context, c Claim, retention time.Duration) error {
	return s.CommitResult(ctx, c, retention, nil)
}

// CommitResult is ResultStore.CommitResult.
func (s *MemoryDedup) CommitResult(ctx context.Context, c Claim, retention time.Duration, result []byte) error {
	if err := CheckResult(result); err != nil {
		return fmt.Errorf("middleware: commit the claim on %q: %w", c.Key, err)
	}
	if retention <= 0 {
		return fmt.Errorf("middleware: the retention of a dedup key is %s: it must be positive", retention)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("middleware: commit the claim on %q: %w", c.Key, err)
	}
	now := s.cfg.Clock().UnixNano()
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.owned(c)
	if !ok {
		return ErrClaimLost
	}
	if k.done {
		return nil
	}
	s.forget(now, len(result))
	s.put(c.Key, memoryKey{token: k.token, expires: now + int64(retention), done: true, result: string(result)})
	s.push(doneKey{key: c.Key, token: k.token})
	return nil
}

// Release is DedupStore.Release.
func (s *MemoryDedup) Release(ctx context.Context, c Claim) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("middleware: release the claim on %q: %w", c.Key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.owned(c); !ok || k.done {
		return ErrClaimLost
	}
	s.drop(c.Key)
	return nil
}

// Len returns how many keys are known, expired ones that were not cleared yet
// included.
func (s *MemoryDedup) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys)
}

// owned returns c's entry while it is c's, claimed or done. A lease that ended
// unnoticed by another holder is still good.
func (s *MemoryDedup) owned(c Claim) (memoryKey, bool) {
	k, ok := s.keys[c.Key]
	if !ok {
		return memoryKey{}, false
	}
	token, err := strconv.ParseUint(c.Token, 36, 64)
	return k, err == nil && k.token == token
}

func (s *MemoryDedup) put(key string, k memoryKey) {
	s.kept += len(k.result) - len(s.keys[key].result)
	s.keys[key] = k
}

func (s *MemoryDedup) drop(key string) {
	s.kept -= len(s.keys[key].result)
	delete(s.keys, key)
}

// forget makes room for one more handled key with a result of that size, and
// clears those at the head that have expired.
func (s *MemoryDedup) forget(now int64, result int) {
	for s.count > 0 {
		oldest := s.done[s.head]
		k, ok := s.keys[oldest.key]
		current := ok && k.done && k.token == oldest.token
		if current && k.expires > now && s.count < s.cfg.MaxKeys && s.kept+result <= s.cfg.MaxResults {
			return
		}
		if current {
			s.drop(oldest.key)
		}
		s.done[s.head] = doneKey{}
		s.head = (s.head + 1) % len(s.done)
		s.count--
	}
}

func (s *MemoryDedup) push(d doneKey) {
	if s.count == len(s.done) {
		grown := make([]doneKey, min(max(2*len(s.done), 64), s.cfg.MaxKeys))
		for i := range s.count {
			grown[i] = s.done[(s.head+i)%len(s.done)]
		}
		s.done, s.head = grown, 0
	}
	s.done[(s.head+s.count)%len(s.done)] = d
	s.count++
}
