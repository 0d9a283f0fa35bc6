package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/migrate"
	"github.com/headrace-go/headrace/services/payments"
)

// versionTable records which of the service's migrations are applied.
const versionTable = "payments_schema_version"

// schemaUp brings the service's tables up to date, or only checks them when
// payments.migrate is off. Any number of replicas may do so at once.
func schemaUp(ctx context.Context, s Settings, conns *connect.Connections, logger *slog.Logger) error {
	files, err := fs.Sub(payments.Files, "migrations/"+string(conns.Dialect))
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	options := migrate.Options{Table: versionTable, Logger: logger}
	if s.Payments.Migrate {
		return migrate.Up(ctx, conns.DB, conns.Dialect, files, options)
	}
	if err := migrate.Check(ctx, conns.DB, conns.Dialect, files, options); err != nil {
		return fmt.Errorf("%w: run `payments migrate` first, or set payments.migrate", err)
	}
	return nil
}

// migrateOnly brings all tables up to date, the framework's and the gateway's
// included.
func migrateOnly(ctx context.Context, s Settings, logger *slog.Logger) (err error) {
	s.Payments.Migrate = true
	conns, err := connect.Open(ctx, s.Profile, logger)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { err = errors.Join(err, conns.Close()) }()
	if err := schemaUp(ctx, s, conns, logger); err != nil {
		return err
	}
	if s.Payments.Gateway.Kind != GatewaySandbox {
		return nil
	}
	_, err = OpenGateway(ctx, s.Payments.Gateway, conns.DB, conns.Dialect, logger)
	return err
}
