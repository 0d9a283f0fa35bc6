package connect

import (
	"log/slog"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/memory"
	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/framework/broker/sqldb"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// Describe returns a stand-in for the profile's broker that has its name and
// states its features, without reaching anything: for tools that compare a service
// with a broker. What is published to it goes nowhere. Adapters are as in Open.
func Describe(p config.Profile, adapters ...broker.Adapter) (broker.Broker, error) {
	p, err := withKinds(p, adapters)
	if err != nil {
		return nil, err
	}
	d := described{Broker: memory.New(memory.Config{}), name: p.Broker.Kind}
	d.features = d.Broker.Features()
	switch p.Broker.Kind {
	case "memory":
	case "redisstream":
		d.features = redisstream.Config{}.Features()
	case "sql":
		driver, _, err := p.Broker.SQLDatabase()
		if err != nil {
			return nil, fault(keyBrokerURL, p.Broker.Shown(), err, "correct the address", p.Broker.URL.Reveal())
		}
		d.features = sqldb.Config{Dialect: sqltx.Dialect(driver)}.Features()
	case "sqs", "sns":
		cfg, err := awsConfig(p, nil)
		if err != nil {
			return nil, err
		}
		d.features = cfg.Features()
		if p.Broker.AWS.ClaimCheckURL != "" {
			d.features.MaxMessageBytes, d.features.ClaimCheckAbove = 0, d.features.MaxMessageBytes
		}
	default:
		a, err := adapter(p, adapters)
		if err != nil {
			return nil, err
		}
		s := adapterSettings(p, slog.New(slog.DiscardHandler))
		if d.features, err = a.Features(s); err != nil {
			safe, secrets := shown(s.URL)
			return nil, fault(keyBrokerURL, safe, err, "correct the address", secrets...)
		}
	}
	return d, nil
}

type described struct {
	broker.Broker
	name     string
	features broker.Features
}

func (d described) Name() string              { return d.name }
func (d described) Features() broker.Features { return d.features }
