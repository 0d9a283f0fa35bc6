package deadletter_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/memory"
	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/framework/broker/sqldb"
	"github.com/headrace-go/headrace/framework/broker/sqs"
	"github.com/headrace-go/headrace/framework/deadletter"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const group = "things.count"

// kinds are the brokers that every test of onBrokers runs on.
var kinds = map[string]func(*testing.T) broker.Broker{
	"memory": func(t *testing.T) broker.Broker {
		b := memory.New(memory.Config{})
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b
	},
	"redisstream": func(t *testing.T) broker.Broker {
		b, err := redisstream.Open(context.Background(), redisstream.Config{URL: testenv.Redis(t).URL(), Prefix: "t[1]*:", Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b
	},
	"postgres": func(t *testing.T) broker.Broker { return openSQL(t, testenv.Postgres(t), sqltx.Postgres) },
	"sqlite":   func(t *testing.T) broker.Broker { return openSQL(t, testenv.SQLite(t), sqltx.SQLite) },
}

func openSQL(t *testing.T, db *sql.DB, d sqltx.Dialect) broker.Broker {
	b, err := sqldb.Open(context.Background(), sqldb.Config{DB: db, Dialect: d, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// cloudOf is SQS, which keeps no order, tells no topics, and looks at a queue by
// receiving from it, which takes seconds: few tests run on it.
func cloudOf(t *testing.T, fifo bool) broker.Broker {
	t.Helper()
	b, err := sqs.Open(context.Background(), sqs.Config{
		Mode: sqs.ModeSQS, FIFO: fifo, Endpoint: testenv.AWS(t).Endpoint(), Prefix: "dlq" + strings.ReplaceAll(events.NewID(), "-", "")[16:] + "-",
		Topology: sqs.TopologyEnsure, WaitTime: time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func onBrokers(t *testing.T, test func(*testing.T, *desk)) {
	t.Parallel()
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newDesk(t, open(t)))
		})
	}
}

// desk is one queue on a broker that can be made to fail.
type desk struct {
	*deadletter.Queue
	t      *testing.T
	broker *faulty
	now    time.Time

	mu      sync.Mutex
	entries []deadletter.Entry
}

func newDesk(t *testing.T, b broker.Broker) *desk {
	d := &desk{t: t, broker: &faulty{Broker: b}, now: time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC)}
	q, err := deadletter.New(deadletter.Config{
		Broker: d.broker, Group: group, Actor: "ada", Clock: func() time.Time { return d.now },
		Audit: func(_ context.Context, e deadletter.Entry) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.entries = append(d.entries, e)
			return nil
		},
	})
	require.NoError(t, err)
	d.Queue = q
	return d
}

// failure says what a dead letter is like.
type failure struct {
	key, typ string
	err      error
	redrives int
	payload  []byte
	metadata map[string]string
}

// bury makes a dead letter the way a handler does, and returns the message as it
// was before.
func (d *desk) bury(f failure) *message.Message {
	d.t.Helper()
	if f.typ == "" {
		f.typ = "thing.made"
	}
	if f.err == nil {
		f.err = errors.New("no stock")
	}
	id := events.NewID()
	env := events.Envelope{
		ID: id, Source: "test", Type: f.typ, Timestamp: d.now, Version: "1.0", Data: []byte(`{"n": 1}`),
		Metadata: events.Metadata{CorrelationID: "corr-" + id, OrderingKey: f.key},
	}
	payload, err := env.Encode()
	require.NoError(d.t, err)
	m := message.NewMessage(id, payload)
	maps.Copy(m.Metadata, env.Headers())
	if f.payload != nil {
		m.Payload = f.payload
	}
	maps.Copy(m.Metadata, f.metadata)
	before := m.Copy()
	if f.redrives > 0 {
		m.Metadata[middleware.DeadLetterRedriveCount] = fmt.Sprint(f.redrives)
	}
	poison, err := middleware.Poison(middleware.PoisonConfig{
		Publisher: d.broker.Broker.Publisher(), Topic: broker.DeadLetterTopic(group), Handler: "count", Group: group, Service: "things",
		Clock: func() time.Time { return d.now }, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(d.t, err)
	_, err = poison(func(*message.Message) ([]*message.Message, error) { return nil, f.err })(m)
	require.NoError(d.t, err)
	d.now = d.now.Add(time.Minute)
	return before
}

// stored is what a topic holds.
func (d *desk) stored(topic string) []*message.Message {
	d.t.Helper()
	var all []*message.Message
	for s, err := range d.broker.Broker.Admin().Browse(context.Background(), topic, time.Time{}) {
		require.NoError(d.t, err)
		all = append(all, s.Message)
	}
	return all
}

func (d *desk) redriven() []string { return ids(d.stored(broker.RedriveTopic(group))) }
func (d *desk) left() []string     { return ids(d.stored(broker.DeadLetterTopic(group))) }

func (d *desk) letters() []deadletter.Letter {
	d.t.Helper()
	var all []deadletter.Letter
	for l, err := range d.Browse(context.Background(), deadletter.Filter{}) {
		require.NoError(d.t, err)
		all = append(all, l)
	}
	return all
}

func ids(msgs []*message.Message) []string {
	out := make([]string, len(msgs))
	for i, m := range msgs {
		out[i] = m.UUID
	}
	return out
}

// faulty is a broker whose publishes and deletions can be made to fail.
type faulty struct {
	broker.Broker
	mu sync.Mutex
	// publish decides on each message before it is sent; nil sends it.
	publish func(topic string, m *message.Message) error
	// remove decides on each deletion.
	remove func() error
	// published is called after a batch was confirmed.
	published func()
}

func (f *faulty) set(change func(*faulty)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *faulty) Publisher() broker.Publisher {
	return faultyPublisher{Publisher: f.Broker.Publisher(), f: f}
}

func (f *faulty) Admin() broker.Admin { return faultyAdmin{Admin: f.Broker.Admin(), f: f} }

type faultyPublisher struct {
	broker.Publisher
	f *faulty
}

func (p faultyPublisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) error {
	p.f.mu.Lock()
	decide, after := p.f.publish, p.f.published
	p.f.mu.Unlock()
	failed := map[int]error{}
	var good []*message.Message
	for i, m := range msgs {
		if decide != nil {
			if err := decide(topic, m); err != nil {
				failed[i] = err
				continue
			}
		}
		good = append(good, m)
	}
	if err := p.Publisher.PublishBatch(ctx, topic, good); err != nil {
		return err
	}
	if after != nil {
		after()
	}
	if len(failed) > 0 {
		return &broker.PublishError{Topic: topic, Failed: failed}
	}
	return nil
}

type faultyAdmin struct {
	broker.Admin
	f *faulty
}

func (a faultyAdmin) Delete(ctx context.Context, topic string, positions ...string) (int, error) {
	a.f.mu.Lock()
	decide := a.f.remove
	a.f.mu.Unlock()
	if decide != nil {
		if err := decide(); err != nil {
			return 0, err
		}
	}
	return a.Admin.Delete(ctx, topic, positions...)
}
