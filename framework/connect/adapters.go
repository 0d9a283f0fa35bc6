package connect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/config"
)

// withKinds returns p with its defaults and the kinds of these adapters.
func withKinds(p config.Profile, adapters []broker.Adapter) (config.Profile, error) {
	kinds := config.BrokerKinds()
	p = p.WithDefaults()
	p.Broker.Others = nil
	for _, a := range adapters {
		switch {
		case a.Kind == "" || a.Open == nil || a.Features == nil:
			return p, fmt.Errorf("connect: the adapter of kind %q lacks its Kind, Open or Features: take it from its module's Adapter function", a.Kind)
		case slices.Contains(kinds, a.Kind):
			return p, fmt.Errorf("connect: two adapters have the kind %q: leave one out", a.Kind)
		}
		kinds = append(kinds, a.Kind)
		p.Broker.Others = append(p.Broker.Others, a.Kind)
	}
	return p, nil
}

// adapter finds the one of the profile's kind.
func adapter(p config.Profile, adapters []broker.Adapter) (broker.Adapter, error) {
	for _, a := range adapters {
		if a.Kind == p.Broker.Kind {
			return a, nil
		}
	}
	return broker.Adapter{}, fault("broker.kind", p.Broker.Kind, errors.New("no such broker"),
		"use "+strings.Join(config.BrokerKinds(), ", ")+", or pass the adapter of its module")
}

// adapterSettings checks and gathers what an adapter from outside gets.
func adapterSettings(p config.Profile, logger *slog.Logger) broker.AdapterSettings {
	return broker.AdapterSettings{
		URL: p.Broker.URL.Reveal(), Prefix: p.Broker.Prefix, Retention: p.Broker.Retention, Logger: logger,
	}
}

func (c *Connections) openAdapter(ctx context.Context, p config.Profile, logger *slog.Logger) error {
	a, err := adapter(p, c.adapters)
	if err != nil {
		return err
	}
	s := adapterSettings(p, logger)
	safe, secrets := shown(s.URL)
	b, err := a.Open(ctx, s)
	if err != nil {
		return fault(keyBrokerURL, safe, err, "write the address of the broker and check that it answers", secrets...)
	}
	c.onClose(b.Close)
	c.Broker = b
	return nil
}
