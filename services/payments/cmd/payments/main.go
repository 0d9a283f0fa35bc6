// Command payments runs the payments service: order events in, charges and
// refunds at the gateway, payment events out by the outbox. Without arguments it
// serves until SIGTERM or SIGINT and then drains; `payments migrate` brings the
// database up to date and ends; `payments healthcheck` asks a running one
// whether it is ready.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/headrace-go/headrace/services/payments/internal/service"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	m := service.Main{Args: os.Args[1:], Environ: os.Environ(), Stdout: os.Stdout}
	if err := m.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "payments:", err)
		os.Exit(1)
	}
}
