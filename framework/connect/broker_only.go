package connect

import (
	"context"
	"errors"
	"log/slog"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/config"
)

// OpenBroker opens the broker of the profile and nothing else, for tools that
// look at a running system: no table is made or changed. Logger and adapters are
// as in Open. On an error nothing stays open.
func OpenBroker(ctx context.Context, p config.Profile, logger *slog.Logger, adapters ...broker.Adapter) (*Connections, error) {
	p, err := withKinds(p, adapters)
	if err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = slog.Default()
	}
	c := &Connections{adapters: adapters}
	if err := c.openBroker(ctx, p, logger); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}
