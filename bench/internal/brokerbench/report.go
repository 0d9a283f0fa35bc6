package brokerbench

import (
	"fmt"
	"io"
	"time"

	"github.com/headrace-go/headrace/bench/internal/measure"
)

// Write writes brokers.md into the folder.
func (r *Report) Write(folder string) error {
	return measure.WriteReport(folder, "brokers.md", r.Markdown)
}

// Markdown writes the report.
func (r *Report) Markdown(w io.Writer) {
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	m := r.Machine
	p("# The brokers, measured")
	p("")
	p("One run of `go run . brokers` in `bench/`, on %s, in %s. %d cores (%s/%s) are shared by the benchmark and all servers: Postgres %s (%s), Redis %s, MariaDB, an emulator of SQS with one thread; %s. Each figure is the median of %d runs, with the lowest and the highest. The ways of one line follow each other on the same servers, and ratios are taken run by run.",
		r.Began.UTC().Format(time.DateOnly), r.Took.Round(time.Second), m.CPUs, m.OS, m.Arch, m.Postgres, m.Durability, m.Redis, m.Go, r.Options.Runs)
	p("%s", m.LoadNote())
	p("- **Headrace**: the adapter with its defaults; with the whole stack, an `App` with one handler that does nothing, from its start to its drained end (50 messages at once on Redis and SQL, the default 10 on SQS).")
	p("- **stock**: Watermill's adapter, bare: no middleware, no store for duplicates.")
	p("- **by hand**: batches of a hundred (SQS: ten) in a loop on the same client, decoded and acked; no workers, no order, no retries, no lease that is renewed.")
	p("")
	p("Messages are events of some 600 bytes with the usual metadata, published a hundred a call.")
	p("")
	p("## Messages a second")
	p("")
	p("| broker | what | Headrace | stock | by hand | Headrace ÷ stock | Headrace ÷ by hand |")
	p("|---|---|---:|---:|---:|---:|---:|")
	for _, x := range r.Rows {
		p("| %s | %s | %s | %s | %s | **%s** | %s |", x.Broker, x.What, x.Ours.Rate.Rate(), x.Stock.Rate.Rate(), x.Hand.Rate.Rate(),
			x.Ours.Rate.Over(x.Stock.Rate).Ratio(), x.Ours.Rate.Over(x.Hand.Rate).Ratio())
	}
	p("")
	p("## What a message costs the process")
	p("")
	p("CPU in microseconds, of the process alone and not of the server, and what is allocated. Medians.")
	p("")
	p("| broker | what | Headrace | stock | by hand |")
	p("|---|---|---:|---:|---:|")
	for _, x := range r.Rows {
		p("| %s | %s | %s | %s | %s |", x.Broker, x.What, x.Ours.cost(), x.Stock.cost(), x.Hand.cost())
	}
}

// cost writes what one message costs.
func (w Way) cost() string {
	if len(w.Rate) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f µs, %.1f KB in %s", w.CPU.Median(), w.Bytes.Median()/1000, measure.Thousands(w.Allocs.Median()))
}
