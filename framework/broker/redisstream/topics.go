package redisstream

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// scanPage is how many keys one step of a scan looks at.
const scanPage = 1000

// glob escapes what means something to a pattern of Redis.
var glob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// Topics returns the names of the topics that end with suffix. It walks all keys
// of the database, a page at a time, without holding the server up.
func (a admin) Topics(ctx context.Context, suffix string) ([]string, error) {
	var mu sync.Mutex
	found := map[string]bool{}
	pattern := glob.Replace(a.b.cfg.Prefix) + "*" + glob.Replace(suffix)
	walk := func(ctx context.Context, c *redis.Client) error {
		it := c.ScanType(ctx, 0, pattern, scanPage, "stream").Iterator()
		for it.Next(ctx) {
			mu.Lock()
			found[strings.TrimPrefix(it.Val(), a.b.cfg.Prefix)] = true
			mu.Unlock()
		}
		return it.Err()
	}
	var err error
	switch c := a.b.client.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, walk)
	case *redis.Client:
		err = walk(ctx, c)
	default:
		err = fmt.Errorf("a client of type %T can't be scanned", c)
	}
	if err != nil {
		return nil, fmt.Errorf("redisstream: list the topics with suffix %q: %w", suffix, err)
	}
	topics := make([]string, 0, len(found))
	for t := range found {
		topics = append(topics, t)
	}
	return topics, nil
}
