package connect

import (
	"context"
	"log/slog"
)

func (c *Connections) openWaker(ctx context.Context, dsn string, logger *slog.Logger) error {
	return nil
}
