package sqldb_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/sqldb"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
)

func openDB(t testing.TB, d dialect, dsn string) *sql.DB { return testenv.Open(t, d.driver, dsn) }

// Messages belong to the caller's transaction.
func TestPublisherFor(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		b := d.open(t, db, sqldb.Config{})
		ctx := context.Background()
		topic := unique("tx")
		tx, err := db.BeginTx(ctx, nil)
		require.NoError(t, err)
		require.ErrorContains(t, b.PublisherFor(tx).Publish(topic, msgs(0, 1, nil)...), "EnsureTopology")
		require.NoError(t, tx.Rollback())

		ensure(t, b, topic, "g")
		ch, _ := subscribe(t, b, topic, broker.SubscriberConfig{Group: "g"})
		tx, err = db.BeginTx(ctx, nil)
		require.NoError(t, err)
		require.NoError(t, b.PublisherFor(tx).Publish(topic, msgs(0, 1, nil)...))
		require.NoError(t, tx.Rollback())
		require.NoError(t, sqltx.Run(ctx, db, sqltx.Options{Dialect: d.dialect}, func(ctx context.Context, tx *sql.Tx) error {
			p := b.PublisherFor(tx)
			require.NoError(t, p.PublishBatch(ctx, topic, nil))
			require.NoError(t, p.PublishBatch(ctx, topic, msgs(1, 1200, nil)))
			return p.Close()
		}))
		require.Equal(t, 1199, len(ackAll(t, ch, 1199)))
		settles(t, b, topic, "g")
	})
}

// More than the parameters that one statement takes, and than one packet.
func TestLargeBatches(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		b := d.open(t, db, sqldb.Config{})
		topic := unique("large")
		publish(t, b, topic, msgs(0, 25_000, nil)...)
		require.EqualValues(t, 25_000, depth(t, b, topic))
		big := make([]*message.Message, 5)
		for i := range big {
			big[i] = message.NewMessage(strings.Repeat("b", i+1), []byte(strings.Repeat("\x00'\\\xff", 1<<20)))
		}
		other := unique("big")
		publish(t, b, other, big...)
		ch, _ := subscribe(t, b, other, broker.SubscriberConfig{Group: "g", Concurrency: 1})
		for _, want := range big {
			got := receive(t, ch)
			require.True(t, want.Equals(got))
			got.Ack()
		}
		limit := b.Features().MaxMessageBytes
		require.Positive(t, limit)
		if limit > 32<<20 {
			return
		}
		err := b.Publisher().PublishBatch(context.Background(), other, []*message.Message{
			message.NewMessage("fits", nil), message.NewMessage("too large", make([]byte, limit+1)),
		})
		var failed *broker.PublishError
		require.ErrorAs(t, err, &failed)
		require.Len(t, failed.Failed, 1)
		require.ErrorIs(t, failed.Failed[1], broker.ErrRejected)
		publish(t, b, other, message.NewMessage("at the limit", make([]byte, limit-100)))
	})
}

// A table that a stock publisher made with its defaults: JSON payloads and ids
// of 36 characters. What it can't hold is rejected by name, the rest is stored.
func TestStockDefaultTable(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d dialect, db *sql.DB) {
		if d.schema == nil {
			return
		}
		topic := unique("default")
		schema := stock.SchemaAdapter(stock.DefaultPostgreSQLSchema{})
		if d.dialect == sqltx.MySQL {
			schema = stock.DefaultMySQLSchema{}
		}
		pub, err := stock.NewPublisher(stock.BeginnerFromStdSQL(db), stock.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, watermill.NopLogger{})
		require.NoError(t, err)
		require.NoError(t, pub.Publish(topic, message.NewMessage("theirs", []byte(`{"a": 1}`))))

		b := d.open(t, db, sqldb.Config{})
		err = b.Publisher().PublishBatch(context.Background(), topic, []*message.Message{
			message.NewMessage("json", []byte(`{"b":2}`)),
			message.NewMessage("not json", []byte(`{`)),
			message.NewMessage(strings.Repeat("x", 37), []byte(`{}`)),
			message.NewMessage("json too", []byte(`[]`)),
		})
		var failed *broker.PublishError
		require.ErrorAs(t, err, &failed)
		require.Len(t, failed.Failed, 2)
		require.ErrorIs(t, failed.Failed[1], broker.ErrRejected)
		require.ErrorIs(t, failed.Failed[2], broker.ErrRejected)

		ch, _ := subscribe(t, b, topic, broker.SubscriberConfig{Group: "g", Concurrency: 1})
		var got []string
		for range 3 {
			m := receive(t, ch)
			got = append(got, m.UUID)
			require.NotEmpty(t, m.Payload)
			m.Ack()
		}
		require.Equal(t, []string{"theirs", "json", "json too"}, got)
		settles(t, b, topic, "g")
		for stored, err := range b.Admin().Browse(context.Background(), topic, time.Time{}) {
			require.NoError(t, err)
			require.WithinDuration(t, time.Now(), stored.PublishedAt, time.Minute)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	db := testenv.SQLite(t)
	for field, cfg := range map[string]sqldb.Config{
		"DB":            {Dialect: sqltx.SQLite},
		"Dialect":       {DB: db, Dialect: "oracle"},
		"PollInterval":  {DB: db, Dialect: sqltx.SQLite, PollInterval: time.Microsecond},
		"MaxHeld":       {DB: db, Dialect: sqltx.SQLite, MaxHeld: -1},
		"MaintainEvery": {DB: db, Dialect: sqltx.SQLite, MaintainEvery: -1},
		"CleanupBatch":  {DB: db, Dialect: sqltx.SQLite, CleanupBatch: -1},
	} {
		_, err := sqldb.Open(context.Background(), cfg)
		require.ErrorContains(t, err, field)
	}
	b, err := sqldb.Open(context.Background(), sqldb.Config{DB: db, Dialect: sqltx.SQLite, Logger: quiet})
	require.NoError(t, err)
	_, err = b.Subscriber(broker.SubscriberConfig{Group: "g", Consumer: strings.Repeat("c", 201)})
	require.ErrorContains(t, err, "Consumer")
	_, err = b.Admin().Delete(context.Background(), "t", "1-0")
	require.ErrorContains(t, err, "1-0")
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Ping(context.Background()), broker.ErrClosed)
	require.ErrorIs(t, b.Publisher().Publish("t", msgs(0, 1, nil)...), broker.ErrClosed)
	require.NoError(t, db.Ping(), "the database is the caller's")
}
