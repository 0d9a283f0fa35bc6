package brokerbench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/headrace-go/headrace/bench/internal/measure"
	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/sqldb"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// dialect is one of the SQL databases.
type dialect struct {
	name    string
	dialect sqltx.Dialect
	server  string
	open    func(server, database string) (*sql.DB, error)
	drop    string // behind DROP DATABASE
	schema  stock.SchemaAdapter
	offsets stock.OffsetsAdapter
}

func postgres(server string) dialect {
	return dialect{
		name: "Postgres", dialect: sqltx.Postgres, server: server,
		open: measure.OpenPostgres, drop: measure.DropForced,
		schema:  stock.DefaultPostgreSQLSchema{GeneratePayloadType: func(string) string { return "BYTEA" }},
		offsets: stock.DefaultPostgreSQLOffsetsAdapter{},
	}
}

func mysql(server string) dialect {
	return dialect{
		name: "MySQL or MariaDB", dialect: sqltx.MySQL, server: server,
		open: func(server, database string) (*sql.DB, error) {
			cfg, err := mysqldriver.ParseDSN(server)
			if err != nil {
				return nil, errors.New("the address is none that the driver knows (user:password@tcp(host:port)/)")
			}
			cfg.DBName, cfg.ParseTime = database, true
			return sql.Open("mysql", cfg.FormatDSN())
		},
		schema:  stock.DefaultMySQLSchema{GeneratePayloadType: func(string) string { return "LONGBLOB" }},
		offsets: stock.DefaultMySQLOffsetsAdapter{},
	}
}

// database makes one of the run's own.
func (b *bench) database(ctx context.Context, d dialect) (*sql.DB, error) {
	name, drop, err := measure.Database(ctx, func(name string) (*sql.DB, error) { return d.open(d.server, name) }, d.drop)
	if err != nil {
		return nil, err
	}
	b.onClose(drop)
	db, err := d.open(d.server, name)
	if err != nil {
		return nil, err
	}
	b.onClose(func() { _ = db.Close() })
	db.SetMaxOpenConns(30)
	db.SetMaxIdleConns(30)
	return db, schema.Ensure(ctx, db, d.dialect, quiet)
}

func (b *bench) sqlSubjects(ctx context.Context, d dialect) ([]subject, error) {
	db, err := b.database(ctx, d)
	if err != nil {
		return nil, err
	}
	ours, err := sqldb.Open(ctx, sqldb.Config{DB: db, Dialect: d.dialect, Logger: quiet})
	if err != nil {
		return nil, err
	}
	b.onClose(func() { _ = ours.Close() })
	beginner := stock.BeginnerFromStdSQL(db)
	pub, err := stock.NewPublisher(beginner, stock.PublisherConfig{SchemaAdapter: d.schema, AutoInitializeSchema: true}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	name := func() string { return "t" + strings.ReplaceAll(events.NewID(), "-", "") }
	filled := func(run func(ctx context.Context, n int, m *meter, topic string) error) job {
		return func(ctx context.Context, n int, m *meter) error {
			topic := name()
			if err := fill(ctx, ours.Publisher(), topic, n); err != nil {
				return err
			}
			return run(ctx, n, m, topic)
		}
	}
	stockConsume := filled(func(ctx context.Context, n int, m *meter, topic string) error {
		sub, err := stock.NewSubscriber(beginner, stock.SubscriberConfig{
			ConsumerGroup: group, SchemaAdapter: d.schema, OffsetsAdapter: d.offsets, InitializeSchema: true,
		}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		return draining(ctx, n, m, sub, topic, false)
	})
	wide := func(c framework.Config) framework.Config {
		c.Profile.Delivery.Concurrency, c.Profile.Delivery.MaxInFlight = 50, 500
		return c
	}
	return []subject{
		{
			broker: d.name, same: true, what: "publish", share: 5,
			ours: func(ctx context.Context, n int, m *meter) error {
				topic := name()
				if err := ours.EnsureTopology(ctx, broker.Subscription{Topic: topic, Group: group}); err != nil {
					return err
				}
				return publishing(n, m, func(msgs []*message.Message) error { return ours.Publisher().PublishBatch(ctx, topic, msgs) })
			},
			stock: func(ctx context.Context, n int, m *meter) error {
				topic := name()
				if err := pub.Publish(topic, message.NewMessage("first", nil)); err != nil {
					return err
				}
				return publishing(n, m, func(msgs []*message.Message) error { return pub.Publish(topic, msgs...) })
			},
		},
		{
			broker: d.name, same: true, what: "consume and ack", share: 5,
			ours: filled(func(ctx context.Context, n int, m *meter, topic string) error {
				sub, err := ours.Subscriber(broker.SubscriberConfig{Group: group, Logger: quiet})
				if err != nil {
					return err
				}
				return draining(ctx, n, m, sub, topic, true)
			}),
			stock: stockConsume,
			hand: filled(func(ctx context.Context, n int, m *meter, topic string) error {
				return b.handSQLConsume(ctx, n, m, db, d, topic)
			}),
		},
		{
			broker: d.name, same: true, what: "the same with the whole stack, duplicates known in memory", share: 5,
			ours: filled(func(ctx context.Context, n int, m *meter, topic string) error {
				return app(ctx, n, m, wide(withStack(ours, middleware.NewMemoryDedup(middleware.MemoryDedupConfig{}))), topic, plain)
			}),
			stock: stockConsume,
		},
		{
			broker: d.name, same: true, what: "the same with the whole stack, each handler in a transaction with its inbox row", share: 10,
			ours: filled(func(ctx context.Context, n int, m *meter, topic string) error {
				c := wide(withStack(ours, nil))
				c.DB, c.Dialect = db, d.dialect
				return app(ctx, n, m, c, topic, func(a *framework.App, t events.Type[placed], handled func()) {
					framework.HandleTx(a, t, "count", func(ctx context.Context, tx *sql.Tx, _ events.Event[placed]) error {
						sqltx.AfterCommit(ctx, handled)
						return nil
					}, framework.Group("g"+topic))
				})
			}),
			stock: stockConsume,
		},
	}, nil
}

// handSQLConsume reads a hundred rows at a time past an offset, which it moves once
// it has them: at least once, in one consumer.
func (b *bench) handSQLConsume(ctx context.Context, n int, m *meter, db *sql.DB, d dialect, topic string) error {
	quoted, bind := `"watermill_`+topic+`"`, func(i int) string { return fmt.Sprint("$", i) }
	if d.dialect == sqltx.MySQL {
		quoted, bind = "`watermill_"+topic+"`", func(int) string { return "?" }
	}
	offsets := "hand_" + topic
	if _, err := db.ExecContext(ctx, "CREATE TABLE "+offsets+" (at BIGINT NOT NULL)"); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "INSERT INTO "+offsets+" VALUES (0)"); err != nil {
		return err
	}
	read := "SELECT " + quotedOffset(d) + ", payload, metadata FROM " + quoted + " WHERE " + quotedOffset(d) + " > " + bind(1) + " ORDER BY 1 LIMIT 100"
	move := "UPDATE " + offsets + " SET at = " + bind(1)
	m.start()
	defer m.stop()
	last := int64(-1)
	for n > 0 {
		got, next, err := readRows(ctx, db, read, last)
		if err != nil {
			return err
		}
		if got == 0 {
			return errors.New("the table ended early")
		}
		last = next
		if _, err := db.ExecContext(ctx, move, last); err != nil {
			return err
		}
		n -= got
	}
	return nil
}

// readRows decodes the rows past last; it returns how many there were and the
// offset of the last one.
func readRows(ctx context.Context, db *sql.DB, query string, last int64) (n int, end int64, err error) {
	rows, err := db.QueryContext(ctx, query, last)
	if err != nil {
		return 0, last, err
	}
	defer rows.Close()
	for rows.Next() {
		var payload, metadata []byte
		if err := rows.Scan(&last, &payload, &metadata); err != nil {
			return n, last, err
		}
		if _, err := decodeMetadata(metadata); err != nil {
			return n, last, err
		}
		n++
	}
	return n, last, rows.Err()
}

func quotedOffset(d dialect) string {
	if d.dialect == sqltx.MySQL {
		return "`offset`"
	}
	return `"offset"`
}
