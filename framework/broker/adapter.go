package broker

import (
	"context"
	"log/slog"
	"time"
)

// Adapter makes a kind of broker that lives in a module of its own selectable by
// configuration: a program that lists it takes its Kind in broker.kind.
type Adapter struct {
	// Kind is the value of broker.kind, such as "nats". Required; it must not be
	// one that Headrace has itself.
	Kind string
	// Open connects to the broker that the settings name and returns once it
	// answers. Required. An error names what is wrong and the remedy, and never a
	// secret of the URL.
	Open func(ctx context.Context, s AdapterSettings) (Broker, error)
	// Features states what such a broker can do, without reaching it: for tools
	// that compare a service's needs with a broker. Required.
	Features func(s AdapterSettings) (Features, error)
}

// AdapterConfig is a config of an adapter, its defaults filled in.
type AdapterConfig interface {
	Validate() error
	Features() Features
}

// NewAdapter makes an Adapter of what a module has anyway: how its config follows
// from the settings, and how a broker is opened with one.
func NewAdapter[C AdapterConfig, B Broker](kind string, config func(AdapterSettings) (C, error), open func(context.Context, C) (B, error)) Adapter {
	return Adapter{
		Kind: kind,
		Open: func(ctx context.Context, s AdapterSettings) (Broker, error) {
			cfg, err := config(s)
			if err != nil {
				return nil, err
			}
			// A B that is nil must not become a Broker that is not.
			b, err := open(ctx, cfg)
			if err != nil {
				return nil, err
			}
			return b, nil
		},
		Features: func(s AdapterSettings) (Features, error) {
			cfg, err := config(s)
			if err != nil {
				return Features{}, err
			}
			if err := cfg.Validate(); err != nil {
				return Features{}, err
			}
			return cfg.Features(), nil
		},
	}
}

// AdapterSettings is what configuration says about a broker of any kind.
type AdapterSettings struct {
	// URL is broker.url. It may hold a password.
	URL string
	// Prefix is broker.prefix: it stands before every name in the broker.
	Prefix string
	// Retention is broker.retention; 0 means the adapter's default, negative for
	// ever.
	Retention time.Duration
	// Logger is never nil.
	Logger *slog.Logger
}
