package connect

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/headrace-go/headrace/framework/broker/memory"
	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/localredis"
)

// shared names the environments in which a broker of the process's own is a
// mistake: its messages would reach no other process.
var shared = []string{"staging", "production"}

func (c *Connections) openBroker(ctx context.Context, p config.Profile, logger *slog.Logger) error {
	switch p.Broker.Kind {
	case "memory":
		if slices.Contains(shared, p.Env) {
			return fault("broker.kind", p.Broker.Kind, errors.New("its messages end with the process"), "choose a broker that services share")
		}
		b := memory.New(memory.Config{})
		c.onClose(b.Close)
		c.Broker = b
		return nil
	case "redisstream":
		return c.openRedis(ctx, p, logger)
	case "sqs", "sns":
		return c.openAWS(ctx, p, logger)
	case "sql":
		return c.openSQL(ctx, p, logger)
	}
	return c.openAdapter(ctx, p, logger)
}

func (c *Connections) openRedis(ctx context.Context, p config.Profile, logger *slog.Logger) error {
	const key = "broker.url"
	quietRedis(logger)
	url := p.Broker.URL.Reveal()
	if url == "" {
		if slices.Contains(shared, p.Env) {
			return fault(key, "", errors.New("a server of the process's own would reach no other service"), "set the address of the shared Redis")
		}
		server, err := localredis.Start(ctx, localredis.Options{Dir: p.Broker.Dir, Logger: logger})
		if err != nil {
			return fault(key, "", err, "set the address of a running Redis, or make broker.dir writable")
		}
		c.onClose(server.Close)
		url = server.URL()
		logger.InfoContext(ctx, "no broker.url: started a Redis of this process's own", "kind", server.Kind(), "url", url)
	}
	safe, secrets := shown(url)
	b, err := redisstream.Open(ctx, redisstream.Config{
		URL: url, Prefix: p.Broker.Prefix, Retention: p.Broker.Retention, Logger: logger,
	})
	if err != nil {
		return fault(key, safe, err, "write redis://user:password@host:6379/0 and check that the server answers", secrets...)
	}
	c.onClose(b.Close)
	c.Broker = b
	return nil
}
