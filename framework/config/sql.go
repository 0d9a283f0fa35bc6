package config

import (
	"fmt"
	"net/url"
	"strings"
	"time"
)

// SQLBroker is what the broker "sql" needs besides broker.url.
type SQLBroker struct {
	// PollInterval is how often an idle subscription looks for messages that no
	// wake-up announced. Default 0: 100 ms; on Postgres, where NOTIFY announces
	// them, 500 ms.
	PollInterval time.Duration `koanf:"poll_interval"`
	// NoListen switches LISTEN and NOTIFY off on Postgres, for a server behind a
	// pooler in transaction mode. Default false.
	NoListen bool `koanf:"no_listen"`
	// MaxOpenConns bounds the broker's own pool, which is not the service's.
	// Default 0: 16; on SQLite 4.
	MaxOpenConns int `koanf:"max_open_conns"`
}

const sqlURLs = "write postgres://user:password@host:5432/database, mysql://user:password@host:3306/database or sqlite:<path of a file>"

// SQLDatabase is the database that URL names for the broker "sql": its driver as
// Database.Driver has it, and what its DSN would be.
func (b Broker) SQLDatabase() (driver string, dsn Secret, err error) {
	raw := b.URL.Reveal()
	scheme, rest, found := strings.Cut(raw, ":")
	switch {
	case raw == "":
		return "", "", fmt.Errorf("it is empty, and the broker sql is a database that the services share: %s", sqlURLs)
	case !found:
	case scheme == "postgres" || scheme == "postgresql":
		return "postgres", b.URL, nil
	case scheme == "mysql":
		return "mysql", b.URL, nil
	case scheme == "sqlite":
		path := strings.TrimPrefix(rest, "//")
		if path == "" || path == ":memory:" {
			return "", "", fmt.Errorf("it names no file that services could share: %s", sqlURLs)
		}
		return "sqlite", Secret(path), nil
	}
	return "", "", fmt.Errorf("it is no such address: %s", sqlURLs)
}

// Shown is broker.url without its password and parameters, for messages.
func (b Broker) Shown() string {
	raw := b.URL.Reveal()
	if path, ok := strings.CutPrefix(raw, "sqlite:"); ok {
		return "sqlite:" + path
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return Redacted
	}
	if u.User != nil {
		u.User = url.User(u.User.Username())
	}
	u.RawQuery, u.Fragment = "", ""
	return u.String()
}

// validateSQL reports keys of the broker sql that can't work.
func (p Profile) validateSQL(bad func(key string, value any, remedy string)) {
	if p.Broker.Kind != "sql" {
		return
	}
	if _, _, err := p.Broker.SQLDatabase(); err != nil {
		bad("broker.url", p.Broker.URL, err.Error())
	}
	if p.Broker.Prefix != "" {
		bad("broker.prefix", p.Broker.Prefix, "the broker sql has none: leave it empty, and give each system a database")
	}
	if p.Broker.SQL.PollInterval != 0 && p.Broker.SQL.PollInterval < time.Millisecond {
		bad("broker.sql.poll_interval", p.Broker.SQL.PollInterval.String(), "it must be 0 or 1ms or more")
	}
	if p.Broker.SQL.MaxOpenConns < 0 {
		bad("broker.sql.max_open_conns", p.Broker.SQL.MaxOpenConns, "it must not be negative")
	}
}
