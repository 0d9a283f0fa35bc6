package outboxbench

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/headrace-go/headrace/bench/internal/measure"
	"github.com/headrace-go/headrace/framework/outbox"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
)

// TransactionResult is what transactions cost with so many writers: the median
// time of one in milliseconds, group by group of slices.
type TransactionResult struct {
	Writers int
	// Bare inserts a business row; Hand that and an outbox row by hand; Ours the
	// same with outbox.Writer.
	Bare, Hand, Ours measure.Series
}

// Cost is the time of ours over that by hand.
func (t TransactionResult) Cost() measure.Series { return t.Ours.Over(t.Hand) }

// Event is the time of ours over that of a transaction without an event.
func (t TransactionResult) Event() measure.Series { return t.Ours.Over(t.Bare) }

// slicesPerGroup are small slices in turns: what disturbs the machine for a
// moment disturbs all three, and medians of single transactions leave it out.
const slicesPerGroup = 25

const insertOrder = `INSERT INTO bench_orders (id, body) VALUES ($1, $2)`

func (b *bench) transactions(ctx context.Context) ([]TransactionResult, error) {
	var all []TransactionResult
	for _, writers := range []int{1, 8} {
		t, err := b.transactionsWith(ctx, writers)
		if err != nil {
			return nil, err
		}
		b.say("%d writers: an event by outbox.Writer costs %s of one by hand, %s of a transaction without", writers, t.Cost().Ratio(), t.Event().Ratio())
		all = append(all, t)
	}
	return all, nil
}

func (b *bench) transactionsWith(ctx context.Context, writers int) (t TransactionResult, err error) {
	t.Writers = writers
	_, db, drop, err := b.database(ctx)
	if err != nil {
		return t, err
	}
	defer drop()
	if _, err := db.ExecContext(ctx, `CREATE TABLE bench_orders (id VARCHAR(64) PRIMARY KEY, body TEXT NOT NULL)`); err != nil {
		return t, err
	}
	w, err := outbox.NewWriter(outbox.WriterConfig{Dialect: sqltx.Postgres})
	if err != nil {
		return t, err
	}
	body := string(event(0, usualPayload).Payload)
	variants := []struct {
		to *measure.Series
		tx func(ctx context.Context) error
	}{
		{&t.Bare, func(ctx context.Context) error {
			return inTx(ctx, db, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, insertOrder, events.NewID(), body)
				return err
			})
		}},
		{&t.Hand, func(ctx context.Context) error { return handTx(ctx, db, body) }},
		{&t.Ours, func(ctx context.Context) error {
			return sqltx.Run(ctx, db, sqltx.Options{Dialect: sqltx.Postgres}, func(ctx context.Context, tx *sql.Tx) error {
				if _, err := tx.ExecContext(ctx, insertOrder, events.NewID(), body); err != nil {
					return err
				}
				return w.Write(ctx, tx, outbox.Message{Topic: topic, Message: event(1, usualPayload)})
			})
		}},
	}
	for group := range b.Groups + 1 {
		times := make([]measure.Series, len(variants))
		for slice := range slicesPerGroup {
			for k := range variants {
				i := (k + slice) % len(variants) // no variant is always the first
				took, err := commits(ctx, writers, b.Transactions, variants[i].tx)
				if err != nil {
					return t, err
				}
				times[i] = append(times[i], took...)
			}
		}
		for i, v := range variants {
			if group > 0 { // the first group warms up
				*v.to = append(*v.to, times[i].Median())
			}
		}
	}
	return t, nil
}

// commits runs n transactions on each of the writers and returns how long each
// took, in milliseconds.
func commits(ctx context.Context, writers, n int, tx func(context.Context) error) (measure.Series, error) {
	times := make([]measure.Series, writers)
	errs := make([]error, writers)
	var running sync.WaitGroup
	for w := range writers {
		running.Go(func() {
			for range n {
				began := time.Now()
				if errs[w] = tx(ctx); errs[w] != nil {
					return
				}
				times[w] = append(times[w], float64(time.Since(began).Nanoseconds())/1e6)
			}
		})
	}
	running.Wait()
	return slices.Concat(times...), errors.Join(errs...)
}

func inTx(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// handTx inserts the same two rows as ours.
func handTx(ctx context.Context, db *sql.DB, body string) error {
	return inTx(ctx, db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, insertOrder, events.NewID(), body); err != nil {
			return err
		}
		m := event(1, usualPayload)
		data, err := json.Marshal(envelope{DestinationTopic: topic, UUID: m.UUID, Payload: m.Payload, Metadata: m.Metadata})
		if err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO watermill_headrace_outbox (uuid, payload, shard, ordering_key) VALUES ($1, $2, $3, $4)`,
			m.UUID, data, 2, m.Metadata[events.KeyOrdering])
		return err
	})
}
