package connect

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// redisLog gives what the Redis client prints to the program's own logger: the
// client has one logger for the whole process and writes plain text to stderr
// otherwise, between lines of JSON.
type redisLog struct{ logger *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	l.logger.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, args...))
}

func quietRedis(logger *slog.Logger) { redis.SetLogger(redisLog{logger}) }
