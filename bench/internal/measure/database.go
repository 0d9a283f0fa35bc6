package measure

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/headrace-go/headrace/pkg/events"
)

// Database makes a database of the run's own. Open opens one by its name, and the
// server without one where that is empty; option stands behind DROP DATABASE. Drop
// removes it.
func Database(ctx context.Context, open func(name string) (*sql.DB, error), option string) (name string, drop func(), err error) {
	admin, err := open("")
	if err != nil {
		return "", nil, err
	}
	name = "bench_" + strings.ReplaceAll(events.NewID(), "-", "")
	if _, err := admin.ExecContext(ctx, "CREATE DATABASE "+name); err != nil {
		return "", nil, errors.Join(fmt.Errorf("make a database: %w", err), admin.Close())
	}
	return name, func() {
		_, _ = admin.ExecContext(context.WithoutCancel(ctx), "DROP DATABASE IF EXISTS "+name+" "+option)
		_ = admin.Close()
	}, nil
}

// PostgresDatabase is Database on the Postgres server of a URL; dsn is the new
// database's.
func PostgresDatabase(ctx context.Context, server string) (dsn string, drop func(), err error) {
	name, drop, err := Database(ctx, func(name string) (*sql.DB, error) { return OpenPostgres(server, name) }, DropForced)
	if err != nil {
		return "", nil, fmt.Errorf("postgres: %w", err)
	}
	if dsn, err = postgresURL(server, name); err != nil {
		drop()
		return "", nil, err
	}
	return dsn, drop, nil
}

// DropForced is Database's option on Postgres: whoever is still connected goes.
const DropForced = "WITH (FORCE)"

// OpenPostgres opens a database of the server; the URL's own where name is empty.
func OpenPostgres(server, name string) (*sql.DB, error) {
	dsn, err := postgresURL(server, name)
	if err != nil {
		return nil, err
	}
	return sql.Open("pgx", dsn)
}

func postgresURL(server, name string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", errors.New("postgres: the address is no URL")
	}
	if name != "" {
		u.Path = "/" + name
	}
	return u.String(), nil
}
