package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"github.com/headrace-go/headrace/cmd/headrace/internal/dev"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/outbox"
	"github.com/headrace-go/headrace/framework/schema"
)

// findDatabase is the flags that say where an outbox is.
type findDatabase struct {
	dir, state, env, service, driver, dsn string
}

func (f *findDatabase) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.dir, "dir", ".", "a folder of the workspace")
	flags.StringVar(&f.state, "state", "", "the folder that dev was given as --state (default: the workspace)")
	flags.StringVar(&f.env, "env", "", "the profile (default: that of a running dev, else HEADRACE_ENV, else local)")
	flags.StringVar(&f.service, "service", "", "whose outbox it is (default: the only service)")
	flags.StringVar(&f.driver, "driver", "", "use a database of this kind: postgres, mysql or sqlite")
	flags.StringVar(&f.dsn, "dsn", "", "the database's address, with --driver; HEADRACE_DATABASE_DSN keeps its password off the command line")
}

// boxPlace is where an outbox is.
type boxPlace struct {
	name    string
	profile config.Profile
}

// box is an open outbox.
type box struct {
	name  string
	conns *connect.Connections
	admin *outbox.Admin
}

func (b *box) Close() { _ = b.conns.Close() }

// one opens the one outbox that the flags name.
func (f findDatabase) one(ctx context.Context) (*box, error) {
	places, err := f.places(ctx)
	if err != nil {
		return nil, err
	}
	if len(places) > 1 {
		names := make([]string, len(places))
		for i, p := range places {
			names[i] = p.name
		}
		return nil, usageError{fmt.Errorf("whose outbox? Choose with --service: %s", strings.Join(names, ", "))}
	}
	return places[0].open(ctx)
}

// places finds the outboxes that the flags name; there is one at least.
func (f findDatabase) places(context.Context) ([]boxPlace, error) {
	env := environ()
	if f.driver != "" || f.dsn != "" {
		p := config.Default()
		dsn := f.dsn
		if dsn == "" {
			dsn = lookup(env, "HEADRACE_DATABASE_DSN", "")
		}
		if f.driver == "" || dsn == "" {
			return nil, usageError{errors.New("give both --driver and --dsn, such as --driver postgres --dsn postgres://user@host/database")}
		}
		p.Database.Driver, p.Database.DSN = f.driver, config.Secret(dsn)
		return []boxPlace{{name: f.driver, profile: p}}, nil
	}
	w, name, root, env, err := f.workspace(env)
	if err != nil {
		return nil, fmt.Errorf("%w; or name the database with --driver and --dsn", err)
	}
	var all []boxPlace
	for _, s := range w.Services {
		if f.service != "" && s.Name != f.service {
			continue
		}
		p, err := w.Profile(s.Name, name, env)
		if err != nil {
			return nil, err
		}
		all = append(all, boxPlace{name: s.Name, profile: dev.InFolder(p, root)})
	}
	if len(all) == 0 {
		return nil, usageError{fmt.Errorf("--service is %q: there is no such service in %s", f.service, w.Root)}
	}
	return all, nil
}

// workspace finds the workspace, the profile's name, the folder that the services
// of `headrace dev` run in, and the environment that they have.
func (f findDatabase) workspace(environ []string) (w *dev.Workspace, env, root string, its []string, err error) {
	env = f.env
	if env == "" {
		env = lookup(environ, config.EnvEnv, "local")
	}
	if w, err = dev.Find(f.dir, env); err != nil {
		return nil, "", "", nil, err
	}
	root = f.state
	if root == "" {
		root = w.Root
	}
	if f.env == "" {
		switch state, err := dev.ReadState(root); {
		case err == nil:
			env, environ = state.Env, state.Environ(environ)
		case !errors.Is(err, dev.ErrNotRunning):
			return nil, "", "", nil, err
		}
	}
	return w, env, root, environ, nil
}

func (p boxPlace) open(ctx context.Context) (*box, error) {
	conns, err := connect.OpenDatabase(ctx, p.profile, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	b := &box{name: p.name, conns: conns}
	if err := schema.Check(ctx, conns.DB, conns.Dialect); err != nil {
		b.Close()
		return nil, fmt.Errorf("the database of %s has no outbox that this release knows: %w", p.name, err)
	}
	if b.admin, err = outbox.NewAdmin(outbox.AdminConfig{DB: conns.DB, Dialect: conns.Dialect}); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}
