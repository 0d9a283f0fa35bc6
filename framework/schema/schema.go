// Package schema holds the tables that Headrace itself keeps in a service's
// database: the outbox, the inbox, the dedup claims and the parked keys. They
// have a version table of their own, so they never meet a service's migrations.
package schema

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/headrace-go/headrace/framework/migrate"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// Names of the tables.
const (
	VersionTable = "headrace_schema_version"
	OutboxTable  = "watermill_headrace_outbox"
	OutboxTopic  = "headrace_outbox" // what a stock forwarder calls OutboxTable
	ControlTable = "headrace_outbox_control"
	InboxTable   = "headrace_inbox"
	DedupTable   = "headrace_dedup"
	ParkedTable  = "headrace_parked_keys"
)

//go:embed postgres/*.sql mysql/*.sql sqlite/*.sql
var files embed.FS

// Migrations returns the migrations of the dialect, as goose reads them.
func Migrations(d sqltx.Dialect) (fs.FS, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	sub, err := fs.Sub(files, string(d))
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	return sub, nil
}

// Ensure brings the tables up to date. Any number of replicas may call it at
// once. A role without the right to create tables is fine while the tables are
// current; else the error wraps migrate.ErrNoDDL. Logger nil means
// slog.Default().
func Ensure(ctx context.Context, db *sql.DB, d sqltx.Dialect, logger *slog.Logger) error {
	m, err := Migrations(d)
	if err != nil {
		return err
	}
	return migrate.Up(ctx, db, d, m, migrate.Options{Table: VersionTable, Logger: logger})
}

// Check returns nil when the tables are current, and an error that wraps
// migrate.ErrPending when they are not. It changes nothing.
func Check(ctx context.Context, db *sql.DB, d sqltx.Dialect) error {
	m, err := Migrations(d)
	if err != nil {
		return err
	}
	return migrate.Check(ctx, db, d, m, migrate.Options{Table: VersionTable})
}
