package outboxbench

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/bench/internal/measure"
	"github.com/headrace-go/headrace/framework/outbox"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// BacklogResult is one long drain.
type BacklogResult struct {
	Rows int
	Took time.Duration
	// Percent holds the rate of each hundredth.
	Percent []float64
	// Heap and Resident are the most memory that the process had, in bytes;
	// Before is what was resident before.
	Heap, Resident, Before uint64
}

// Tenth is the rate over the nth tenth, from 0.
func (b BacklogResult) Tenth(n int) float64 {
	if len(b.Percent) < 100 {
		return 0
	}
	sum := 0.0
	for _, rate := range b.Percent[10*n : 10*n+10] {
		sum += 1 / rate
	}
	return 10 / sum
}

// tally notes when each hundredth was through.
type tally struct {
	pacedPublisher
	step int64
	n    atomic.Int64
	mu   sync.Mutex
	at   []time.Time
}

func (t *tally) PublishBatch(_ context.Context, _ string, msgs []*message.Message) error {
	n := t.n.Add(int64(len(msgs)))
	if n/t.step == (n-int64(len(msgs)))/t.step {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for int64(len(t.at)) < n/t.step {
		t.at = append(t.at, time.Now())
	}
	return nil
}

// backlog drains many rows into nothing with one relay.
func (b *bench) backlog(ctx context.Context) (BacklogResult, error) {
	rows := b.Backlog / 100 * 100
	res := BacklogResult{Rows: rows}
	if rows == 0 {
		return res, nil
	}
	_, db, drop, err := b.database(ctx)
	if err != nil {
		return res, err
	}
	defer drop()
	b.say("backlog: writing %s rows", measure.Thousands(float64(rows)))
	if err := fill(ctx, db, rows, usualPayload); err != nil {
		return res, err
	}
	runtime.GC()
	res.Before = resident()
	pub := &tally{step: int64(rows / 100)}
	r, err := outbox.NewRelay(outbox.RelayConfig{DB: db, Dialect: sqltx.Postgres, Publisher: pub, Logger: quiet})
	if err != nil {
		return res, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	began := time.Now()
	running.Go(func() { _ = r.Run(ctx) })
	for pub.n.Load() < int64(rows) && ctx.Err() == nil {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		res.Heap, res.Resident = max(res.Heap, m.HeapInuse), max(res.Resident, resident())
		time.Sleep(50 * time.Millisecond)
	}
	err = r.Flush(ctx)
	res.Took = time.Since(began)
	cancel()
	running.Wait()
	from := began
	for _, at := range pub.at {
		res.Percent = append(res.Percent, float64(pub.step)/max(at.Sub(from).Seconds(), 1e-6))
		from = at
	}
	if err == nil {
		b.say("backlog: %s rows in %s: %s/s, %s/s, %s/s in the first, sixth and last tenth", measure.Thousands(float64(rows)), res.Took.Round(time.Millisecond),
			measure.Thousands(res.Tenth(0)), measure.Thousands(res.Tenth(5)), measure.Thousands(res.Tenth(9)))
	}
	return res, err
}

// resident is the memory of this process; 0 where the system does not tell.
func resident() uint64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseUint(fields[1], 10, 64)
	return pages * uint64(os.Getpagesize())
}
