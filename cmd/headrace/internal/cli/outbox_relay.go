package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/cmd/headrace/internal/dev"
	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/logging"
)

// relayFlags say what a relay of its own works on.
type relayFlags struct {
	find                 findDatabase
	kind, url, prefix    string
	admin, level, format string
	drain                time.Duration
}

func newRelay() *cobra.Command {
	var f relayFlags
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Publish a service's outbox, as a process of its own",
		Long: `relay publishes what a service has written to its outbox, beside the relay inside the
service or in its place. Any number may run: on Postgres and MySQL they share the work,
on SQLite one works and another takes over when it ends. It runs until SIGTERM or
SIGINT, then finishes what it has begun.

Database, broker and the settings of outbox.* are those of the service's profile, with
the HEADRACE_ variables over it; or the flags name database and broker outright. Its
admin listener serves /healthz, /readyz and /metrics.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	f.find.bind(flags)
	flags.StringVar(&f.kind, "broker", "", "use a broker of this kind, such as redisstream, at --url")
	flags.StringVar(&f.url, "url", "", "the broker's address; HEADRACE_BROKER_URL keeps its password off the command line")
	flags.StringVar(&f.prefix, "prefix", "", "what stands before each key in the broker, with --broker")
	flags.StringVar(&f.admin, "admin-addr", "127.0.0.1:0", "where /healthz, /readyz and /metrics are served (empty: nowhere)")
	flags.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&f.format, "log-format", "text", "text or json")
	flags.DurationVar(&f.drain, "drain-timeout", 25*time.Second, "how long the end may take")
	return cmd
}

func (f relayFlags) run(cmd *cobra.Command) (err error) {
	ctx := cmd.Context()
	name, p, err := f.profile(ctx)
	if err != nil {
		return err
	}
	log, err := logging.New(cmd.OutOrStdout(), p.Log)
	if err != nil {
		return usageError{err}
	}
	conns, err := connect.Open(ctx, p, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conns.Close()) }()
	app, err := framework.New(framework.Config{
		Service: name, Profile: p, DB: conns.DB, Dialect: conns.Dialect, Broker: conns.Broker, OutboxWaker: conns.Waker, Logger: log,
	})
	if err != nil {
		return err
	}
	return app.Run(ctx)
}

// profile is the service's, without what a relay doesn't need.
func (f relayFlags) profile(ctx context.Context) (string, config.Profile, error) {
	places, err := f.find.places(ctx)
	if err != nil {
		return "", config.Profile{}, err
	}
	if len(places) > 1 {
		return "", config.Profile{}, usageError{errors.New("whose outbox? Choose with --service")}
	}
	p := places[0].profile
	p.HTTP.Addr, p.Admin.Addr = "", f.admin
	p.Log.Level, p.Log.Format = f.level, f.format
	p.Drain.Delay, p.Drain.Timeout = 0, f.drain
	if err := f.broker(&p); err != nil {
		return "", p, err
	}
	switch {
	case p.Database.Driver == "":
		return "", p, fmt.Errorf("profile %q of %s has no database, so there is no outbox", p.Env, places[0].name)
	case p.Broker.Kind == "memory":
		return "", p, fmt.Errorf("the broker of profile %q is memory, which reaches one process only: name another profile with --env, or a broker with --broker and --url", p.Env)
	case p.Broker.Kind == "redisstream" && p.Broker.URL == "":
		return "", p, fmt.Errorf("no broker is known: %w, or set HEADRACE_BROKER_URL, or name one with --broker and --url", dev.ErrNotRunning)
	}
	return places[0].name + "-relay", p, nil
}

// broker puts the flags, or the broker of a running dev, over the profile's.
func (f relayFlags) broker(p *config.Profile) error {
	env := environ()
	url := f.url
	if url == "" {
		url = lookup(env, "HEADRACE_BROKER_URL", "")
	}
	switch {
	case f.kind != "" && url == "":
		return usageError{errors.New("--broker needs --url or HEADRACE_BROKER_URL")}
	case f.kind != "":
		p.Broker.Kind, p.Broker.URL, p.Broker.Prefix = f.kind, config.Secret(url), f.prefix
	case f.find.dsn != "" || f.find.driver != "":
		return usageError{errors.New("name the broker too: --broker and --url")}
	}
	return nil
}
