package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
)

// pipeline prints how each handler would run with these settings. It reaches
// neither the broker nor the database that they name.
func (p Program[S]) pipeline(ctx context.Context, c Call) error {
	x, err := p.pipelineOf(ctx, c)
	if err != nil {
		return err
	}
	if err := x.WriteText(c.Stdout); err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	return outcome(x)
}

func (p Program[S]) pipelineJSON(ctx context.Context, c Call) error {
	x, err := p.pipelineOf(ctx, c)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(c.Stdout)
	enc.SetIndent("", "  ")
	if err := enc.Encode(x); err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	return outcome(x)
}

func outcome(x framework.Explanation) error {
	if n := len(x.Findings); n > 0 {
		return fmt.Errorf("explain: %s would not start: %d findings", x.Service, n)
	}
	return nil
}

func (p Program[S]) pipelineOf(ctx context.Context, c Call) (framework.Explanation, error) {
	var none framework.Explanation
	settings := p.Defaults
	sources, err := config.Explain(&settings, p.source(c))
	if err != nil {
		return none, err
	}
	if sources.Faults != nil {
		// A laptop has not the secrets of production, and no handler's numbers come
		// from them.
		var missing []MissingSetting
		if settings, missing, err = p.standIns(c); err != nil {
			return none, err
		}
		for _, m := range missing {
			fmt.Fprintf(c.Stderr, "%s: %s (%s) is not set here: explained without it\n", p.Name, m.Key, m.Env)
		}
	}
	profile := settings.Common()
	base := framework.Config{
		Service: p.Name, Profile: profile, Logger: slog.New(slog.DiscardHandler), Sources: map[string]config.Source{},
	}
	for _, s := range sources.Settings {
		base.Sources[s.Key] = s.Source
	}
	if base.Broker, err = connect.Describe(profile, p.Brokers...); err != nil {
		return none, err
	}
	defer func() { _ = base.Broker.Close() }()
	if profile.Database.Driver != "" {
		closed, err := p.standIn(ctx, settings, &base)
		if err != nil {
			return none, err
		}
		defer closed()
	}
	app, err := p.Build(ctx, settings, base)
	if app == nil || err != nil && len(framework.FindingsOf(err)) == 0 {
		return none, errors.Join(err, errIfNil(app))
	}
	return app.Explain(), nil
}

func errIfNil(app *framework.App) error {
	if app == nil {
		return errors.New("explain: the service built no App")
	}
	return nil
}

// standIn gives base a database in memory with the service's tables, since a
// service may look into its own while it is wired.
func (p Program[S]) standIn(ctx context.Context, settings S, base *framework.Config) (closed func(), err error) {
	profile := config.Default()
	profile.Database = config.Database{Driver: "sqlite", DSN: ":memory:"}
	env := &environment{profile: profile, plain: base.Logger, logger: base.Logger}
	if env.conns, err = connect.Open(ctx, profile, base.Logger, p.Brokers...); err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	closed = func() { _ = env.conns.Close() }
	if err := p.schema(ctx, settings, env, true); err != nil {
		closed()
		return nil, fmt.Errorf("explain: %w", err)
	}
	base.DB, base.Dialect = env.conns.DB, env.conns.Dialect
	return closed, nil
}
