package sqldb

import (
	"context"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/sqltx"
)

const (
	// One INSERT carries at most so many rows and about so many bytes, below what
	// any server takes as parameters and as a packet.
	insertRows  = 500
	insertBytes = 1 << 20
)

// publisher publishes on the pool, or in a caller's transaction.
type publisher struct {
	b  *Broker
	db sqltx.Execer
	in bool // in a caller's transaction
}

// PublisherFor returns a publisher whose messages belong to the caller's
// transaction: they appear with its commit or never. After an error the
// transaction must be rolled back. It creates no table: call EnsureTopology for
// its topics at start-up. A message that is published and one that is handed to
// an outbox differ in that this one needs no relay, and only reaches groups of
// this database.
func (b *Broker) PublisherFor(tx sqltx.Execer) broker.Publisher {
	return &publisher{b: b, db: tx, in: true}
}

// Publish sends msgs in order, each under its own context.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	return broker.PublishEach(p, topic, msgs)
}

// Close does nothing: the Broker owns the publisher.
func (p *publisher) Close() error { return nil }

// KeepsKeyOrder is true: a batch is one transaction, and where its messages are
// tried one by one the first failure ends it.
func (p *publisher) KeepsKeyOrder() bool { return true }

// PublishBatch inserts msgs in order, with multi-row statements in one
// transaction: all that the database can store, or none.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	failed := make(map[int]error)
	fail := func(err error) error {
		for i := range msgs {
			if failed[i] == nil {
				failed[i] = err
			}
		}
		return &broker.PublishError{Topic: topic, Failed: failed}
	}
	if topic == "" {
		return fail(fmt.Errorf("the topic has no name: %w", broker.ErrRejected))
	}
	if p.b.isClosed() {
		return fail(broker.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	rows := make([]encoded, 0, len(msgs))
	at := make([]int, 0, len(msgs))
	for i, m := range msgs {
		e, err := encode(m, p.b.d.maxMessage)
		if err != nil {
			failed[i] = err
			continue
		}
		rows, at = append(rows, e), append(at, i)
	}
	if len(rows) > 0 {
		t := p.b.table(topic)
		err := p.store(ctx, t, rows)
		if rejected(err) && len(rows) > 1 && !p.in {
			// One of them is to blame: find out which.
			for n, e := range rows {
				if err := p.store(ctx, t, []encoded{e}); rejected(err) {
					failed[at[n]] = fmt.Errorf("%w: %w", broker.ErrRejected, err)
				} else if err != nil {
					for _, i := range at[n:] {
						failed[i] = err
					}
					break
				}
			}
		} else if rejected(err) {
			return fail(fmt.Errorf("%w: %w", broker.ErrRejected, err))
		} else if err != nil {
			return fail(err)
		}
	}
	if len(failed) > 0 {
		return &broker.PublishError{Topic: topic, Failed: failed}
	}
	return nil
}

// store inserts rows, all or none.
func (p *publisher) store(ctx context.Context, t table, rows []encoded) error {
	if p.in {
		return p.storeIn(ctx, t, rows)
	}
	if _, err := p.b.ensureTopic(ctx, t.topic); err != nil {
		return err
	}
	err := p.storeNow(ctx, t, rows)
	if noTable(err) { // somebody dropped it
		p.b.forget(t.topic)
		if _, err := p.b.ensureTopic(ctx, t.topic); err != nil {
			return err
		}
		err = p.storeNow(ctx, t, rows)
	}
	if err != nil {
		return fmt.Errorf("insert into %s: %w", t.quoted, err)
	}
	p.b.wake.everywhere(t.name)
	return nil
}

func (p *publisher) storeNow(ctx context.Context, t table, rows []encoded) error {
	defer p.b.writer()()
	if fits(rows) == len(rows) {
		return p.insert(ctx, p.db, t, rows)
	}
	tx, err := p.b.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := p.insertAll(ctx, tx, t, rows); err != nil {
		return err
	}
	return tx.Commit()
}

// storeIn inserts in the caller's transaction, and has others woken by its
// commit.
func (p *publisher) storeIn(ctx context.Context, t table, rows []encoded) error {
	err := p.insertAll(ctx, p.db, t, rows)
	if noTable(err) {
		return fmt.Errorf("topic %q has no table yet and none can be made inside a transaction: call EnsureTopology at start-up: %w", t.topic, err)
	}
	if err != nil {
		return fmt.Errorf("insert into %s: %w", t.quoted, err)
	}
	if p.b.wake.canNotify() {
		if _, err := p.db.ExecContext(ctx, notifyQuery, channel, t.name); err != nil {
			return fmt.Errorf("announce messages of topic %q: %w", t.topic, err)
		}
	} else {
		sqltx.AfterCommit(ctx, func() { p.b.wake.here(t.name) })
	}
	return nil
}

func (p *publisher) insertAll(ctx context.Context, db sqltx.Execer, t table, rows []encoded) error {
	for len(rows) > 0 {
		n := fits(rows)
		if err := p.insert(ctx, db, t, rows[:n]); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// fits is how many of the rows go into one statement; at least one.
func fits(rows []encoded) int {
	size := 0
	for i := range rows {
		if size += rows[i].size(); i > 0 && (i == insertRows || size > insertBytes) {
			return i
		}
	}
	return len(rows)
}

func (p *publisher) insert(ctx context.Context, db sqltx.Execer, t table, rows []encoded) error {
	d := p.b.d
	var q strings.Builder
	q.WriteString(d.fill(d.insert, t))
	args := make([]any, 0, 3*len(rows))
	for i := range rows {
		if i > 0 {
			q.WriteByte(',')
		}
		q.WriteString(d.values)
		args = append(args, rows[i].uuid, rows[i].payload, rows[i].metadata)
	}
	_, err := db.ExecContext(ctx, d.bind(q.String()), args...)
	return err
}
