// Command orders runs the orders service: HTTP in, events out by the outbox,
// payment events in. Without arguments it serves until SIGTERM or SIGINT and
// then drains; `orders migrate` brings the database up to date and ends;
// `orders healthcheck` asks a running one whether it is ready.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/headrace-go/headrace/services/orders/internal/service"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	m := service.Main{Args: os.Args[1:], Environ: os.Environ(), Stdout: os.Stdout}
	if err := m.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}
