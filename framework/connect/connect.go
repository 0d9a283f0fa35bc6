// Package connect opens what a profile names: the database and the broker. It
// is the one place in a program that imports drivers and adapters, so that
// nothing else knows them; a service's main calls it and hands the result to
// framework.New.
//
// The framework's own tables are brought up to date on the way (package
// schema). A database that is still starting is waited for, up to
// database.connect_timeout. Every error names the key, its variable, the value
// without its secrets, and the remedy.
package connect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/outbox"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// Connections are what a profile names, open. The fields are for
// framework.Config.
type Connections struct {
	// DB is the database; nil where database.driver is empty.
	DB *sql.DB
	// Dialect is DB's.
	Dialect sqltx.Dialect
	// Broker is the broker.
	Broker broker.Broker
	// Waker tells the outbox relay of rows that other processes wrote; nil where
	// the database can't.
	Waker outbox.Waker

	adapters []broker.Adapter
	closers  []func() error
	broker   bool // its database is a broker's own
}

// Open opens the database and the broker of the profile. Logger nil means
// slog.Default(). Adapters are the kinds of broker that the profile may name
// besides Headrace's own. On an error nothing stays open.
func Open(ctx context.Context, p config.Profile, logger *slog.Logger, adapters ...broker.Adapter) (*Connections, error) {
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
	if err := c.open(ctx, p, logger); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Connections) open(ctx context.Context, p config.Profile, logger *slog.Logger) error {
	if p.Database.Driver != "" {
		if err := c.openDatabase(ctx, p, logger); err != nil {
			return err
		}
		if err := schema.Ensure(ctx, c.DB, c.Dialect, logger); err != nil {
			return fmt.Errorf("connect: bring Headrace's own tables up to date: %w", err)
		}
	}
	return c.openBroker(ctx, p, logger)
}

// Close closes everything in the reverse order of opening. Call it once the
// App's Run has returned.
func (c *Connections) Close() error {
	var errs []error
	for i := len(c.closers) - 1; i >= 0; i-- {
		errs = append(errs, c.closers[i]())
	}
	c.closers = nil
	return errors.Join(errs...)
}

func (c *Connections) onClose(fn func() error) { c.closers = append(c.closers, fn) }

// fault names a key, what it holds, what went wrong and what to do. The value
// must be safe to show; secrets are what must not appear in err's text.
func fault(key, value string, err error, remedy string, secrets ...string) error {
	return fmt.Errorf("connect: %s (%s) is %q: %w: %s", key, config.EnvName(key), value, mask(err, secrets...), remedy)
}
