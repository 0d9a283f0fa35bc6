// Command bench measures Headrace on real servers, beside stock Watermill and
// beside code written by hand for one purpose. It asserts nothing: a figure
// belongs to the machine that it was taken on.
//
//	go run . outbox     # writers, relays, a long backlog, latency: writes docs/bench/outbox.md
//	go run . brokers    # the adapters, bare and with the stack: writes docs/bench/brokers.md
//	go run . latency    # from commit to handler, at one rate
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"time"

	"github.com/headrace-go/headrace/bench/internal/brokerbench"
	"github.com/headrace-go/headrace/bench/internal/latency"
	"github.com/headrace-go/headrace/bench/internal/outboxbench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	commands := map[string]func(context.Context, *flag.FlagSet, []string) error{
		"brokers": runBrokers, "latency": runLatency, "outbox": runOutbox,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("usage: bench outbox|brokers|latency [flags]; `bench outbox -h` lists them")
	}
	return commands[args[0]](ctx, flag.NewFlagSet(args[0], flag.ContinueOnError), args[1:])
}

func servers(f *flag.FlagSet, postgres, redis *string) {
	f.StringVar(postgres, "postgres", "postgres://postgres@127.0.0.1:5432/postgres?sslmode=disable", "a database server; the run makes databases of its own there and drops them")
	f.StringVar(redis, "redis", "redis://127.0.0.1:6379/0", "a Redis server; the run uses keys of its own and removes them")
}

func runLatency(ctx context.Context, f *flag.FlagSet, args []string) error {
	var o latency.Options
	servers(f, &o.Postgres, &o.Redis)
	f.IntVar(&o.Events, "events", 2000, "how many events to measure")
	f.DurationVar(&o.Every, "every", 5*time.Millisecond, "time between two events; 0: as fast as they can")
	f.IntVar(&o.Writers, "writers", 1, "how many transactions may be under way at once")
	if err := f.Parse(args); err != nil {
		return err
	}
	r, err := latency.Run(ctx, o)
	if err != nil {
		return err
	}
	r.Print(os.Stdout)
	return nil
}

func runOutbox(ctx context.Context, f *flag.FlagSet, args []string) error {
	o := outboxbench.Options{Progress: os.Stderr}
	servers(f, &o.Postgres, &o.Redis)
	f.IntVar(&o.Rows, "rows", 60_000, "rows that a batched relay drains in each measurement")
	f.IntVar(&o.StockRows, "stock-rows", 3_000, "rows that a stock forwarder drains")
	f.IntVar(&o.Runs, "runs", 3, "how often each is measured")
	f.IntVar(&o.Backlog, "backlog", 1_000_000, "rows of the long drain; 0 leaves it out")
	f.IntVar(&o.Transactions, "transactions", 10, "transactions of each writer in one slice")
	f.IntVar(&o.Groups, "groups", 7, "groups of 25 slices of each kind of transaction")
	f.IntVar(&o.LatencyEvents, "events", 3_000, "events that are timed at each load")
	out := f.String("out", "", "a folder for outbox.md and its plots (default: print the report)")
	if err := f.Parse(args); err != nil {
		return err
	}
	r, err := outboxbench.Run(ctx, o)
	if err != nil {
		return err
	}
	if *out != "" {
		return r.Write(*out)
	}
	r.Markdown(os.Stdout)
	return nil
}

func runBrokers(ctx context.Context, f *flag.FlagSet, args []string) error {
	o := brokerbench.Options{Progress: os.Stderr}
	servers(f, &o.Postgres, &o.Redis)
	f.StringVar(&o.MySQL, "mysql", "root@tcp(127.0.0.1:3306)/", "a MySQL or MariaDB server, as its driver writes it; empty leaves it out")
	f.StringVar(&o.AWS, "aws", "", "an emulator of SQS, such as http://127.0.0.1:4566 (scripts/aws-emulator start 4566); empty leaves it out")
	f.IntVar(&o.Messages, "messages", 100_000, "messages of one measurement on Redis; SQL takes a fifth, SQS a tenth, stock on Redis and SQS a tenth of that")
	f.IntVar(&o.Runs, "runs", 3, "how often each is measured")
	f.StringVar(&o.Only, "only", "", "measure only what has this text in its line of the report")
	profile := f.String("cpuprofile", "", "a file for a profile of the CPU")
	out := f.String("out", "", "a folder for brokers.md (default: print the report)")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *profile != "" {
		to, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer to.Close()
		if err := pprof.StartCPUProfile(to); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	r, err := brokerbench.Run(ctx, o)
	if err != nil {
		return err
	}
	if *out != "" {
		return r.Write(*out)
	}
	r.Markdown(os.Stdout)
	return nil
}
