package inboxtest

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/middleware"
)

// envFault names the fault of the store that a child process tests.
const envFault = "HEADRACE_INBOXTEST_FAULT"

// faulty is a sound store with one fault.
type faulty struct {
	*middleware.MemoryDedup
	claim  func(s *middleware.MemoryDedup, ctx context.Context, key string, lease time.Duration) (middleware.Claim, error)
	commit func(s *middleware.MemoryDedup, ctx context.Context, c middleware.Claim, retention time.Duration, result []byte) error
}

func (f faulty) Claim(ctx context.Context, key string, lease time.Duration) (middleware.Claim, error) {
	if f.claim == nil {
		return f.MemoryDedup.Claim(ctx, key, lease)
	}
	c, err := f.claim(f.MemoryDedup, ctx, key, lease)
	if err == nil {
		c.Key = key
	}
	return c, err
}

func (f faulty) Commit(ctx context.Context, c middleware.Claim, retention time.Duration) error {
	return f.CommitResult(ctx, c, retention, nil)
}

func (f faulty) CommitResult(ctx context.Context, c middleware.Claim, retention time.Duration, result []byte) error {
	if f.commit == nil {
		return f.MemoryDedup.CommitResult(ctx, c, retention, result)
	}
	return f.commit(f.MemoryDedup, ctx, c, retention, result)
}

type (
	ctxT   = context.Context
	memory = *middleware.MemoryDedup
	claimT = middleware.Claim
)

// faults are what the suite must find, each with a part that finds it.
func faults() map[string]struct {
	part  string
	store faulty
} {
	var mu sync.Mutex
	taken := map[string]bool{}
	type fault = struct {
		part  string
		store faulty
	}
	return map[string]fault{
		"frees early": {"crashed", faulty{claim: func(s memory, ctx ctxT, key string, lease time.Duration) (claimT, error) {
			return s.Claim(ctx, key, lease*3/4)
		}}},
		"frees late": {"crashed", faulty{claim: func(s memory, ctx ctxT, key string, lease time.Duration) (claimT, error) {
			return s.Claim(ctx, key, lease*3/2)
		}}},
		"forgets early": {"retention", faulty{commit: func(s memory, ctx ctxT, c claimT, retention time.Duration, result []byte) error {
			return s.CommitResult(ctx, c, retention*3/4, result)
		}}},
		"forgets late": {"retention", faulty{commit: func(s memory, ctx ctxT, c claimT, retention time.Duration, result []byte) error {
			return s.CommitResult(ctx, c, retention*3/2, result)
		}}},
		"commits for none": {"claim,_release,_commit", faulty{commit: func(s memory, ctx ctxT, c claimT, retention time.Duration, result []byte) error {
			_ = s.CommitResult(ctx, c, retention, result)
			return nil
		}}},
		"looks, then takes": {"one_of_many", faulty{claim: func(s memory, ctx ctxT, key string, lease time.Duration) (claimT, error) {
			mu.Lock()
			was := taken[key]
			mu.Unlock()
			time.Sleep(time.Millisecond) // a way to a server and back
			mu.Lock()
			taken[key] = true
			mu.Unlock()
			c, err := s.Claim(ctx, key, lease)
			if !was && err == nil && c.State == middleware.ClaimBusy {
				return claimT{Key: key, Token: "mine", State: middleware.ClaimAcquired}, nil
			}
			return c, err
		}}},
		"trims keys": {"keys", faulty{claim: func(s memory, ctx ctxT, key string, lease time.Duration) (claimT, error) {
			return s.Claim(ctx, strings.TrimRight(key, " "), lease)
		}}},
		"folds keys": {"keys", faulty{claim: func(s memory, ctx ctxT, key string, lease time.Duration) (claimT, error) {
			return s.Claim(ctx, strings.ToLower(key), lease)
		}}},
		"cuts keys": {"keys", faulty{claim: func(s memory, ctx ctxT, key string, lease time.Duration) (claimT, error) {
			return s.Claim(ctx, key[:min(len(key), middleware.MaxDedupKeyBytes)], lease)
		}}},
		"ignores contexts": {"context", faulty{claim: func(s memory, ctx ctxT, key string, lease time.Duration) (claimT, error) {
			return s.Claim(context.WithoutCancel(ctx), key, lease)
		}}},
		"leases without end": {"durations", faulty{claim: func(s memory, ctx ctxT, key string, lease time.Duration) (claimT, error) {
			if lease <= 0 {
				lease = time.Hour
			}
			return s.Claim(ctx, key, lease)
		}}},
		"keeps no result": {"result", faulty{commit: func(s memory, ctx ctxT, c claimT, retention time.Duration, _ []byte) error {
			return s.Commit(ctx, c, retention)
		}}},
		"cuts results": {"result", faulty{commit: func(s memory, ctx ctxT, c claimT, retention time.Duration, result []byte) error {
			return s.CommitResult(ctx, c, retention, result[:min(len(result), 64<<10)])
		}}},
	}
}

// A sound store passes, and each fault is found.
func TestSuiteBites(t *testing.T) {
	if name := os.Getenv(envFault); name != "" {
		f := faults()[name].store
		f.MemoryDedup = middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})
		Run(t, Harness{First: f, Lease: 200 * time.Millisecond})
		return
	}
	Run(t, Harness{First: faulty{MemoryDedup: middleware.NewMemoryDedup(middleware.MemoryDedupConfig{})}})
	for name, f := range faults() {
		t.Run(name, func(t *testing.T) {
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSuiteBites$", "-test.v")
			child.Env = append(os.Environ(), envFault+"="+name)
			out, err := child.CombinedOutput()
			require.Error(t, err, "the suite passes")
			found := false
			for _, line := range strings.Split(string(out), "\n") {
				found = found || strings.Contains(line, "--- FAIL: TestSuiteBites/") && strings.Contains(line, f.part)
			}
			require.True(t, found, "no part %q failed: %s", f.part, out)
		})
	}
}
