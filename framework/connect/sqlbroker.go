package connect

import (
	"context"
	"log/slog"

	"github.com/headrace-go/headrace/framework/broker/sqldb"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/sqltx"
)

const keyBrokerURL = "broker.url"

// brokerConns is the default of broker.sql.max_open_conns.
const brokerConns = 16

// keyDSN is the key whose address is being opened.
func (c *Connections) keyDSN() string {
	if c.broker {
		return keyBrokerURL
	}
	return keyDSN
}

// openSQL opens the broker kind "sql" on the database that broker.url names,
// with a pool of its own: a service whose handlers hold all of their connections
// still settles, and the reverse.
func (c *Connections) openSQL(ctx context.Context, p config.Profile, logger *slog.Logger) error {
	driver, dsn, err := p.Broker.SQLDatabase()
	if err != nil {
		return fault(keyBrokerURL, p.Broker.Shown(), err, "correct the address", p.Broker.URL.Reveal())
	}
	q := p
	q.Database.Driver, q.Database.DSN = driver, dsn
	q.Database.MaxOpenConns = p.Broker.SQL.MaxOpenConns
	if q.Database.MaxOpenConns == 0 {
		q.Database.MaxOpenConns = brokerConns
	}
	q.Database.MaxIdleConns = q.Database.MaxOpenConns
	own := &Connections{broker: true}
	c.onClose(own.Close)
	if err := own.openDatabase(ctx, q, logger); err != nil {
		return err
	}
	if own.Dialect == sqltx.SQLite && p.Broker.SQL.MaxOpenConns > 0 {
		own.DB.SetMaxOpenConns(p.Broker.SQL.MaxOpenConns)
	}
	b, err := sqldb.Open(ctx, sqldb.Config{
		DB: own.DB, Dialect: own.Dialect, Retention: p.Broker.Retention, Logger: logger,
		PollInterval: p.Broker.SQL.PollInterval, NoListen: p.Broker.SQL.NoListen,
	})
	if err != nil {
		return fault(keyBrokerURL, p.Broker.Shown(), err, "check that the server is new enough")
	}
	c.onClose(b.Close)
	c.Broker = b
	return nil
}
