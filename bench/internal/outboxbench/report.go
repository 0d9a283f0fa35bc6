package outboxbench

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/headrace-go/headrace/bench/internal/measure"
)

// Write writes outbox.md and its plots into the folder.
func (r *Report) Write(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := r.plotRates(filepath.Join(folder, "outbox-rates.svg")); err != nil {
		return fmt.Errorf("plot the rates: %w", err)
	}
	if len(r.Backlog.Percent) > 0 {
		if err := r.plotBacklog(filepath.Join(folder, "outbox-backlog.svg")); err != nil {
			return fmt.Errorf("plot the backlog: %w", err)
		}
	}
	return measure.WriteReport(folder, "outbox.md", r.Markdown)
}

// Markdown writes the report.
func (r *Report) Markdown(w io.Writer) {
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	m := r.Machine
	p("# The outbox, measured")
	p("")
	p("One run of `go run . outbox` in `bench/`, on %s, in %s. %d cores (%s/%s) are shared by the benchmark, Postgres %s (%s) and Redis %s; %s. Each figure is the median of %d runs, with the lowest and the highest. Within a run the three systems follow each other on the same servers, and ratios are taken run by run.",
		r.Began.UTC().Format(time.DateOnly), r.Took.Round(time.Second), m.CPUs, m.OS, m.Arch, m.Postgres, m.Durability, m.Redis, m.Go, r.Options.Runs)
	p("%s", m.LoadNote())
	p("- **ours**: `outbox.Writer`, `outbox.Relay` with their defaults, our adapters.")
	p("- **stock**: Watermill's `forwarder.Forwarder` as documented: `DefaultPostgreSQLSchema`, batches of 100, the stock publishers. It publishes one by one, so its tables are shorter: %s rows, a tenth of that at 5 ms.", measure.Thousands(float64(r.Options.StockRows)))
	p("- **by hand**: what a person would write for this one purpose as a ceiling: pgx itself, `SKIP LOCKED`, batches of %d on %d workers a relay, a decoder for exactly these rows, pipelined `XADD`; no order, no retries, no parking.", handBatch, handWorkers)
	p("")
	p("## What an event costs its transaction")
	p("")
	p("A transaction inserts a business row; with an event it inserts an outbox row too. Milliseconds of one transaction, median of %s of each kind in each of %d groups, in turns of %d.", measure.Thousands(float64(r.Options.Transactions*slicesPerGroup)), r.Options.Groups, r.Options.Transactions)
	p("")
	p("| writers | without event | event by hand | event by `outbox.Writer` | ours ÷ by hand | ours ÷ without |")
	p("|---:|---:|---:|---:|---:|---:|")
	for _, t := range r.Transactions {
		p("| %d | %s | %s | %s | **%s** | %s |", t.Writers, t.Bare.Millis(), t.Hand.Millis(), t.Ours.Millis(), t.Cost().Ratio(), t.Event().Ratio())
	}
	p("")
	p("## How fast relays drain")
	p("")
	p("Events a second from a table of %s rows of about 1.1 KB (550 bytes of payload and the usual metadata, in the forwarder's envelope), from when a tenth is through to the end.", measure.Thousands(float64(r.Options.Rows)))
	p("")
	p("| destination | ours | stock | by hand | ours ÷ stock | ours ÷ by hand |")
	p("|---|---:|---:|---:|---:|---:|")
	for _, x := range r.Relays {
		p("| %s | %s | %s | %s | **%s** | **%s** |", x.name(), x.Ours.Rate(), x.Stock.Rate(), x.Hand.Rate(), x.Ours.Over(x.Stock).Ratio(), x.Ours.Over(x.Hand).Ratio())
	}
	p("")
	p("![Relay rates](outbox-rates.svg)")
	p("")
	if b := r.Backlog; len(b.Percent) > 0 {
		p("## A backlog of %s rows", measure.Thousands(float64(b.Rows)))
		p("")
		p("One relay drained it into nothing in %s, %s rows a second.", b.Took.Round(100*time.Millisecond), measure.Thousands(float64(b.Rows)/b.Took.Seconds()))
		p("")
		p("| first tenth | sixth tenth | last tenth | last ÷ first | heap at most | resident before | resident at most |")
		p("|---:|---:|---:|---:|---:|---:|---:|")
		p("| %s/s | %s/s | %s/s | **%.2f** | %s | %s | %s |", measure.Thousands(b.Tenth(0)), measure.Thousands(b.Tenth(5)), measure.Thousands(b.Tenth(9)), b.Tenth(9)/b.Tenth(0), measure.MiB(b.Heap), measure.MiB(b.Before), measure.MiB(b.Resident))
		p("")
		p("![Rate over the backlog](outbox-backlog.svg)")
		p("")
	}
	p("## From commit to handler")
	p("")
	p("One process writes an event in a transaction, relays it to Redis Streams and handles it in another transaction with its inbox row: the whole stack is on the way. Without a brake it does %s events a second on %d writers. Milliseconds from the commit's return to the handler's start, %s events at each load:", r.Latency.Capacity.Rate(), latencyWriters, measure.Thousands(float64(r.Options.LatencyEvents)))
	p("")
	p("| load | p50 | p99 | highest |")
	p("|---:|---:|---:|---:|")
	for _, l := range r.Latency.Loads {
		p("| %.0f %% | %s | %s | %s |", 100*l.Share, l.P50.Millis(), l.P99.Millis(), l.Max.Millis())
	}
	p("")
	p("No figure is bought with a weaker guarantee: this is the relay that `make crash` kills, with its defaults.")
}
