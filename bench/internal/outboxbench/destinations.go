package outboxbench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stockredis "github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	stocksql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/framework/broker/sqldb"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// destination is where relays publish, in the three ways.
type destination struct {
	name string
	// ours, stock and hand open a publisher on the database that also holds the
	// outbox; close ends it and removes what it has stored.
	ours  func(ctx context.Context, dsn string) (p broker.Publisher, close func(), err error)
	stock func(ctx context.Context, dsn string) (p message.Publisher, close func(), err error)
	hand  func(ctx context.Context, dsn string) (send batchSender, close func(), err error)
}

type batchSender func(ctx context.Context, msgs []*message.Message) error

func (b *bench) destinations() []destination {
	return []destination{paced("nothing", 0), b.toRedis(), b.toSQL(), paced("5 ms away", 5*time.Millisecond)}
}

// paced confirms every call after a pause.
func paced(name string, pause time.Duration) destination {
	p := pacedPublisher(pause)
	return destination{
		name:  name,
		ours:  func(context.Context, string) (broker.Publisher, func(), error) { return p, func() {}, nil },
		stock: func(context.Context, string) (message.Publisher, func(), error) { return p, func() {}, nil },
		hand: func(context.Context, string) (batchSender, func(), error) {
			return func(ctx context.Context, msgs []*message.Message) error { return p.PublishBatch(ctx, topic, msgs) }, func() {}, nil
		},
	}
}

type pacedPublisher time.Duration

func (p pacedPublisher) Publish(string, ...*message.Message) error {
	if p > 0 {
		time.Sleep(time.Duration(p))
	}
	return nil
}

func (p pacedPublisher) PublishBatch(_ context.Context, topic string, msgs []*message.Message) error {
	return p.Publish(topic, msgs...)
}
func (pacedPublisher) Close() error        { return nil }
func (pacedPublisher) KeepsKeyOrder() bool { return true }

func (b *bench) toRedis() destination {
	clean := func(key string) { b.redis.Unlink(context.Background(), key) }
	return destination{
		name: "Redis",
		ours: func(ctx context.Context, _ string) (broker.Publisher, func(), error) {
			r, err := redisstream.Open(ctx, redisstream.Config{URL: b.Redis, Prefix: b.prefix, Logger: quiet})
			if err != nil {
				return nil, nil, err
			}
			return r.Publisher(), func() { r.Close(); clean(b.prefix + topic) }, nil
		},
		stock: func(context.Context, string) (message.Publisher, func(), error) {
			p, err := stockredis.NewPublisher(stockredis.PublisherConfig{Client: b.redis}, watermill.NopLogger{})
			if err != nil {
				return nil, nil, err
			}
			// Close would close the client that is everybody's.
			return renamed{p, b.prefix + "stock"}, func() { clean(b.prefix + "stock") }, nil
		},
		hand: func(context.Context, string) (batchSender, func(), error) {
			key := b.prefix + "hand"
			var marshal stockredis.DefaultMarshallerUnmarshaller
			return func(ctx context.Context, msgs []*message.Message) error {
				_, err := b.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
					for _, m := range msgs {
						values, err := marshal.Marshal(key, m)
						if err != nil {
							return err
						}
						pipe.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: values})
					}
					return nil
				})
				return err
			}, func() { clean(key) }, nil
		},
	}
}

// renamed publishes everything to one topic.
type renamed struct {
	message.Publisher
	topic string
}

func (r renamed) Publish(_ string, msgs ...*message.Message) error {
	return r.Publisher.Publish(r.topic, msgs...)
}
func (renamed) Close() error { return nil }

func (b *bench) toSQL() destination {
	return destination{
		name: "SQL (the same Postgres)",
		ours: func(ctx context.Context, dsn string) (broker.Publisher, func(), error) {
			db, err := open(dsn)
			if err != nil {
				return nil, nil, err
			}
			s, err := sqldb.Open(ctx, sqldb.Config{DB: db, Dialect: sqltx.Postgres, Logger: quiet})
			if err != nil {
				db.Close()
				return nil, nil, err
			}
			return s.Publisher(), func() { s.Close(); db.Close() }, nil
		},
		stock: func(_ context.Context, dsn string) (message.Publisher, func(), error) {
			db, err := open(dsn)
			if err != nil {
				return nil, nil, err
			}
			p, err := stocksql.NewPublisher(stocksql.BeginnerFromStdSQL(db), stocksql.PublisherConfig{
				SchemaAdapter: stocksql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true}, watermill.NopLogger{})
			if err != nil {
				db.Close()
				return nil, nil, err
			}
			return renamed{p, "stock_destination"}, func() { db.Close() }, nil
		},
		hand: func(ctx context.Context, dsn string) (batchSender, func(), error) {
			pool, err := pgxpool.New(ctx, dsn)
			if err != nil {
				return nil, nil, err
			}
			_, err = pool.Exec(ctx, `CREATE TABLE hand_destination (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, uuid VARCHAR(36) NOT NULL,
 created_at TIMESTAMPTZ NOT NULL DEFAULT now(), payload BYTEA, metadata JSONB, transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id())`)
			if err != nil {
				pool.Close()
				return nil, nil, err
			}
			return func(ctx context.Context, msgs []*message.Message) error { return insertAll(ctx, pool, msgs) }, pool.Close, nil
		},
	}
}

func insertAll(ctx context.Context, pool *pgxpool.Pool, msgs []*message.Message) error {
	var q strings.Builder
	q.WriteString(`INSERT INTO hand_destination (uuid, payload, metadata) VALUES `)
	args := make([]any, 0, 3*len(msgs))
	for i, m := range msgs {
		if i > 0 {
			q.WriteByte(',')
		}
		fmt.Fprintf(&q, "($%d,$%d,$%d)", 3*i+1, 3*i+2, 3*i+3)
		args = append(args, m.UUID, []byte(m.Payload), m.Metadata)
	}
	_, err := pool.Exec(ctx, q.String(), args...)
	return err
}

// countedBatches counts what our relay has published.
type countedBatches struct {
	broker.Publisher
	m *meter
}

func (c countedBatches) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) error {
	err := c.Publisher.PublishBatch(ctx, topic, msgs)
	if err == nil {
		c.m.add(len(msgs))
	}
	return err
}

func (c countedBatches) KeepsKeyOrder() bool { return broker.KeepsKeyOrder(c.Publisher) }

// counted counts what a stock relay has published.
type counted struct {
	message.Publisher
	m *meter
}

func (c counted) Publish(topic string, msgs ...*message.Message) error {
	err := c.Publisher.Publish(topic, msgs...)
	if err == nil {
		c.m.add(len(msgs))
	}
	return err
}
