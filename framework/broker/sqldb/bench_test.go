package sqldb_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/brokertest"
	"github.com/headrace-go/headrace/framework/broker/sqldb"
	"github.com/headrace-go/headrace/framework/testenv"
)

// Run with:
//
//	go test ./framework/broker/sqldb -run '^$' -bench . -benchtime 20000x
//
// The stock adapter and ours work on one table in one run; ns/op is per message.

const perCall = 100

func benchEach(b *testing.B, run func(b *testing.B, d dialect, db *sql.DB)) {
	for _, name := range []string{"postgres", "mysql", "sqlite"} {
		b.Run(name, func(b *testing.B) {
			d := dialects[name]
			db := testenv.Open(b, d.driver, d.dsn(b))
			db.SetMaxOpenConns(20)
			db.SetMaxIdleConns(20)
			run(b, d, db)
		})
	}
}

func report(b *testing.B) { b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s") }

func BenchmarkPublish100(b *testing.B) {
	benchEach(b, func(b *testing.B, d dialect, db *sql.DB) {
		batch := brokertest.BenchMessages(perCall, 1)
		run := func(name string, pub message.Publisher) {
			b.Run(name, func(b *testing.B) {
				topic := "bench." + uuid.NewString()
				for left := b.N; left > 0; left -= perCall {
					if err := pub.Publish(topic, batch[:min(left, perCall)]...); err != nil {
						b.Fatal(err)
					}
				}
				report(b)
			})
		}
		run("headrace", d.open(b, db, sqldb.Config{}).Publisher())
		if d.schema != nil {
			pub, err := stock.NewPublisher(stock.BeginnerFromStdSQL(db), stock.PublisherConfig{SchemaAdapter: d.schema(), AutoInitializeSchema: true}, watermill.NopLogger{})
			if err != nil {
				b.Fatal(err)
			}
			run("stock", pub)
		}
	})
}

func BenchmarkConsume(b *testing.B) {
	benchEach(b, func(b *testing.B, d dialect, db *sql.DB) {
		ours := d.open(b, db, sqldb.Config{})
		run := func(name string, keys int, subscriber func(b *testing.B, group string) message.Subscriber) {
			b.Run(name, func(b *testing.B) {
				topic := "bench." + uuid.NewString()
				for left := b.N; left > 0; left -= 1000 {
					if err := ours.Publisher().PublishBatch(context.Background(), topic, brokertest.BenchMessages(min(left, 1000), max(keys, 1))); err != nil {
						b.Fatal(err)
					}
				}
				sub := subscriber(b, "g")
				b.ReportAllocs()
				b.ResetTimer()
				ch, err := sub.Subscribe(context.Background(), topic)
				if err != nil {
					b.Fatal(err)
				}
				for range b.N {
					(<-ch).Ack()
				}
				if err := sub.Close(); err != nil { // the acks belong to the work
					b.Fatal(err)
				}
				report(b)
			})
		}
		headrace := func(cfg broker.SubscriberConfig) func(*testing.B, string) message.Subscriber {
			return func(b *testing.B, group string) message.Subscriber {
				cfg.Group, cfg.Logger = group, quiet
				sub, err := ours.Subscriber(cfg)
				if err != nil {
					b.Fatal(err)
				}
				return sub
			}
		}
		run("headrace", 0, headrace(broker.SubscriberConfig{}))
		run("headrace-wide", 0, headrace(broker.SubscriberConfig{Concurrency: 50, MaxInFlight: 1000}))
		run("headrace-order", 500, headrace(broker.SubscriberConfig{Order: true, Concurrency: 50, MaxInFlight: 1000}))
		if d.schema != nil {
			run("stock", 0, func(b *testing.B, group string) message.Subscriber {
				sub, err := stock.NewSubscriber(stock.BeginnerFromStdSQL(db), stock.SubscriberConfig{
					ConsumerGroup: group, SchemaAdapter: d.schema(), OffsetsAdapter: d.offsets, InitializeSchema: true,
				}, watermill.NopLogger{})
				if err != nil {
					b.Fatal(err)
				}
				return sub
			})
		}
	})
}
