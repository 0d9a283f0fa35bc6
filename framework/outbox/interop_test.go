package outbox

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// A stock forwarder drains what Writer wrote: every message, unchanged.
func TestStockForwarderDrainsOurs(t *testing.T) {
	t.Parallel()
	e := newEnv(t, sqltx.Postgres)
	w := e.writer(t, nil)
	want := map[string]Message{}
	for i := range 30 {
		m := msg(fmt.Sprint("topic-", i%3), fmt.Sprint("k", i%5), i/5)
		switch i {
		case 7:
			m.Message.Payload = []byte{0, 1, 0xff, '"', '\n'}
		case 8:
			m.Message.Payload = nil
		case 9:
			m.Message.Metadata.Set("text", "a \"quoted\" \\ <b> ünïcödé \t line\n")
		}
		want[m.Message.UUID] = m
		e.write(t, w, m)
	}
	pause := 10 * time.Millisecond
	sub, err := wsql.NewSubscriber(wsql.BeginnerFromStdSQL(e.db), wsql.SubscriberConfig{
		SchemaAdapter:  wsql.PostgreSQLQueueSchema{SubscribeBatchSize: 1},
		OffsetsAdapter: wsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
		PollInterval:   pause,
		ResendInterval: pause,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	b := newFakeBroker()
	f, err := forwarder.NewForwarder(sub, b, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: schema.OutboxTopic})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- f.Run(t.Context()) }()
	got := b.await(t, 30)
	eventually(t, "it has acked all of them", func() bool { return e.count(t, "1=1") == 0 })
	require.NoError(t, f.Close())
	require.NoError(t, <-done)
	requireOnce(t, got, 30)
	for _, p := range got {
		m := want[p.UUID]
		require.Equal(t, m.Topic, p.Topic)
		require.Equal(t, string(m.Message.Payload), p.Payload)
		require.Equal(t, m.Message.Metadata, p.Metadata)
	}
}

// Our relay publishes what a stock publisher wrote, in its order, beside our own.
func TestRelayDrainsStockPublisher(t *testing.T) {
	t.Parallel()
	e := newEnv(t, sqltx.Postgres)
	tx, err := e.db.Begin()
	require.NoError(t, err)
	pub, err := wsql.NewPublisher(wsql.TxFromStdSQL(tx), wsql.PublisherConfig{SchemaAdapter: wsql.PostgreSQLQueueSchema{}}, watermill.NopLogger{})
	require.NoError(t, err)
	stock := forwarder.NewPublisher(pub, forwarder.PublisherConfig{ForwarderTopic: schema.OutboxTopic})
	want := map[string]*message.Message{}
	for i := range 20 {
		m := msg("orders", "stock", i).Message
		m.Metadata.Set("text", "a \"quoted\" <b> ünïcödé \n")
		want[m.UUID] = m
		require.NoError(t, stock.Publish("orders", m))
	}
	require.NoError(t, stock.Close())
	require.NoError(t, tx.Commit())
	b := newFakeBroker()
	r := e.relay(t, b)
	e.write(t, e.writer(t, nil), msg("orders", "ours", 0))
	require.NoError(t, r.Flush(t.Context()))
	requireOnce(t, b.all(), 21)
	requireOrder(t, b.all())
	for _, p := range b.all() {
		if m, ok := want[p.UUID]; ok {
			require.Equal(t, string(m.Payload), p.Payload)
			require.Equal(t, m.Metadata, p.Metadata)
		}
	}
	require.Zero(t, e.count(t, "1=1"))
}

// The envelope is what the forwarder's own encoding gives and takes.
func TestEnvelope(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]*message.Message{
		"plain":    {UUID: uuid.NewString(), Payload: []byte(`{"a":1}`), Metadata: message.Metadata{"b": "2", "a": "1"}},
		"empty":    {UUID: "u", Payload: []byte{}, Metadata: message.Metadata{}},
		"nil":      {UUID: "u"},
		"escapes":  {UUID: `u"\`, Payload: []byte("x"), Metadata: message.Metadata{"k\n": "v\x01\"\\"}},
		"unicode":  {UUID: "ü", Payload: []byte("\xff\x00"), Metadata: message.Metadata{"ключ": "значение \u2028 😀"}},
		"brackets": {UUID: "u", Payload: []byte("}"), Metadata: message.Metadata{"}": `{"`, "": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours := appendEnvelope(nil, "the.topic", m)
			require.True(t, json.Valid(ours), string(ours))
			stock, err := json.Marshal(envelope{"the.topic", m.UUID, m.Payload, m.Metadata})
			require.NoError(t, err)
			var a, b envelope
			require.NoError(t, json.Unmarshal(ours, &a))
			require.NoError(t, json.Unmarshal(stock, &b))
			if b.Metadata == nil {
				b.Metadata = map[string]string{}
			}
			require.Equal(t, b, a)
			for _, data := range [][]byte{ours, stock} {
				topic, got, err := decodeEnvelope(data)
				require.NoError(t, err)
				require.Equal(t, "the.topic", topic)
				require.Equal(t, m.UUID, got.UUID)
				require.Equal(t, m.Payload, got.Payload)
				require.Len(t, got.Metadata, len(m.Metadata))
				for k, v := range m.Metadata {
					require.Equal(t, v, got.Metadata[k])
				}
			}
		})
	}
}

// FuzzDecodeEnvelope: the quick decoder agrees with encoding/json on whatever it
// takes, and neither panics.
func FuzzDecodeEnvelope(f *testing.F) {
	for _, s := range []string{
		`{"destination_topic":"t","uuid":"u","payload":"eA==","metadata":{"a":"b","c":"d"}}`,
		`{"destination_topic":"t","uuid":"u","payload":null,"metadata":null}`,
		`{"destination_topic":"t","uuid":"u","payload":"","metadata":{}}`,
		`{"destination_topic":"t","uuid":"u","payload":"eA=","metadata":{"a":"b",}}`,
		`{"destination_topic":"t","uuid":"u","payload":"eA==","metadata":{"a":"b"}}x`,
		`{"destination_topic":"","uuid":"u","payload":"e\nA==","metadata":{"a":"\u0041"}}`,
		`null`, ``, `[]`, `{"destination_topic":"t`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		topic, got, ok := decodePlain(data)
		_, _, err := decodeEnvelope(data)
		if !ok {
			return
		}
		require.NoError(t, err)
		var e envelope
		require.NoError(t, json.Unmarshal(data, &e), "%q", data)
		require.Equal(t, e.DestinationTopic, topic)
		require.Equal(t, e.UUID, got.UUID)
		require.Equal(t, string(e.Payload), string(got.Payload))
		require.Len(t, got.Metadata, len(e.Metadata))
		for k, v := range e.Metadata {
			require.Equal(t, v, got.Metadata[k])
		}
	})
}
