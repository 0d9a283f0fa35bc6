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
