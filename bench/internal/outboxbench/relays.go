package outboxbench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stocksql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/bench/internal/measure"
	"github.com/headrace-go/headrace/framework/outbox"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// RelayResult is one line of the relays' table: events a second, run by run.
type RelayResult struct {
	Destination string
	Relays      int
	Payload     int
	Ours        measure.Series
	Stock       measure.Series
	Hand        measure.Series
}

func (r RelayResult) name() string {
	name := fmt.Sprintf("%s, %d relay", r.Destination, r.Relays)
	if r.Relays > 1 {
		name += "s"
	}
	if r.Payload > 1000 {
		name += fmt.Sprintf(", %d KB", r.Payload/1000)
	}
	return name
}

const usualPayload = 550

// relays measures every destination with one relay, Redis with several, and
// large payloads. Within a run the three systems follow each other, so that what
// disturbs the machine disturbs all.
func (b *bench) relays(ctx context.Context) ([]RelayResult, error) {
	type job struct {
		to              destination
		relays, payload int
	}
	var jobs []job
	for _, d := range b.destinations() {
		jobs = append(jobs, job{d, 1, usualPayload})
	}
	for _, n := range []int{2, 4} {
		jobs = append(jobs, job{b.toRedis(), n, usualPayload}, job{paced("5 ms away", 5*time.Millisecond), n, usualPayload})
	}
	jobs = append(jobs, job{b.toRedis(), 1, 10_000})
	results := make([]RelayResult, len(jobs))
	for run := range b.Runs {
		for i, j := range jobs {
			r := &results[i]
			r.Destination, r.Relays, r.Payload = j.to.name, j.relays, j.payload
			rows := b.Rows
			stockRows := b.StockRows
			if j.payload > 1000 {
				rows, stockRows = rows/5, stockRows/2
			}
			if j.to.name == "5 ms away" {
				stockRows = max(stockRows/10, 50)
			}
			systems := []struct {
				rows int
				run  func(context.Context, destination, int, int, int) (float64, error)
				to   *measure.Series
				name string
			}{{rows, b.ours, &r.Ours, "ours"}, {stockRows, b.stock, &r.Stock, "stock"}, {rows, b.hand, &r.Hand, "hand"}}
			for k := range systems {
				system := systems[(k+i+run)%len(systems)] // none is always the first
				rate, err := system.run(ctx, j.to, j.relays, system.rows, j.payload)
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", r.name(), system.name, err)
				}
				*system.to = append(*system.to, rate)
			}
			b.say("run %d  %-38s ours %s/s  stock %s/s  hand %s/s", run+1, r.name(),
				measure.Thousands(r.Ours[run]), measure.Thousands(r.Stock[run]), measure.Thousands(r.Hand[run]))
		}
	}
	return results, nil
}

// meter takes the rate from the moment when a tenth is through, so that
// connecting and preparing is left out, to the end.
type meter struct {
	rows  int64
	n     atomic.Int64
	began atomic.Int64 // when the first tenth was through, unix nanoseconds
	from  atomic.Int64 // how many were through then
}

func newMeter(rows int) *meter { return &meter{rows: int64(rows)} }

func (m *meter) add(n int) {
	through := m.n.Add(int64(n))
	if through >= m.rows/10 && m.began.CompareAndSwap(0, time.Now().UnixNano()) {
		m.from.Store(through)
	}
}

func (m *meter) wait(ctx context.Context) {
	for m.n.Load() < m.rows && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
}

// rate is events a second until now.
func (m *meter) rate() float64 {
	return float64(m.rows-m.from.Load()) / time.Since(time.Unix(0, m.began.Load())).Seconds()
}

// ours drains with outbox.Relay, each on a pool of its own.
func (b *bench) ours(ctx context.Context, to destination, relays, rows, payload int) (rate float64, err error) {
	dsn, db, drop, err := b.database(ctx)
	if err != nil {
		return 0, err
	}
	defer drop()
	if err := fill(ctx, db, rows, payload); err != nil {
		return 0, err
	}
	inner, done, err := to.ours(ctx, dsn)
	if err != nil {
		return 0, err
	}
	defer done()
	m := newMeter(rows)
	pub := countedBatches{inner, m}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all []*outbox.Relay
	for range relays {
		pool, err := open(dsn)
		if err != nil {
			return 0, err
		}
		defer pool.Close()
		r, err := outbox.NewRelay(outbox.RelayConfig{DB: pool, Dialect: sqltx.Postgres, Publisher: pub, Logger: quiet})
		if err != nil {
			return 0, err
		}
		all = append(all, r)
	}
	var running sync.WaitGroup
	for _, r := range all {
		running.Go(func() { _ = r.Run(ctx) })
	}
	m.wait(ctx)
	err = errors.Join(all[0].Flush(ctx), ctx.Err()) // the last batches are settled too
	rate = m.rate()
	cancel()
	running.Wait()
	return rate, err
}

// stock drains with forwarder.Forwarder as its documentation sets it up.
func (b *bench) stock(ctx context.Context, to destination, relays, rows, payload int) (rate float64, err error) {
	dsn, db, drop, err := b.database(ctx)
	if err != nil {
		return 0, err
	}
	defer drop()
	if err := fill(ctx, db, rows, payload); err != nil {
		return 0, err
	}
	schema := stocksql.DefaultPostgreSQLSchema{}
	sub, err := stocksql.NewSubscriber(stocksql.BeginnerFromStdSQL(db), stocksql.SubscriberConfig{
		SchemaAdapter: schema, OffsetsAdapter: stocksql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	if err := sub.SubscribeInitialize("bench"); err != nil {
		return 0, err
	}
	// The same envelopes, in the stock table.
	if _, err := db.ExecContext(ctx, `INSERT INTO watermill_bench (uuid, payload, metadata, transaction_id)
SELECT uuid, convert_from(payload, 'UTF8')::json, '{}', pg_current_xact_id() FROM watermill_headrace_outbox ORDER BY "offset"`); err != nil {
		return 0, err
	}
	if err := sub.Close(); err != nil {
		return 0, err
	}
	inner, done, err := to.stock(ctx, dsn)
	if err != nil {
		return 0, err
	}
	defer done()
	m := newMeter(rows)
	pub := counted{inner, m}
	var forwarders []*forwarder.Forwarder
	for range relays {
		sub, err := stocksql.NewSubscriber(stocksql.BeginnerFromStdSQL(db), stocksql.SubscriberConfig{
			SchemaAdapter: schema, OffsetsAdapter: stocksql.DefaultPostgreSQLOffsetsAdapter{}}, watermill.NopLogger{})
		if err != nil {
			return 0, err
		}
		f, err := forwarder.NewForwarder(sub, pub, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: "bench"})
		if err != nil {
			return 0, err
		}
		forwarders = append(forwarders, f)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	for _, f := range forwarders {
		running.Go(func() { _ = f.Run(ctx) })
	}
	m.wait(ctx)
	rate = m.rate()
	for _, f := range forwarders {
		err = errors.Join(err, f.Close())
	}
	running.Wait()
	return rate, errors.Join(err, ctx.Err())
}

// Of the hand-written relay.
const (
	handBatch   = 500
	handWorkers = 4
)

// hand drains with what a person would write for this one table: pgx itself,
// SKIP LOCKED, four workers, no order, no failures, no parking.
func (b *bench) hand(ctx context.Context, to destination, relays, rows, payload int) (rate float64, err error) {
	dsn, db, drop, err := b.database(ctx)
	if err != nil {
		return 0, err
	}
	defer drop()
	if err := fill(ctx, db, rows, payload); err != nil {
		return 0, err
	}
	send, done, err := to.hand(ctx, dsn)
	if err != nil {
		return 0, err
	}
	defer done()
	workers := handWorkers * relays
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return 0, err
	}
	cfg.MaxConns = int32(workers)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	m := newMeter(rows)
	var running sync.WaitGroup
	errs := make([]error, workers)
	for i := range workers {
		running.Go(func() {
			for n := 1; n > 0 && errs[i] == nil; {
				n, errs[i] = handStep(ctx, pool, send)
				m.add(n)
			}
		})
	}
	running.Wait()
	return m.rate(), errors.Join(errs...)
}

func handStep(ctx context.Context, pool *pgxpool.Pool, send batchSender) (n int, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT "offset", payload FROM watermill_headrace_outbox WHERE acked = FALSE AND state = 0
ORDER BY "offset" LIMIT $1 FOR UPDATE SKIP LOCKED`, handBatch)
		if err != nil {
			return err
		}
		defer rows.Close()
		var offsets []int64
		var msgs []*message.Message
		for rows.Next() {
			var offset int64
			var data []byte
			if err := rows.Scan(&offset, &data); err != nil {
				return err
			}
			m, err := unwrap(data)
			if err != nil {
				return err
			}
			offsets, msgs = append(offsets, offset), append(msgs, m)
		}
		if n = len(msgs); rows.Err() != nil || n == 0 {
			return rows.Err()
		}
		if err := send(ctx, msgs); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `DELETE FROM watermill_headrace_outbox WHERE "offset" = ANY ($1)`, offsets)
		return err
	})
	return n, err
}
