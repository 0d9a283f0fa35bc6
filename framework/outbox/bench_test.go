package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
)

// countingBroker confirms everything after a delay.
type countingBroker struct {
	n     atomic.Int64
	delay time.Duration
}

func (b *countingBroker) Publish(topic string, msgs ...*message.Message) error {
	return b.PublishBatch(context.Background(), topic, msgs)
}
func (b *countingBroker) Close() error { return nil }
func (b *countingBroker) PublishBatch(_ context.Context, _ string, msgs []*message.Message) error {
	if b.delay > 0 {
		time.Sleep(b.delay)
	}
	b.n.Add(int64(len(msgs)))
	return nil
}

// event makes a message as services publish it: about 600 bytes, with the
// usual metadata.
func event(n int) Message {
	body, _ := json.Marshal(map[string]any{"order_id": fmt.Sprint("order-", n%5000), "note": strings.Repeat("x", 500)})
	m := message.NewMessage(uuid.NewString(), body)
	m.Metadata = message.Metadata{
		events.KeyID: m.UUID, events.KeyType: "order.placed", events.KeySource: "orders", events.KeyVersion: "1.0",
		events.KeyTime: "2026-01-02T03:04:05.678Z", events.KeyCorrelation: uuid.NewString(), events.KeyCausation: uuid.NewString(),
		events.KeyTraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", events.KeyOrdering: fmt.Sprint("order-", n%5000),
	}
	return Message{Topic: "order.placed", Message: m}
}

func fill(b testing.TB, e env, n int) {
	b.Helper()
	w := e.writer(b, nil)
	for at := 0; at < n; at += 1000 {
		batch := make([]Message, 0, 1000)
		for i := at; i < min(at+1000, n); i++ {
			batch = append(batch, event(i))
		}
		e.write(b, w, batch...)
	}
}

// BenchmarkRelay drains a backlog into a broker that confirms at once, or after
// 5 ms. It reports rows per second, and the rates of the first and the last tenth.
func BenchmarkRelay(b *testing.B) {
	for _, d := range []sqltx.Dialect{sqltx.Postgres, sqltx.MySQL, sqltx.SQLite} {
		for _, delay := range []time.Duration{0, 5 * time.Millisecond} {
			b.Run(fmt.Sprintf("%s/delay=%s", d, delay), func(b *testing.B) {
				e := newEnv(b, d)
				fill(b, e, b.N)
				pub := &countingBroker{delay: delay}
				r, err := NewRelay(RelayConfig{DB: e.db, Dialect: d, Publisher: pub, Logger: quiet()})
				require.NoError(b, err)
				b.ResetTimer()
				start := time.Now()
				ctx, cancel := context.WithCancel(context.Background())
				var first, last time.Duration
				var wg sync.WaitGroup
				wg.Go(func() { _ = r.Run(ctx) })
				for first == 0 || last == 0 {
					if n := pub.n.Load(); first == 0 && n >= int64(b.N/10) {
						first = time.Since(start)
					} else if last == 0 && n >= int64(b.N-b.N/10) {
						last = time.Since(start)
					}
					time.Sleep(200 * time.Microsecond)
				}
				require.NoError(b, r.Flush(ctx))
				took := time.Since(start)
				b.StopTimer()
				cancel()
				wg.Wait()
				require.Equal(b, int64(b.N), pub.n.Load())
				b.ReportMetric(float64(b.N)/took.Seconds(), "rows/s")
				b.ReportMetric(float64(b.N/10)/first.Seconds(), "first-tenth-rows/s")
				b.ReportMetric(float64(b.N/10)/(took-last).Seconds(), "last-tenth-rows/s")
			})
		}
	}
}

// BenchmarkWrite commits transactions that insert one event, beside ones that
// insert the same bytes by hand.
func BenchmarkWrite(b *testing.B) {
	for _, d := range []sqltx.Dialect{sqltx.Postgres, sqltx.MySQL, sqltx.SQLite} {
		for _, writers := range []int{1, 8} {
			for _, by := range []string{"hand", "writer"} {
				b.Run(fmt.Sprintf("%s/writers=%d/%s", d, writers, by), func(b *testing.B) {
					e := newEnv(b, d)
					w := e.writer(b, nil)
					insert := `INSERT INTO ` + schema.OutboxTable + ` (uuid, payload, shard, ordering_key) VALUES ($1, $2, $3, $4)`
					var next atomic.Int64
					var wg sync.WaitGroup
					b.ResetTimer()
					for range writers {
						wg.Go(func() {
							for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
								m := event(int(i))
								var err error
								if by == "writer" {
									err = sqltx.Run(context.Background(), e.db, sqltx.Options{Dialect: d}, func(ctx context.Context, tx *sql.Tx) error {
										return w.Write(ctx, tx, m)
									})
								} else {
									err = byHand(e.db, d.Rebind(insert), m)
								}
								if err != nil {
									b.Error(err)
									return
								}
							}
						})
					}
					wg.Wait()
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tx/s")
				})
			}
		}
	}
}

func byHand(db *sql.DB, insert string, m Message) error {
	body, err := json.Marshal(envelope{DestinationTopic: m.Topic, UUID: m.Message.UUID, Payload: m.Message.Payload, Metadata: m.Message.Metadata})
	if err != nil {
		return err
	}
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	key := m.Message.Metadata[events.KeyOrdering]
	if _, err := tx.Exec(insert, m.Message.UUID, body, shardOf(key), key); err != nil {
		return err
	}
	return tx.Commit()
}

func BenchmarkDecodeEnvelope(b *testing.B) {
	m := event(1)
	data := appendEnvelope(nil, m.Topic, m.Message)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := decodeEnvelope(data); err != nil {
			b.Fatal(err)
		}
	}
}
