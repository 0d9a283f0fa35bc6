// Package redisinbox remembers handled events in Redis, for handlers that have
// no SQL database.
//
// A claim is a key with a lease, a handled event the same key with the
// retention; each step is part of one script, so of workers that race exactly one
// holds a claim, and those that call at the same time share a round trip. What
// Redis forgets (an eviction, a failover that loses the last writes, a restart
// without persistence) may be handled again: use a server with maxmemory-policy
// noeviction and an append-only file.
package redisinbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/framework/internal/combine"
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

// Store is a middleware.ResultStore in Redis. It is safe for concurrent use by
// any number of processes.
type Store struct {
	cfg             Config
	claims, commits *trips
}

var _ middleware.ResultStore = (*Store)(nil)

// New makes a Store. It does not connect.
func New(cfg Config) (*Store, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, commits: newTrips(cfg.Client, commit, nil)}
	s.claims = newTrips(cfg.Client, claim, s.unclaimed)
	s.claims.fresh = true
	return s, nil
}

// A value is "c:<token>" while claimed and "d:<token>" once done, or
// "d:<token>:<result>". Claim and commit take many keys; what fails on one of
// them, such as a foreign value, fails no other. What a client sent twice finds its
// own token.
var (
	claim = redis.NewScript(`
local out = {}
for i, key in ipairs(KEYS) do
  local mine = 'c:' .. ARGV[2*i-1]
  local v = redis.pcall('GET', key)
  local a, b = 2, 0
  if type(v) == 'table' then
    a = v.err
  elseif v and string.sub(v, 1, 2) == 'd:' then
    a = 1
    local at = string.find(v, ':', 3, true)
    if at then b = string.sub(v, at + 1) end
  elseif not v or v == mine then
    local ok = redis.pcall('SET', key, mine, 'PX', ARGV[2*i])
    a = ok.err or 0
  else
    b = redis.call('PTTL', key)
  end
  out[2*i-1], out[2*i] = a, b
end
return out`)
	commit = redis.NewScript(`
local out = {}
for i, key in ipairs(KEYS) do
  local token = ARGV[2*i-1]
  local v = redis.pcall('GET', key)
  local a = 0
  if type(v) == 'table' then
    a = v.err
  elseif v == 'c:' .. token or v == 'd:' .. token then
    local ok = redis.pcall('SET', key, 'd:' .. token, 'PX', ARGV[2*i])
    a = ok.err or 1
  end
  out[2*i-1], out[2*i] = a, 0
end
return out`)
	commitResult = redis.NewScript(`
local v = redis.call('GET', KEYS[1])
local kept = 'd:' .. ARGV[1] .. ':' .. ARGV[3]
if v == 'c:' .. ARGV[1] or v == kept then
  redis.call('SET', KEYS[1], kept, 'PX', ARGV[2])
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
	answer, err := s.claims.group.Do(ctx, step{key: s.cfg.Prefix + key, token: token, millis: millis(lease)})
	if err != nil {
		return middleware.Claim{}, fmt.Errorf("redisinbox: claim %q: %w", key, err)
	}
	switch answer.state {
	case 0:
		return middleware.Claim{Key: key, Token: token, State: middleware.ClaimAcquired}, nil
	case 1:
		return middleware.Claim{Key: key, State: middleware.ClaimDone, Result: []byte(answer.result)}, nil
	default:
		return middleware.Claim{Key: key, State: middleware.ClaimBusy, RetryAfter: time.Duration(max(answer.millis, 0)) * time.Millisecond}, nil
	}
}

// unclaimed gives back what a caller claimed who did not wait for it.
func (s *Store) unclaimed(c step, answer combine.Answer[found]) {
	if answer.Err != nil || answer.Value.state != 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), tripTimeout)
	defer cancel()
	// Where this fails the lease frees the key.
	_ = release.Run(ctx, s.cfg.Client, []string{c.key}, c.token).Err()
}

// Commit turns an acquired claim into a done key for the retention.
func (s *Store) Commit(ctx context.Context, c middleware.Claim, retention time.Duration) error {
	if retention <= 0 {
		return fmt.Errorf("redisinbox: the retention of a dedup key is %s: it must be positive", retention)
	}
	answer, err := s.commits.group.Do(ctx, step{key: s.cfg.Prefix + c.Key, token: c.Token, millis: millis(retention)})
	if err != nil {
		return fmt.Errorf("redisinbox: commit the claim on %q: %w", c.Key, err)
	}
	if answer.state == 0 {
		return fmt.Errorf("redisinbox: commit the claim on %q: %w", c.Key, middleware.ErrClaimLost)
	}
	return nil
}

// CommitResult is Commit which keeps result with the mark, in a round trip of its
// own.
func (s *Store) CommitResult(ctx context.Context, c middleware.Claim, retention time.Duration, result []byte) error {
	if len(result) == 0 {
		return s.Commit(ctx, c, retention)
	}
	if err := middleware.CheckResult(result); err != nil {
		return fmt.Errorf("redisinbox: commit the claim on %q: %w", c.Key, err)
	}
	if retention <= 0 {
		return fmt.Errorf("redisinbox: the retention of a dedup key is %s: it must be positive", retention)
	}
	n, err := commitResult.Run(ctx, s.cfg.Client, []string{s.cfg.Prefix + c.Key}, c.Token, millis(retention), result).Int()
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
