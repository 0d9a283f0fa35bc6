package sqldb_test

import (
	"context"
	"database/sql"
	"log/slog"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/brokertest"
	"github.com/headrace-go/headrace/framework/broker/sqldb"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
)

var quiet = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) {
	brokertest.Main(m, func(ctx context.Context, addr string) (broker.Broker, error) {
		kind, dsn, _ := strings.Cut(addr, " ")
		d := dialects[kind]
		db, err := sql.Open(d.driver, dsn)
		if err != nil {
			return nil, err
		}
		return sqldb.Open(ctx, sqldb.Config{DB: db, Dialect: d.dialect, Logger: quiet})
	})
}

// dialect is one of the databases under test.
type dialect struct {
	dialect sqltx.Dialect
	driver  string
	dsn     func(testing.TB) string
	// schema and offsets are the stock adapters; nil where there are none.
	schema  func() stock.SchemaAdapter
	offsets stock.OffsetsAdapter
}

var dialects = map[string]dialect{
	"postgres": {
		dialect: sqltx.Postgres, driver: "pgx", dsn: testenv.PostgresDSN,
		schema: func() stock.SchemaAdapter {
			return stock.DefaultPostgreSQLSchema{GeneratePayloadType: func(string) string { return "BYTEA" }}
		},
		offsets: stock.DefaultPostgreSQLOffsetsAdapter{},
	},
	"mysql": {
		dialect: sqltx.MySQL, driver: "mysql", dsn: testenv.MySQLDSN,
		schema: func() stock.SchemaAdapter {
			return stock.DefaultMySQLSchema{GeneratePayloadType: func(string) string { return "LONGBLOB" }}
		},
		offsets: stock.DefaultMySQLOffsetsAdapter{},
	},
	"sqlite": {dialect: sqltx.SQLite, driver: "sqlite", dsn: testenv.SQLiteDSN},
}

// each runs a test on every database.
func each(t *testing.T, run func(t *testing.T, d dialect, db *sql.DB)) {
	for name, d := range dialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, d, testenv.Open(t, d.driver, d.dsn(t)))
		})
	}
}

func (d dialect) open(t testing.TB, db *sql.DB, cfg sqldb.Config) *sqldb.Broker {
	t.Helper()
	cfg.DB, cfg.Dialect = db, d.dialect
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	b, err := sqldb.Open(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func (d dialect) table(topic string) string {
	name := sqldb.MessagesTable(d.dialect, topic)
	if d.dialect == sqltx.MySQL {
		return "`" + name + "`"
	}
	return `"` + name + `"`
}

func TestConformance(t *testing.T) {
	for name, d := range dialects {
		if d.dialect == sqltx.SQLite && raced {
			// SQLite's translated code is some fifty times slower there, so the
			// suite's tests wait for its one writer past their patience. `make test`
			// runs this part once more without the detector; the adapter's own code
			// is under it on the other databases.
			continue
		}
		t.Run(name, func(t *testing.T) {
			h := brokertest.Harness{Start: func(t *testing.T) *brokertest.Storage { return d.storage(t, name) }}
			if d.dialect == sqltx.MySQL {
				// Each claim of a few messages waits for the disk. TestBacklog_B09 has the
				// full 100,000 without reading them all.
				h.Backlog = 5_000
			}
			brokertest.Run(t, h)
		})
	}
}

func (d dialect) storage(t *testing.T, name string) *brokertest.Storage {
	dsn := d.dsn(t)
	s := &brokertest.Storage{}
	// A cut connection is what a client sees of a server that is gone.
	switch d.dialect {
	case sqltx.Postgres:
		p := testenv.NewProxy(t, testenv.PostgresAddr(t, dsn))
		dsn = testenv.WithAddr(t, dsn, p.Addr())
		s.Stop, s.Restart = p.Cut, p.Restore
	case sqltx.MySQL:
		p := testenv.NewProxy(t, testenv.MySQLAddr(t, dsn))
		dsn = testenv.MySQLWithAddr(t, dsn, p.Addr())
		s.Stop, s.Restart = p.Cut, p.Restore
	}
	db := testenv.Open(t, d.driver, dsn)
	if d.dialect == sqltx.SQLite {
		db.SetMaxOpenConns(8)
	} else {
		db.SetMaxOpenConns(30)
		db.SetMaxIdleConns(30)
	}
	s.Addr = name + " " + dsn
	s.Open = func(t testing.TB) broker.Broker { return d.open(t, db, sqldb.Config{}) }
	if d.dialect == sqltx.SQLite {
		// One broker, as a process has one: its writes queue in memory.
		one := d.open(t, db, sqldb.Config{})
		s.Open = func(testing.TB) broker.Broker { return one }
	}
	s.PutMalformed = func(t testing.TB, topic string, raw []byte) {
		require.NoError(t, d.open(t, db, sqldb.Config{}).EnsureTopology(context.Background(), broker.Subscription{Topic: topic, Group: "other"}))
		q := `INSERT INTO ` + d.table(topic) + ` (uuid, payload, metadata) VALUES (?, ?, '[1]')`
		switch d.dialect {
		case sqltx.Postgres:
			q = `INSERT INTO ` + d.table(topic) + ` (uuid, payload, metadata, transaction_id) VALUES ($1, $2, '[1]', pg_current_xact_id())`
		case sqltx.SQLite:
			q = `INSERT INTO ` + d.table(topic) + ` (uuid, payload, metadata, created_at) VALUES (?, ?, '{"a":', '2024-05-06T07:08:09+02:00')`
		}
		_, err := db.Exec(q, "malformed", raw)
		require.NoError(t, err)
	}
	if d.schema != nil {
		s.Stock = func(t testing.TB, group string) (message.Publisher, message.Subscriber) {
			return d.stock(t, db, group)
		}
	}
	return s
}

func (d dialect) stock(t testing.TB, db *sql.DB, group string) (message.Publisher, message.Subscriber) {
	t.Helper()
	pub, err := stock.NewPublisher(stock.BeginnerFromStdSQL(db), stock.PublisherConfig{SchemaAdapter: d.schema(), AutoInitializeSchema: true}, watermill.NopLogger{})
	require.NoError(t, err)
	sub, err := stock.NewSubscriber(stock.BeginnerFromStdSQL(db), stock.SubscriberConfig{
		ConsumerGroup: group, SchemaAdapter: d.schema(), OffsetsAdapter: d.offsets, InitializeSchema: true,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Close() })
	return pub, sub
}
