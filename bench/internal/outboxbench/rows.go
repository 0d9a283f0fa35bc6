package outboxbench

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/outbox"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
)

const topic = "order.placed"

// event makes a message as services publish it, with the usual metadata. Its
// ordering keys are those of 5,000 orders.
func event(n, payload int) *message.Message {
	key := fmt.Sprint("order-", n%5000)
	body, _ := json.Marshal(map[string]string{"order_id": key, "note": strings.Repeat("x", max(payload-50, 1))})
	m := message.NewMessage(events.NewID(), body)
	m.Metadata = message.Metadata{
		events.KeyID: m.UUID, events.KeyType: topic, events.KeySource: "orders", events.KeyVersion: "1.0",
		events.KeyTime: "2026-01-02T03:04:05.678Z", events.KeyCorrelation: events.NewID(), events.KeyCausation: events.NewID(),
		events.KeyTraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", events.KeyOrdering: key,
	}
	return m
}

// fill writes n rows into the outbox.
func fill(ctx context.Context, db *sql.DB, n, payload int) error {
	w, err := outbox.NewWriter(outbox.WriterConfig{Dialect: sqltx.Postgres})
	if err != nil {
		return err
	}
	for at := 0; at < n; at += 1000 {
		var msgs []outbox.Message
		for i := at; i < min(at+1000, n); i++ {
			msgs = append(msgs, outbox.Message{Topic: topic, Message: event(i, payload)})
		}
		if err := sqltx.Run(ctx, db, sqltx.Options{Dialect: sqltx.Postgres}, func(ctx context.Context, tx *sql.Tx) error {
			return w.Write(ctx, tx, msgs...)
		}); err != nil {
			return err
		}
	}
	_, err = db.ExecContext(ctx, `ANALYZE watermill_headrace_outbox`)
	return err
}

// envelope is what Watermill's forwarder stores.
type envelope struct {
	DestinationTopic string            `json:"destination_topic"`
	UUID             string            `json:"uuid"`
	Payload          []byte            `json:"payload"`
	Metadata         map[string]string `json:"metadata"`
}

// unwrap is the ceiling's decoder: it takes exactly what fill writes and looks no
// closer than it must.
func unwrap(data []byte) (*message.Message, error) {
	s := string(data)
	next := func(before, after string) (string, bool) {
		_, rest, ok := strings.Cut(s, before)
		if !ok {
			return "", false
		}
		v, rest, ok := strings.Cut(rest, after)
		s = rest
		return v, ok
	}
	uuid, ok1 := next(`"uuid":"`, `"`)
	text, ok2 := next(`"payload":"`, `"`)
	meta, ok3 := next(`"metadata":{"`, `"}}`)
	if !ok1 || !ok2 || !ok3 {
		return nil, fmt.Errorf("not an envelope: %.80q", data)
	}
	payload, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	m := message.NewMessage(uuid, payload)
	m.Metadata = make(message.Metadata, 10)
	for pair := range strings.SplitSeq(meta, `","`) {
		k, v, _ := strings.Cut(pair, `":"`)
		m.Metadata[k] = v
	}
	return m, nil
}
