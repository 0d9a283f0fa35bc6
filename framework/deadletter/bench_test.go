package deadletter_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/framework/deadletter"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// BenchmarkReplay replays from Redis with a journal, each letter confirmed, on
// record and deleted; an operation is one letter.
func BenchmarkReplay(b *testing.B) {
	for name, keys := range map[string]int{"1000 keys": 1000, "one key": 1} {
		b.Run(name, func(b *testing.B) {
			r, err := redisstream.Open(context.Background(), redisstream.Config{URL: testenv.Redis(b).URL(), Logger: slog.New(slog.DiscardHandler)})
			require.NoError(b, err)
			defer r.Close()
			msgs := make([]*message.Message, b.N)
			for i := range msgs {
				msgs[i] = message.NewMessage(events.NewID(), make([]byte, 600))
				msgs[i].Metadata = message.Metadata{
					events.KeyID: msgs[i].UUID, events.KeyType: "thing.made", events.KeyOrdering: fmt.Sprint(i % keys),
					middleware.DeadLetterReason: middleware.ReasonExhausted, middleware.DeadLetterFingerprint: "f",
				}
			}
			require.NoError(b, r.Publisher().PublishBatch(context.Background(), broker.DeadLetterTopic(group), msgs))
			q, err := deadletter.New(deadletter.Config{Broker: r, Group: group})
			require.NoError(b, err)
			b.ResetTimer()
			report, err := q.Replay(context.Background(), deadletter.ReplayOptions{Journal: filepath.Join(b.TempDir(), "j")})
			require.NoError(b, err)
			require.Equal(b, b.N, report.Replayed)
		})
	}
}
