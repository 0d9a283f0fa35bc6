package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// EnsureTopology creates the tables of the topics, those of the delivery state,
// and the groups, where they are missing. A new group starts at the oldest row.
// A role without the right to create tables is fine while they are there.
func (b *Broker) EnsureTopology(ctx context.Context, subs ...broker.Subscription) error {
	for _, sub := range subs {
		if sub.Topic == "" || sub.Group == "" {
			return fmt.Errorf("sqldb: topic %q, group %q: name both", sub.Topic, sub.Group)
		}
		t, err := b.ensureTopic(ctx, sub.Topic)
		if err != nil {
			return err
		}
		if _, err := b.ensureGroup(ctx, t, sub.Group); err != nil {
			return err
		}
	}
	return nil
}

// ensureTopic returns a topic's table and creates it where it is missing.
func (b *Broker) ensureTopic(ctx context.Context, topic string) (table, error) {
	b.mu.Lock()
	t, ok := b.known[topic]
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return table{}, fmt.Errorf("sqldb: topic %q: %w", topic, broker.ErrClosed)
	}
	if ok {
		return t, nil
	}
	t = b.table(topic)
	there, err := b.exists(ctx, t)
	if err == nil && !there {
		ddl := make([]string, len(b.d.createMessages))
		for i, q := range b.d.createMessages {
			ddl[i] = b.d.fill(q, t)
		}
		err = b.create(ctx, ddl)
	}
	if err == nil && b.d.name == sqltx.Postgres {
		err = b.ensureIndex(ctx, t)
	}
	if err != nil {
		return table{}, b.noDDL(fmt.Errorf("sqldb: make table %s for topic %q: %w", t.quoted, topic, err))
	}
	b.mu.Lock()
	b.known[topic] = t
	b.mu.Unlock()
	return t, nil
}

// forget has the topic's table looked for again, since someone dropped it.
func (b *Broker) forget(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.known, topic)
	b.state = false
}

func (b *Broker) exists(ctx context.Context, t table) (bool, error) {
	var n int
	err := b.db.QueryRowContext(ctx, b.d.bind(b.d.tableExists), t.name).Scan(&n)
	return n > 0, err
}

func (b *Broker) ensureIndex(ctx context.Context, t table) error {
	return b.locked(ctx, func(ctx context.Context, tx *sql.Tx) error { return ensureOffsetIndex(ctx, tx, t) })
}

// create runs DDL so that any number of replicas may do the same at once.
func (b *Broker) create(ctx context.Context, ddl []string) error {
	run := func(ctx context.Context, db sqltx.Execer) error {
		for _, q := range ddl {
			if _, err := db.ExecContext(ctx, q); err != nil {
				return err
			}
		}
		return nil
	}
	if b.d.name == sqltx.MySQL { // DDL commits by itself
		return run(ctx, b.db)
	}
	return b.locked(ctx, func(ctx context.Context, tx *sql.Tx) error { return run(ctx, tx) })
}

// locked runs fn in a transaction that keeps other creators of tables out.
func (b *Broker) locked(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	return sqltx.Run(ctx, b.db, sqltx.Options{Dialect: b.d.name}, func(ctx context.Context, tx *sql.Tx) error {
		if b.d.name == sqltx.Postgres {
			if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1)`, schemaLock); err != nil {
				return err
			}
		}
		return fn(ctx, tx)
	})
}

func (b *Broker) noDDL(err error) error {
	if sqltx.IsPermission(err) {
		return fmt.Errorf("%w: have it created by a role that may, or grant CREATE", err)
	}
	return err
}

// ensureState creates the tables of the delivery state.
func (b *Broker) ensureState(ctx context.Context) error {
	b.mu.Lock()
	done := b.state
	b.mu.Unlock()
	if done {
		return nil
	}
	var missing bool
	for _, name := range []string{groupsTable, claimsTable, gapsTable} {
		there, err := b.exists(ctx, table{name: name})
		if err != nil {
			return fmt.Errorf("sqldb: look for table %s: %w", name, err)
		}
		missing = missing || !there
	}
	if missing {
		if err := b.create(ctx, b.d.createState); err != nil {
			return b.noDDL(fmt.Errorf("sqldb: make the tables of the delivery state (headrace_sql_…): %w", err))
		}
	}
	b.mu.Lock()
	b.state = true
	b.mu.Unlock()
	return nil
}

// ensureGroup returns a group's id and creates it where it is missing.
func (b *Broker) ensureGroup(ctx context.Context, t table, group string) (int64, error) {
	if err := b.ensureState(ctx); err != nil {
		return 0, err
	}
	id, err := b.groupID(ctx, t, group)
	if err == nil && id == 0 {
		err = sqltx.Run(ctx, b.db, sqltx.Options{Dialect: b.d.name}, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, b.d.bind(b.d.insertGroup), groupKey(t.full, group), t.name, shown(t.full), shown(group))
			return err
		})
		if err == nil {
			id, err = b.groupID(ctx, t, group)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("sqldb: make group %q on topic %q: %w", group, t.topic, err)
	}
	return id, nil
}

// groupID is 0 when there is no such group.
func (b *Broker) groupID(ctx context.Context, t table, group string) (int64, error) {
	var id int64
	err := b.db.QueryRowContext(ctx, b.d.bind(`SELECT id FROM headrace_sql_groups WHERE group_key = ?`), groupKey(t.full, group)).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return id, err
}
