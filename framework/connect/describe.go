package connect

import (
	"fmt"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/memory"
	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/framework/broker/sqldb"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// Describe returns a stand-in for the profile's broker that has its name and
// states its features, without reaching anything: for tools that compare a service
// with a broker. What is published to it goes nowhere.
func Describe(p config.Profile) (broker.Broker, error) {
	p = p.WithDefaults()
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
		return nil, fmt.Errorf("connect: no broker %q", p.Broker.Kind)
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
