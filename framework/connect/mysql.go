package connect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/sqltx"
)

func (c *Connections) openMySQL(ctx context.Context, d config.Database, logger *slog.Logger) error {
	raw := d.DSN.Reveal()
	cfg, err := mysqlConfig(raw)
	if err != nil {
		return fault(c.keyDSN(), config.Redacted, err, "write mysql://user:password@host:3306/database, or the driver's user:password@tcp(host:3306)/database")
	}
	// One round trip for a statement with parameters instead of two.
	cfg.InterpolateParams = true
	cfg.ParseTime = true
	cfg.Logger = quietDriver{}
	where := fmt.Sprintf("mysql://%s@%s/%s", cfg.User, cfg.Addr, cfg.DBName)
	secrets := []string{raw, cfg.Passwd}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return fault(c.keyDSN(), where, err, "correct the parameter", secrets...)
	}
	db := sql.OpenDB(connector)
	c.onClose(db.Close)
	db.SetMaxOpenConns(d.MaxOpenConns)
	db.SetMaxIdleConns(d.MaxIdleConns)
	db.SetConnMaxLifetime(d.ConnMaxLifetime)
	if err := waitFor(ctx, db.PingContext); err != nil {
		return fault(c.keyDSN(), where, err, fmt.Sprintf("start the server or correct the address; it was waited for up to database.connect_timeout (%s)", d.ConnectTimeout), secrets...)
	}
	c.DB, c.Dialect = db, sqltx.MySQL
	logger.DebugContext(ctx, "database open", "driver", "mysql", "at", where)
	return nil
}

// mysqlConfig takes a mysql:// URL or the driver's own form.
func mysqlConfig(raw string) (*mysql.Config, error) {
	cannot := errors.New("it can't be parsed") // the driver's error repeats what it was given
	if strings.HasPrefix(raw, "mysql://") {
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" {
			return nil, cannot
		}
		cfg, err := mysql.ParseDSN("tcp(localhost)/?" + u.RawQuery)
		if err != nil {
			return nil, cannot
		}
		cfg.User = u.User.Username()
		cfg.Passwd, _ = u.User.Password()
		if cfg.Addr = u.Host; u.Port() == "" {
			cfg.Addr = u.Host + ":3306"
		}
		cfg.DBName = strings.TrimPrefix(u.Path, "/")
		return named(cfg)
	}
	cfg, err := mysql.ParseDSN(raw)
	if err != nil {
		return nil, cannot
	}
	return named(cfg)
}

func named(cfg *mysql.Config) (*mysql.Config, error) {
	if cfg.DBName == "" {
		return nil, errors.New("it names no database")
	}
	return cfg, nil
}

// quietDriver drops what the driver would print to standard error; it returns
// the same as errors.
type quietDriver struct{}

func (quietDriver) Print(...any) {}
