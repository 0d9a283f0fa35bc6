package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/outbox"
	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// printer stands for a broker's publisher.
type printer struct{}

func (printer) Publish(topic string, msgs ...*message.Message) error {
	return printer{}.PublishBatch(context.Background(), topic, msgs)
}

func (printer) PublishBatch(_ context.Context, topic string, msgs []*message.Message) error {
	for _, m := range msgs {
		fmt.Println("published", m.UUID, "to", topic)
	}
	return nil
}

func (printer) Close() error { return nil }

// A message is written with the business rows and published once they have
// committed.
func Example() {
	ctx := context.Background()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if err := schema.Ensure(ctx, db, sqltx.SQLite, quiet); err != nil {
		fmt.Println(err)
		return
	}
	relay, err := outbox.NewRelay(outbox.RelayConfig{DB: db, Dialect: sqltx.SQLite, Publisher: printer{}, Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	writer, err := outbox.NewWriter(outbox.WriterConfig{Dialect: sqltx.SQLite, OnCommit: relay.Wake})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = sqltx.Run(ctx, db, sqltx.Options{Dialect: sqltx.SQLite}, func(ctx context.Context, tx *sql.Tx) error {
		// ... the business rows ...
		return writer.Write(ctx, tx, outbox.Message{Topic: "order.placed", Message: message.NewMessage("event-1", []byte(`{}`))})
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("committed")
	if err := relay.Flush(ctx); err != nil { // a service has relay.Run(ctx) instead
		fmt.Println(err)
		return
	}
	stats, err := relay.Stats(ctx)
	fmt.Println(stats, err)
	// Output:
	// committed
	// published event-1 to order.placed
	// backlog 0 (0 held back), oldest 0s, parked 0 <nil>
}
