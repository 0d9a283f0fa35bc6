// Package redisinbox remembers handled events in Redis, for handlers that have
// no SQL database.
//
// A claim is a key with a lease, a handled event the same key with the
// retention; each step is one script, so of workers that race exactly one holds
// a claim. What Redis forgets (an eviction, a failover that loses the last
// writes, a restart without persistence) may be handled again: use a server with
// maxmemory-policy noeviction and an append-only file.
package redisinbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/middleware"
)

// DefaultPrefix is the default of Config.Prefix.
const DefaultPrefix = "headrace:dedup:"

// Config configures a Store. The zero value of a field means its default.
type Config struct {
	// Client is the connection to Redis; it stays the caller's. Required.
	Client redis.UniversalClient
	// Prefix stands before every key. Default DefaultPrefix.
	Prefix string
}

// WithDefaults returns c with its defaults filled in.
func (c Config) WithDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	return c
}

// Validate reports every field that can't work, by name, value and remedy.
func (c Config) Validate() error {
	if c.Client == nil {
		return errors.New("redisinbox: Client is nil: hand in a go-redis client")
	}
	return nil
}

// Store is a middleware.DedupStore in Redis. It is safe for concurrent use by
// any number of processes.
type Store struct{ cfg Config }

var _ middleware.DedupStore = (*Store)(nil)

// New makes a Store. It does not connect.
func New(cfg Config) (*Store, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Store{cfg: cfg}, nil
}

// A value is "c:<token>" while claimed and "d:<token>" once done. Each script
// touches one key, so a cluster takes them.
var (
	claim = redis.NewScript(`
local v = redis.call('GET', KEYS[1])
if not v then
  redis.call('SET', KEYS[1], 'c:' .. ARGV[1], 'PX', ARGV[2])
  return {0, 0}
end
if string.sub(v, 1, 2) == 'd:' then
  return {1, 0}
end
return {2, redis.call('PTTL', KEYS[1])}`)
	commit = redis.NewScript(`
local v = redis.call('GET', KEYS[1])
if v == 'c:' .. ARGV[1] or v == 'd:' .. ARGV[1] then
  redis.call('SET', KEYS[1], 'd:' .. ARGV[1], 'PX', ARGV[2])
  return 1
end
return 0`)
	release = redis.NewScript(`
if redis.call('GET', KEYS[1]) == 'c:' .. ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0`)
)

// Claim takes the key for the lease, unless it is done or busy. Leases shorter
// than a millisecond are one.
func (s *Store) Claim(ctx context.Context, key string, lease time.Duration) (middleware.Claim, error) {
	if err := middleware.CheckDedupKey(key); err != nil {
		return middleware.Claim{}, fmt.Errorf("redisinbox: %w", err)
	}
	if lease <= 0 {
		return middleware.Claim{}, fmt.Errorf("redisinbox: the lease of a claim is %s: it must be positive", lease)
	}
	token := uuid.NewString()
	answer, err := claim.Run(ctx, s.cfg.Client, []string{s.cfg.Prefix + key}, token, millis(lease)).Int64Slice()
	if err != nil {
		return middleware.Claim{}, fmt.Errorf("redisinbox: claim %q: %w", key, err)
	}
	if len(answer) != 2 {
		return middleware.Claim{}, fmt.Errorf("redisinbox: claim %q: the script answered %v", key, answer)
	}
	switch answer[0] {
	case 0:
		return middleware.Claim{Key: key, Token: token, State: middleware.ClaimAcquired}, nil
	case 1:
		return middleware.Claim{Key: key, State: middleware.ClaimDone}, nil
	default:
		return middleware.Claim{Key: key, State: middleware.ClaimBusy, RetryAfter: time.Duration(max(answer[1], 0)) * time.Millisecond}, nil
	}
}

// Commit turns an acquired claim into a done key for the retention.
func (s *Store) Commit(ctx context.Context, c middleware.Claim, retention time.Duration) error {
	if retention <= 0 {
		return fmt.Errorf("redisinbox: the retention of a dedup key is %s: it must be positive", retention)
	}
	n, err := commit.Run(ctx, s.cfg.Client, []string{s.cfg.Prefix + c.Key}, c.Token, millis(retention)).Int()
	if err != nil {
		return fmt.Errorf("redisinbox: commit the claim on %q: %w", c.Key, err)
	}
	if n == 0 {
		return fmt.Errorf("redisinbox: commit the claim on %q: %w", c.Key, middleware.ErrClaimLost)
	}
	return nil
}

// Release gives an acquired claim back. One that is gone is no error.
func (s *Store) Release(ctx context.Context, c middleware.Claim) error {
	if err := release.Run(ctx, s.cfg.Client, []string{s.cfg.Prefix + c.Key}, c.Token).Err(); err != nil {
		return fmt.Errorf("redisinbox: release the claim on %q: %w", c.Key, err)
	}
	return nil
}

func millis(d time.Duration) int64 { return max(d.Milliseconds(), 1) }
