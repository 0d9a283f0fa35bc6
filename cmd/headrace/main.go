// Command headrace runs and looks after systems built with Headrace. Run it
// without arguments for its commands.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/headrace-go/headrace/cmd/headrace/internal/cli"
)

func main() {
	// The first signal asks for a clean stop; once it came, the default action
	// is back, so that a second one ends the process at once.
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	go func() {
		<-ctx.Done()
		stop()
	}()
	os.Exit(cli.Main(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
