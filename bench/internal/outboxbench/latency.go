package outboxbench

import (
	"context"
	"time"

	"github.com/headrace-go/headrace/bench/internal/latency"
	"github.com/headrace-go/headrace/bench/internal/measure"
)

// LatencyResult is how long events take from the commit to their handler.
type LatencyResult struct {
	// Capacity is how many events a second one process writes, relays and handles
	// when nothing holds it back, run by run.
	Capacity measure.Series
	Loads    []LatencyLoad
}

// LatencyLoad is the latency at one share of the capacity: the median of each
// run's p50, p99 and maximum, in milliseconds.
type LatencyLoad struct {
	Share         float64
	P50, P99, Max measure.Series
}

const latencyWriters = 8

func (b *bench) latency(ctx context.Context) (LatencyResult, error) {
	res := LatencyResult{Loads: []LatencyLoad{{Share: 0.1}, {Share: 0.5}, {Share: 0.9}}}
	o := latency.Options{Postgres: b.Postgres, Redis: b.Redis, Events: b.LatencyEvents, Writers: latencyWriters}
	for range b.Runs {
		full := o
		full.Every = 0
		r, err := latency.Run(ctx, full)
		if err != nil {
			return res, err
		}
		res.Capacity = append(res.Capacity, r.Rate)
		for i := range res.Loads {
			l := &res.Loads[i]
			at := o
			at.Every = time.Duration(float64(time.Second) / (res.Capacity.Median() * l.Share))
			r, err := latency.Run(ctx, at)
			if err != nil {
				return res, err
			}
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			l.P50, l.P99, l.Max = append(l.P50, ms(r.At(0.5))), append(l.P99, ms(r.At(0.99))), append(l.Max, ms(r.At(1)))
			b.say("latency at %.0f %% of %s/s: p50 %.2f ms, p99 %.2f ms, max %.2f ms", 100*l.Share, measure.Thousands(res.Capacity.Median()), ms(r.At(0.5)), ms(r.At(0.99)), ms(r.At(1)))
		}
	}
	return res, nil
}
