package program

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/migrate"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// migrate brings all tables up to date, Headrace's own included.
func (p Program[S]) migrate(ctx context.Context, c Call) (err error) {
	settings, env, err := p.load(c)
	if err != nil {
		return err
	}
	if env.profile.Database.Driver == "" {
		return fmt.Errorf("there is nothing to migrate: database.driver (%s) is empty", config.EnvName("database.driver"))
	}
	if env.conns, err = connect.Open(ctx, env.profile, env.logger, p.Brokers...); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.conns.Close()) }()
	return p.schema(ctx, settings, env, true)
}

// schema brings the service's tables up to date, or only checks them.
func (p Program[S]) schema(ctx context.Context, settings S, env *environment, change bool) error {
	if env.conns.DB == nil {
		return nil
	}
	files, err := Migrations(p.Files, env.conns.Dialect)
	if err != nil {
		return err
	}
	if files != nil {
		options := migrate.Options{Table: p.versionTable(), Logger: env.logger}
		if !change {
			if err := migrate.Check(ctx, env.conns.DB, env.conns.Dialect, files, options); err != nil {
				return fmt.Errorf("%w: run `%s migrate` first, or set database.migrate (%s)", err, p.Name, config.EnvName("database.migrate"))
			}
			return nil
		}
		if err := migrate.Up(ctx, env.conns.DB, env.conns.Dialect, files, options); err != nil {
			return err
		}
	}
	if p.Migrate == nil || !change {
		return nil
	}
	return p.Migrate(ctx, settings, env.base(p.Name, nil))
}

// versionTable records which of the service's migrations are applied.
func (p Program[S]) versionTable() string {
	return strings.ReplaceAll(p.Name, "-", "_") + "_schema_version"
}

// Migrations returns a service's migrations of the dialect, the folder
// migrations/<dialect> of its files; nil where it has no folder migrations.
func Migrations(files fs.FS, d sqltx.Dialect) (fs.FS, error) {
	if _, err := fs.Stat(files, "migrations"); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	dir := "migrations/" + string(d)
	if _, err := fs.Stat(files, dir); err != nil {
		return nil, fmt.Errorf("program: the service has migrations, but none for %s: add the folder %s to what it embeds: %w", d, dir, err)
	}
	sub, err := fs.Sub(files, dir)
	if err != nil {
		return nil, fmt.Errorf("program: %s: %w", dir, err)
	}
	return sub, nil
}
