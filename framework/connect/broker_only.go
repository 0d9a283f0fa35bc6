package connect

import (
	"context"
	"errors"
	"log/slog"

	"github.com/headrace-go/headrace/framework/config"
)

// OpenBroker opens the broker of the profile and nothing else, for tools that
// look at a running system: no table is made or changed. Logger nil means
// slog.Default(). On an error nothing stays open.
func OpenBroker(ctx context.Context, p config.Profile, logger *slog.Logger) (*Connections, error) {
	p = p.WithDefaults()
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = slog.Default()
	}
	c := &Connections{}
	if err := c.openBroker(ctx, p, logger); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}
