package latency

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// cleanKeys removes what the run left in Redis.
func cleanKeys(address, prefix string) error {
	opts, err := redis.ParseURL(address)
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	c := redis.NewClient(opts)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	keys := c.Scan(ctx, 0, prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := c.Del(ctx, keys.Val()).Err(); err != nil {
			return fmt.Errorf("redis: remove %s: %w", keys.Val(), err)
		}
	}
	return keys.Err()
}
