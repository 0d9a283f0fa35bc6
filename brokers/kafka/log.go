package kafka

import (
	"context"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kgo"
)

// clientLog passes on what the client warns of. It says no more: the client tells
// addresses and names, and never what a message holds.
type clientLog struct{ log *slog.Logger }

// Level is the least that the client need tell.
func (l clientLog) Level() kgo.LogLevel { return kgo.LogLevelWarn }

// Log writes one line. What the client can get over by itself is a warning at
// most: what it can't comes back as an error, to whoever waits.
func (l clientLog) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	at := slog.LevelDebug
	if level == kgo.LogLevelError {
		at = slog.LevelWarn
	}
	l.log.Log(context.Background(), at, "kafka client: "+msg, keyvals...)
}
