package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
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
	w, name, root, err := f.workspace(env)
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
		all = append(all, boxPlace{name: s.Name, profile: inFolder(p, root)})
	}
	if len(all) == 0 {
		return nil, usageError{fmt.Errorf("--service is %q: there is no such service in %s", f.service, w.Root)}
	}
	return all, nil
}

// workspace finds the workspace, the profile's name and the folder that the
// services of `headrace dev` run in.
func (f findDatabase) workspace(environ []string) (w *dev.Workspace, env, root string, err error) {
	env = f.env
	if env == "" {
		env = lookup(environ, config.EnvEnv, "local")
	}
	if w, err = dev.Find(f.dir, env); err != nil {
		return nil, "", "", err
	}
	root = f.state
	if root == "" {
		root = w.Root
	}
	if f.env == "" {
		switch state, err := dev.ReadState(root); {
		case err == nil:
			env = state.Env
		case !errors.Is(err, dev.ErrNotRunning):
			return nil, "", "", err
		}
	}
	return w, env, root, nil
}

// inFolder makes an SQLite path that is relative to the service's folder one that
// works from here.
func inFolder(p config.Profile, root string) config.Profile {
	path := p.Database.DSN.Reveal()
	if p.Database.Driver == "sqlite" && path != ":memory:" && !strings.HasPrefix(path, "file:") && !filepath.IsAbs(path) {
		p.Database.DSN = config.Secret(filepath.Join(root, path))
	}
	return p
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
