// Command bench measures Headrace on real servers and prints what it saw. It
// asserts nothing: a figure belongs to the machine that it was taken on.
//
//	go run . latency
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/headrace-go/headrace/bench/internal/latency"
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
	if len(args) == 0 || args[0] != "latency" {
		return fmt.Errorf("usage: bench latency [flags]; `bench latency -h` lists them")
	}
	f := flag.NewFlagSet("latency", flag.ContinueOnError)
	var o latency.Options
	f.StringVar(&o.Postgres, "postgres", "postgres://postgres@127.0.0.1:5432/postgres?sslmode=disable", "a database server; the run makes a database of its own there and drops it")
	f.StringVar(&o.Redis, "redis", "redis://127.0.0.1:6379/0", "a Redis server; the run uses keys of its own and removes them")
	f.IntVar(&o.Events, "events", 2000, "how many events to measure")
	f.DurationVar(&o.Every, "every", 5*time.Millisecond, "time between two events")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	r, err := latency.Run(ctx, o)
	if err != nil {
		return err
	}
	r.Print(os.Stdout)
	return nil
}
