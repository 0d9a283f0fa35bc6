package rabbitmq

import (
	"context"

	"github.com/headrace-go/headrace/framework/broker"
)

// Kind is the value of broker.kind that chooses this broker.
const Kind = "rabbitmq"

// Adapter makes RabbitMQ selectable by configuration: broker.kind "rabbitmq",
// broker.url and broker.prefix. RabbitMQ keeps a message until it is settled, so
// broker.retention has no meaning here; a policy of the server can limit queues.
func Adapter() broker.Adapter {
	return broker.Adapter{
		Kind: Kind,
		Open: func(ctx context.Context, s broker.AdapterSettings) (broker.Broker, error) {
			if s.Retention > 0 {
				s.Logger.WarnContext(ctx, "rabbitmq: broker.retention is set and has no effect: RabbitMQ keeps a message until it is settled; a policy of the server can limit queues",
					"retention", s.Retention)
			}
			b, err := Open(ctx, settings(s))
			if err != nil {
				return nil, err
			}
			return b, nil
		},
		Features: func(s broker.AdapterSettings) (broker.Features, error) {
			return settings(s).Features(), nil
		},
	}
}

func settings(s broker.AdapterSettings) Config {
	return Config{URL: s.URL, Prefix: s.Prefix, Logger: s.Logger}
}
