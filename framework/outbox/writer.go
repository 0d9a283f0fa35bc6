package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
)

// WriterConfig configures a Writer. The zero value of a field means its default.
type WriterConfig struct {
	// Dialect is the database's. Required.
	Dialect sqltx.Dialect
	// Table holds the rows. Letters, digits and underscores. Default
	// schema.OutboxTable.
	Table string
	// MaxBytes is the largest message, metadata included; it should be what the
	// broker takes. Default 1 MiB.
	MaxBytes int
	// MaxMetadata is the most metadata entries on one message; it should be what
	// the broker takes. Default 0: no limit.
	MaxMetadata int
	// OnCommit is called after the commit of a transaction of sqltx.Run in which
	// something was written, and by Wake: a relay's Wake, or several. It must not
	// block. Default: nothing.
	OnCommit func()
}

// DefaultMaxBytes is the default of WriterConfig.MaxBytes.
const DefaultMaxBytes = 1 << 20

// WithDefaults returns c with its defaults filled in.
func (c WriterConfig) WithDefaults() WriterConfig {
	if c.Table == "" {
		c.Table = schema.OutboxTable
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	if c.OnCommit == nil {
		c.OnCommit = func() {}
	}
	return c
}

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// Validate reports every field that can't work, by name, value and remedy.
func (c WriterConfig) Validate() error {
	errs := []error{c.Dialect.Validate()}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !tableName.MatchString(c.Table) {
		bad("outbox: Table is %q: use letters, digits and underscores, 63 at most", c.Table)
	}
	if c.MaxBytes < 1 {
		bad("outbox: MaxBytes is %d: it must be positive", c.MaxBytes)
	}
	if c.MaxMetadata < 0 {
		bad("outbox: MaxMetadata is %d: it must not be negative; 0 means no limit", c.MaxMetadata)
	}
	return errors.Join(errs...)
}

// Writer writes messages into the outbox with the caller's transaction. It is
// safe for concurrent use.
type Writer struct {
	cfg     WriterConfig
	inserts sync.Map // number of rows → statement
}

// NewWriter makes a Writer.
func NewWriter(cfg WriterConfig) (*Writer, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Writer{cfg: cfg}, nil
}

const (
	// shards is how many parts a table's rows fall into, by ordering key. Relays
	// lock shards. Every process that shares a table must agree on it.
	shards = 16
	// rowsPerInsert keeps a statement below the parameter limit of every dialect.
	rowsPerInsert = 1000
	// bytesPerInsert keeps it below the packet that MySQL takes by default.
	bytesPerInsert  = 8 << 20
	columnsPerRow   = 4
	cachedInsertMax = 32
)

// Inserter is the part of a transaction that a Writer needs: *sql.Tx has it, and
// package pgxoutbox gives it to pgx.Tx.
type Inserter interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Write inserts msgs with tx, in one statement up to 1,000 of them and
// 8 MiB, and has the relay woken after the commit when ctx is that of an
// sqltx.Run; with another transaction, call Wake after its commit. Messages that
// share an ordering key are published in the order of msgs. No messages is no
// error.
//
// A message that could never be sent fails the whole call with ErrUnsendable
// before anything is written. After a database error the transaction is over on
// Postgres, like after any failed statement.
func (w *Writer) Write(ctx context.Context, tx Inserter, msgs ...Message) error {
	if len(msgs) == 0 {
		return nil
	}
	for _, m := range msgs {
		if err := w.check(m); err != nil {
			return err
		}
	}
	for rest := msgs; len(rest) > 0; {
		part := rest[:fits(rest)]
		rest = rest[len(part):]
		if err := w.insert(ctx, tx, part); err != nil {
			return fmt.Errorf("outbox: write %d messages, first %s for topic %q: %w", len(part), part[0].Message.UUID, part[0].Topic, err)
		}
	}
	sqltx.AfterCommit(ctx, w.cfg.OnCommit)
	return nil
}

// fits is how many of the messages go into one statement; at least one.
func fits(msgs []Message) int {
	size := 0
	for i, m := range msgs {
		if size += envelopeSize(m.Topic, m.Message); i > 0 && (i == rowsPerInsert || size > bytesPerInsert) {
			return i
		}
	}
	return len(msgs)
}

func (w *Writer) insert(ctx context.Context, tx Inserter, msgs []Message) error {
	args := make([]any, 0, len(msgs)*columnsPerRow)
	for _, m := range msgs {
		id := m.Message.UUID
		if len(id) > 36 { // the stock column's width; the envelope keeps the whole
			id = uuid.NewString()
		}
		env := appendEnvelope(make([]byte, 0, envelopeSize(m.Topic, m.Message)), m.Topic, m.Message)
		var key any
		shard := rand.N(shards)
		if k := m.Message.Metadata[events.KeyOrdering]; k != "" {
			key, shard = k, shardOf(k)
		}
		args = append(args, id, env, shard, key)
	}
	_, err := tx.ExecContext(ctx, w.statement(len(msgs)), args...)
	return err
}

// shardOf must never change: rows that are in tables were placed by it. FNV-1a.
func shardOf(key string) int {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return int((h ^ h>>16) % shards)
}

func (w *Writer) statement(rows int) string {
	if rows <= cachedInsertMax {
		if q, ok := w.inserts.Load(rows); ok {
			return q.(string)
		}
	}
	var b strings.Builder
	b.WriteString(`INSERT INTO ` + w.cfg.Table + ` (uuid, payload, shard, ordering_key) VALUES `)
	for i := range rows {
		if i > 0 {
			b.WriteByte(',')
		}
		for c := range columnsPerRow {
			b.WriteByte("(,,,"[c])
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(i*columnsPerRow + c + 1))
		}
		b.WriteByte(')')
	}
	q := w.cfg.Dialect.Rebind(b.String())
	if rows <= cachedInsertMax {
		w.inserts.Store(rows, q)
	}
	return q
}

// Wake has the relay look for rows now. Call it after the commit of a
// transaction that sqltx.Run did not run.
func (w *Writer) Wake() { w.cfg.OnCommit() }

// PublisherFor returns a Watermill publisher that writes into the outbox with
// tx, under each first message's context. It is for one transaction and one
// goroutine; its Close does nothing.
func (w *Writer) PublisherFor(tx Inserter) message.Publisher {
	return txPublisher{writer: w, tx: tx}
}

type txPublisher struct {
	writer *Writer
	tx     Inserter
}

// Publish writes msgs for topic.
func (p txPublisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	out := make([]Message, len(msgs))
	for i, m := range msgs {
		out[i] = Message{Topic: topic, Message: m}
	}
	ctx := context.Background()
	if msgs[0] != nil {
		ctx = msgs[0].Context()
	}
	return p.writer.Write(ctx, p.tx, out...)
}

// Close does nothing: the transaction is the caller's.
func (p txPublisher) Close() error { return nil }
