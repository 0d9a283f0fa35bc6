// Package brokerbench measures the brokers' adapters beside the stock ones of
// Watermill and beside what a person would write by hand on the same client, in
// one run on the same servers: publishing, consuming, and consuming with the
// whole stack of middleware and a shared store for duplicates.
package brokerbench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/bench/internal/measure"
	"github.com/headrace-go/headrace/pkg/events"
)

// Options say what to measure and where. An empty address leaves its broker out.
type Options struct {
	// Postgres and MySQL are servers; the run makes databases of its own there and
	// drops them. Postgres is required.
	Postgres, MySQL string
	// Redis is a server; the run uses keys of its own and removes them. Required.
	Redis string
	// AWS is an emulator's endpoint, such as http://127.0.0.1:4566; the run makes
	// queues of its own and deletes them.
	AWS string
	// Messages is how many each measurement on Redis takes; SQL takes a fifth, SQS a
	// tenth, and the stock adapters on Redis and SQS a tenth of that.
	Messages int
	// Runs is how often each measurement is made.
	Runs int
	// Only leaves out what has not this text in its broker or what; "" takes all.
	Only string
	// Progress receives a line for each step.
	Progress io.Writer
}

// Report is what a run saw.
type Report struct {
	Options Options
	Machine measure.Machine
	Began   time.Time
	Took    time.Duration
	Rows    []Row
}

// Row is one thing that is measured in several ways.
type Row struct {
	Broker, What string
	// Ways are Headrace's own, that of the stock adapter and that by hand; a way
	// without figures was not measured.
	Ours, Stock, Hand Way
}

// Way is what the runs of one way gave.
type Way struct {
	// Rate is messages a second, CPU this process's microseconds a message (not the
	// server's), Bytes and Allocs what it allocates for one.
	Rate, CPU, Bytes, Allocs measure.Series
}

// job is one way of one row: it makes ready, then measures n messages.
type job func(ctx context.Context, n int, m *meter) error

// subject is a row before it was measured.
type subject struct {
	broker, what      string
	share             int // of Options.Messages, as a divisor
	ours, stock, hand job
	// same: the stock way takes as many messages, since it slows down as its table
	// grows.
	same bool
}

type bench struct {
	Options
	prefix string
	redis  *redis.Client
	closes []func()
}

var quiet = slog.New(slog.DiscardHandler)

// Run measures everything.
func Run(ctx context.Context, o Options) (*Report, error) {
	b := &bench{Options: o, prefix: "bench-" + events.NewID() + ":"}
	defer func() {
		for i := len(b.closes) - 1; i >= 0; i-- {
			b.closes[i]()
		}
	}()
	opts, err := redis.ParseURL(o.Redis)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	b.redis = redis.NewClient(opts)
	b.onClose(func() { _ = b.redis.Close() })
	if err := b.redis.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("redis at %s: %w", opts.Addr, err)
	}
	r := &Report{Options: o, Began: time.Now()}
	if r.Machine, err = measure.Look(ctx, o.Postgres, b.redis); err != nil {
		return nil, err
	}
	subjects, err := b.subjects(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range subjects {
		if !strings.Contains(s.broker+", "+s.what, o.Only) {
			continue
		}
		row, err := b.measure(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", s.broker, s.what, err)
		}
		r.Rows = append(r.Rows, row)
	}
	r.Took, r.Machine.LoadAfter = time.Since(r.Began), measure.Load()
	return r, nil
}

func (b *bench) onClose(fn func()) { b.closes = append(b.closes, fn) }

func (b *bench) subjects(ctx context.Context) ([]subject, error) {
	all, err := b.redisSubjects(ctx)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	for _, d := range []dialect{postgres(b.Postgres), mysql(b.MySQL)} {
		if d.server == "" {
			continue
		}
		more, err := b.sqlSubjects(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.name, err)
		}
		all = append(all, more...)
	}
	if b.AWS != "" {
		more, err := b.sqsSubjects(ctx)
		if err != nil {
			return nil, fmt.Errorf("sqs: %w", err)
		}
		all = append(all, more...)
	}
	return all, nil
}

// measure takes the ways in turns, so that what disturbs one disturbs all.
func (b *bench) measure(ctx context.Context, s subject) (Row, error) {
	row := Row{Broker: s.broker, What: s.what}
	n := max(b.Messages/s.share, perCall)
	stock := max(n/10, perCall)
	if s.same {
		stock = n
	}
	for run := range b.Runs {
		for _, way := range []struct {
			name string
			job  job
			n    int
			to   *Way
		}{
			{"headrace", s.ours, n, &row.Ours},
			{"stock", s.stock, stock, &row.Stock},
			{"by hand", s.hand, n, &row.Hand},
		} {
			if way.job == nil {
				continue
			}
			m := &meter{}
			if err := way.job(ctx, way.n, m); err != nil {
				return row, fmt.Errorf("%s: %w", way.name, err)
			}
			way.to.add(m, way.n)
			fmt.Fprintf(b.Progress, "%s, %s, run %d: %s %s/s\n", s.broker, s.what, run+1, way.name, measure.Thousands(way.to.Rate[len(way.to.Rate)-1]))
		}
	}
	return row, nil
}

func (w *Way) add(m *meter, n int) {
	each := float64(n)
	w.Rate = append(w.Rate, each/m.took.Seconds())
	w.CPU = append(w.CPU, float64(m.cpu.Microseconds())/each)
	w.Bytes = append(w.Bytes, float64(m.bytes)/each)
	w.Allocs = append(w.Allocs, float64(m.allocs)/each)
}
