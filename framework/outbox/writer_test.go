package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
)

// What could never be sent, or would arrive altered, is refused before the
// transaction has it, and names what is wrong.
func TestWriteRefuses(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		w, err := NewWriter(WriterConfig{Dialect: e.dialect, MaxBytes: 100, MaxMetadata: 3})
		require.NoError(t, err)
		with := func(change func(m *Message)) Message {
			m := msg("orders", "k", 0)
			change(&m)
			return m
		}
		for want, bad := range map[string]Message{
			"is nil":                     {Topic: "orders"},
			"has no topic":               with(func(m *Message) { m.Topic = "" }),
			"has no UUID":                with(func(m *Message) { m.Message.UUID = "" }),
			"more than 100":              with(func(m *Message) { m.Message.Payload = make([]byte, 101) }),
			"metadata entries":           with(func(m *Message) { m.Message.Metadata["a"], m.Message.Metadata["b"] = "", "" }),
			"without a key":              with(func(m *Message) { m.Message.Metadata[""] = "x" }),
			"\"nul\" holds a NUL":        with(func(m *Message) { m.Message.Metadata["nul"] = "a\x00b" }),
			"\"bytes\" holds a NUL or":   with(func(m *Message) { m.Message.Metadata["bytes"] = "\xff" }),
			"its topic \"a\\nb\" holds":  with(func(m *Message) { m.Topic = "a\nb" }),
			"its topic has 256 bytes":    with(func(m *Message) { m.Topic = strings.Repeat("x", 256) }),
			"its UUID \"\\xff\" is not":  with(func(m *Message) { m.Message.UUID = "\xff" }),
			"its ordering key has 513":   with(func(m *Message) { m.Message.Metadata[events.KeyOrdering] = strings.Repeat("k", 513) }),
			"its UUID has 256 bytes":     with(func(m *Message) { m.Message.UUID = strings.Repeat("u", 256) }),
			"its UUID \"a\\x00b\" holds": with(func(m *Message) { m.Message.UUID = "a\x00b" }),
		} {
			err := sqltx.Run(t.Context(), e.db, sqltx.Options{Dialect: e.dialect}, func(ctx context.Context, tx *sql.Tx) error {
				err := w.Write(ctx, tx, msg("orders", "k", 0), bad)
				require.ErrorIs(t, err, ErrUnsendable)
				require.ErrorContains(t, err, want)
				return nil // the transaction is still good
			})
			require.NoError(t, err, want)
		}
		require.Zero(t, e.count(t, "1=1"))
	})
}

// Any payload bytes, long ids and thousands of messages in one call arrive.
func TestWriteMany(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		w := e.writer(t, nil)
		require.NoError(t, w.Write(t.Context(), e.db))
		var msgs []Message
		for i := range 2501 {
			msgs = append(msgs, msg("orders", fmt.Sprint("k", i%10), i/10))
		}
		msgs = append(msgs, Message{Topic: "orders", Message: message.NewMessage(strings.Repeat("long-id-", 10), []byte("\x00\xff"))})
		e.write(t, w, msgs...)
		b := newFakeBroker()
		require.NoError(t, e.relay(t, b).Flush(t.Context()))
		requireOnce(t, b.all(), 2502)
		requireOrder(t, b.all())
		long := false
		for _, p := range b.all() {
			long = long || p.UUID == strings.Repeat("long-id-", 10) && p.Payload == "\x00\xff"
		}
		require.True(t, long)
	})
}

// The relay is woken after a commit that wrote something, and only then.
func TestWakeAfterCommit(t *testing.T) {
	t.Parallel()
	e := newEnv(t, sqltx.SQLite)
	woken := 0
	w := e.writer(t, func() { woken++ })
	boom := errors.New("no")
	opts := sqltx.Options{Dialect: e.dialect}
	require.ErrorIs(t, sqltx.Run(t.Context(), e.db, opts, func(ctx context.Context, tx *sql.Tx) error {
		require.NoError(t, w.Write(ctx, tx, msg("a", "", 0)))
		return boom
	}), boom)
	require.NoError(t, sqltx.Run(t.Context(), e.db, opts, func(ctx context.Context, tx *sql.Tx) error { return w.Write(ctx, tx) }))
	require.Zero(t, woken)
	require.NoError(t, sqltx.Run(t.Context(), e.db, opts, func(ctx context.Context, tx *sql.Tx) error {
		defer func() { require.Zero(t, woken, "not before the commit") }()
		m := msg("a", "", 0)
		m.Message.SetContext(ctx)
		pub := w.PublisherFor(tx)
		require.NoError(t, pub.Publish("a"))
		require.NoError(t, pub.Publish("a", m.Message))
		return pub.Close()
	}))
	require.Equal(t, 1, woken)
	w.Wake()
	require.Equal(t, 2, woken)
	require.Equal(t, 1, e.count(t, "1=1"))
}

// Rows without a key spread over the shards, so that relays share them; rows of
// a key stay in one.
func TestShards(t *testing.T) {
	t.Parallel()
	e := newEnv(t, sqltx.Postgres)
	w := e.writer(t, nil)
	var msgs []Message
	for i := range 500 {
		msgs = append(msgs, msg("t", "", 0), msg("t", "one", i))
	}
	e.write(t, w, msgs...)
	var spread, single int
	require.NoError(t, e.db.QueryRow(`SELECT count(DISTINCT shard) FROM watermill_headrace_outbox WHERE ordering_key IS NULL`).Scan(&spread))
	require.NoError(t, e.db.QueryRow(`SELECT count(DISTINCT shard) FROM watermill_headrace_outbox WHERE ordering_key = 'one'`).Scan(&single))
	require.Equal(t, shards, spread)
	require.Equal(t, 1, single)
	// Rows in tables were placed by this: it must not change.
	require.Equal(t, []int{shardOf("one"), shardOf("order-1"), shardOf("")}, []int{8, 2, 9})
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	_, err := NewWriter(WriterConfig{Table: "a b", MaxBytes: -1, MaxMetadata: -1})
	for _, want := range []string{"unknown dialect", "Table", "MaxBytes", "MaxMetadata"} {
		require.ErrorContains(t, err, want)
	}
	_, err = NewRelay(RelayConfig{Table: "a;b", BatchSize: -1, Parallelism: 17, PublishTimeout: -1, BackoffBase: 2, BackoffCap: 1, Retention: -1})
	for _, want := range []string{"unknown dialect", "DB is nil", "Publisher is nil", "Table", "BatchSize", "Parallelism", "PublishTimeout", "BackoffCap", "Retention"} {
		require.ErrorContains(t, err, want)
	}
	e := newEnv(t, sqltx.Postgres)
	e.db.SetMaxOpenConns(2)
	_, err = NewRelay(RelayConfig{DB: e.db, Dialect: e.dialect, Publisher: newFakeBroker()})
	require.ErrorContains(t, err, "allow 3 or more")
}
